// Where libtpu, the TPU's compiler, is. It is found at run time, never linked.
#ifndef KDA_TPU_PJRT_LIBTPU_H_
#define KDA_TPU_PJRT_LIBTPU_H_

#include <string>

namespace kda::tpu {

// In this order: `chosen` (an option); KDA_LIBTPU of the environment; .libtpu/libtpu.so of the
// checkout this was built from (scripts/setup tpu puts it there); the site-packages of the Python
// environment in use; libtpu.so where the dynamic linker looks. The first two are taken as they
// are, there or not: a forced choice. Returns false, with one line for the user, if there is none.
bool FindLibtpu(const std::string& chosen, std::string* path, std::string* error);

// Where it looks, empty if it is not there:
// <prefix>/lib/python3.*/{site,dist}-packages/libtpu/libtpu.so, in the order of the folders' names;
std::string LibtpuInPython(const std::string& prefix);
// libtpu.so of the folders of LD_LIBRARY_PATH, in their order, then of the system's.
std::string LibtpuInPath(const std::string& list);

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_LIBTPU_H_
