// The compile options that libtpu wants, in the wire format of xla.CompileOptionsProto.
#ifndef KDA_TPU_PJRT_COMPILE_OPTIONS_H_
#define KDA_TPU_PJRT_COMPILE_OPTIONS_H_

#include <string>
#include <utility>
#include <vector>

namespace kda::tpu {

// `overrides` are XLA's flags for this compilation: "true" and "false" become booleans, digits
// integers, all else strings.
std::string CompileOptionsProto(int partitions,
                                const std::vector<std::pair<std::string, std::string>>& overrides);

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_COMPILE_OPTIONS_H_
