// Compiles a program for a TPU with libtpu: ahead of time, no TPU needed.
//
// libtpu ends the process when something displeases it (an unknown flag, a failed check), so it
// runs in a child process with a time limit: an executable of the caller's that hands its last
// argument to CompileChild(). Whatever happens there, Compile() returns one clear line.
#ifndef KDA_TPU_PJRT_COMPILE_H_
#define KDA_TPU_PJRT_COMPILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tpu/pjrt/files.h"
#include "tpu/pjrt/target.h"

namespace kda::tpu {

struct CompileRequest {
  std::string module;  // StableHLO, as text; with "mhlo.num_partitions" = the target's partitions
  const Target* target = nullptr;
  // The child's argv, to which a folder is appended; its main() returns CompileChild(that folder).
  std::vector<std::string> child;
  std::string libtpu;  // its path; empty: FindLibtpu decides
  double timeout_seconds = 300;
  bool schedule = false;  // write the static schedule into CompileResult::dumps (schedule/read.h)
  bool keep_executable = false;  // fill CompileResult::executable
  // XLA flags of this compilation, e.g. {"xla_tpu_scoped_vmem_limit_kib", "65536"}.
  std::vector<std::pair<std::string, std::string>> overrides;
  std::vector<std::string>
      libtpu_args;     // further flags, "--xla_...", an unknown one ends the child
  std::string folder;  // where everything is kept; empty: a temporary one, removed with the result
};

enum class CompileStatus {
  kOk,
  kBadRequest,  // the request itself
  kNoLibtpu,    // there is none
  kBadLibtpu,   // it cannot be loaded, or has another ABI
  kRefused,     // the compiler does not take the program
  kAborted,     // libtpu ended the child
  kTimeout,
  kSystem,  // files, processes
};
const char* CompileStatusName(CompileStatus status);

struct CompileResult {
  CompileStatus status = CompileStatus::kSystem;
  std::string message;  // one line; empty if all is well
  std::string details;  // the compiler's whole text, or the child's stderr
  bool ok() const { return status == CompileStatus::kOk; }

  std::string compiler;     // version text of libtpu
  std::string fingerprint;  // in hexadecimal
  std::string executable;   // its serialisation, if asked for
  int64_t executable_bytes = 0;
  int64_t code_bytes = 0;
  int64_t argument_bytes = 0;  // in HBM, as are the next two
  int64_t output_bytes = 0;
  int64_t temporary_bytes = 0;
  double seconds = 0;          // of the compiler
  double process_seconds = 0;  // of the child, loading libtpu included
  std::string dumps;           // folder of the schedule's files; lives as long as `storage`
  std::shared_ptr<TempFolder> storage;
};

CompileResult Compile(const CompileRequest& request);

// The child's side; returns its exit code. Ends by itself when its parent does.
int CompileChild(const std::string& folder);

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_COMPILE_H_
