// The options that sub-commands share, and what they become.
#ifndef KDA_CLI_FLAGS_H_
#define KDA_CLI_FLAGS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/case.h"
#include "cli/safetensors.h"

namespace kda::cli {

// Validators whose message names the value and what is allowed.
CLI::Validator OneOf(std::vector<std::string> allowed);
CLI::Validator WholeNumberIn(int64_t low, int64_t high);
CLI::Validator FiniteNumber();
CLI::Validator PositiveNumber();

// How it is computed.
struct ExecutionFlags {
  std::string backend = "auto";
  std::vector<std::string> isas = {"auto"};
  std::vector<std::string> rungs = {"optimized"};
  std::vector<std::string> sets;  // "switch=0|1"
  std::string solver = "auto";
  int32_t threads = 0;
};
// `lists`: --rung and --isa take several names.
void AddExecutionFlags(CLI::App* app, bool lists, ExecutionFlags* flags);
void AddThreadsFlag(CLI::App* app, ExecutionFlags* flags);
PlanOptions MakeOptions(const ExecutionFlags& flags, const std::string& rung,
                        const std::string& isa);

// Tensors of a safetensors file by their names.
struct InputFile {
  Case problem;
  Metadata metadata;
  std::vector<std::string> unused;  // names of tensors
};
InputFile ReadInput(const std::string& path);
// .. and of a case, as written.
std::vector<std::pair<std::string, Tensor>> InputTensors(const Case& problem);

// Names of the library's tables.
std::vector<std::string> RungNames();
std::vector<std::string> SwitchNames(uint32_t bits);
std::vector<std::string> IsaNames();

kda_dtype DtypeFromFlag(const std::string& name);  // bf16, fp16 | f16, fp32 | f32

}  // namespace kda::cli

#endif  // KDA_CLI_FLAGS_H_
