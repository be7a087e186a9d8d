// The child's side of a compilation: everything that touches libtpu.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "tpu/pjrt/compile.h"
#include "tpu/pjrt/exchange.h"
#include "tpu/pjrt/pjrt_api.h"
#include "tpu/pjrt/plugin.h"

namespace kda::tpu {
namespace {

constexpr int kExitReported = 0;  // there is a result file, good or bad
constexpr int kExitUnable = 3;    // there could be none

// A failure that is none of libtpu's, as the parent reports it.
struct Failure {
  CompileStatus status;
  std::string message;
};

void SetEnvironment(const Record& request, const std::string& folder) {
  const std::string accelerator = Field(request, "accelerator");
  const std::string flags = Field(request, "flags");
  const char* const values[][2] = {
      {"TPU_SKIP_MDS_QUERY", "1"},  // or libtpu asks a metadata service for minutes
      {"TPU_WORKER_HOSTNAMES", "localhost"},
      {"TPU_WORKER_ID", "0"},
      {"TPU_ACCELERATOR_TYPE", accelerator.c_str()},
      {"ALLOW_MULTIPLE_LIBTPU_LOAD",
       "1"},  // nothing here touches a TPU that another process may use
      {"TPU_LOG_DIR", "disabled"},
      {"TMPDIR", folder.c_str()},     // libtpu leaves logs there, of refusals all the same
      {"TPU_STDERR_LOG_LEVEL", "2"},  // errors
      {"TPU_MIN_LOG_LEVEL", "2"},
      {"LIBTPU_INIT_ARGS", flags.c_str()},
  };
  for (const auto& [name, value] : values) setenv(name, value, 1);
}

class Compiler {
 public:
  // Throws PluginFailure or Failure, like all methods.
  explicit Compiler(const std::string& libtpu) : api_(libtpu) {}

  void Run(const Record& request, const std::string& folder, Record* result) {
    const std::string topology_name = Field(request, "topology");
    pjrt::TopologyCreateArgs topology{};
    topology.name = topology_name.data();
    topology.name_size = topology_name.size();
    api_.Check(api_->topology_create(&topology), true);
    pjrt::TopologyPlatformVersionArgs version{};
    version.topology = topology.topology;
    api_.Check(api_->topology_platform_version(&version), true);
    (*result)["compiler"] = std::string(version.version, version.version_size);

    std::string code, options;
    if (!ReadFile(folder + kModuleFile, &code) || !ReadFile(folder + kOptionsFile, &options)) {
      throw Failure{CompileStatus::kSystem, "cannot read " + folder};
    }
    pjrt::Program program{};
    program.code = code.data();
    program.code_size = code.size();
    program.format = "mlir";
    program.format_size = 4;
    pjrt::CompileArgs compile{};
    compile.topology = topology.topology;
    compile.program = &program;
    compile.options = options.data();
    compile.options_size = options.size();
    const auto start = std::chrono::steady_clock::now();
    api_.Check(api_->compile(&compile));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    (*result)["seconds"] = std::to_string(seconds.count());
    Describe(compile.executable, !Field(request, "keep_executable").empty(), folder, result);
    // Neither executable nor topology is destroyed: the process ends now.
  }

 private:
  void Describe(pjrt::Executable* executable, bool keep, const std::string& folder,
                Record* result) {
    pjrt::CodeSizeArgs code{};
    code.executable = executable;
    api_.Check(api_->executable_code_size(&code), true);
    (*result)["code_bytes"] = std::to_string(code.bytes);

    pjrt::MemoryStatsArgs memory{};
    memory.executable = executable;
    api_.Check(api_->executable_memory_stats(&memory), true);
    (*result)["argument_bytes"] = std::to_string(memory.arguments);
    (*result)["output_bytes"] = std::to_string(memory.outputs);
    (*result)["temporary_bytes"] = std::to_string(memory.temporaries);

    pjrt::FingerprintArgs print{};
    print.executable = executable;
    api_.Check(api_->executable_fingerprint(&print), true);
    (*result)["fingerprint"] = Hexadecimal({print.fingerprint, print.fingerprint_size});

    pjrt::SerializeArgs serial{};
    serial.executable = executable;
    api_.Check(api_->executable_serialize(&serial), true);
    (*result)["executable_bytes"] = std::to_string(serial.size);
    if (keep && !WriteFile(folder + kExecutableFile, std::string(serial.bytes, serial.size))) {
      throw Failure{CompileStatus::kSystem, "cannot write the executable to " + folder};
    }
  }

  const Plugin api_;
};

}  // namespace

int CompileChild(const std::string& folder) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string text;
  if (!ReadFile(folder + kRequestFile, &text)) return kExitUnable;
  const Record request = ParseRecord(text);
  SetEnvironment(request, folder);
  if (chdir(folder.c_str()) != 0) return kExitUnable;
  Record result;
  try {
    Compiler(Field(request, "libtpu")).Run(request, folder, &result);
    result["status"] = CompileStatusName(CompileStatus::kOk);
  } catch (const Failure& failure) {
    result["status"] = CompileStatusName(failure.status);
    if (!WriteFile(folder + kMessageFile, failure.message)) return kExitUnable;
  } catch (const PluginFailure& failure) {
    result["status"] =
        CompileStatusName(failure.bad_plugin ? CompileStatus::kBadLibtpu : CompileStatus::kRefused);
    if (!WriteFile(folder + kMessageFile, failure.message)) return kExitUnable;
  }
  // Not through exit(): libtpu's destructors have nothing to do here.
  if (!WriteFile(folder + kResultFile, FormatRecord(result))) _exit(kExitUnable);
  _exit(kExitReported);
}

}  // namespace kda::tpu
