// The options that sub-commands share, and what they become.
#ifndef KDA_CLI_FLAGS_H_
#define KDA_CLI_FLAGS_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/case.h"

namespace kda::cli {

// Validators whose message names the value and what is allowed.
CLI::Validator OneOf(std::vector<std::string> allowed);
CLI::Validator WholeNumberIn(int64_t low, int64_t high);
CLI::Validator FiniteNumber();

// What is computed (run, verify).
struct ProblemFlags {
  std::string gate = "log";
  std::optional<double> lower_bound;  // -5 where not given
  bool beta_logits = false;
  bool qk_l2norm = false;
  std::optional<double> scale;
  std::string state_layout = "kv";
  std::string out_dtype;  // "": that of v
  bool decode = false;
  int64_t checkpoint_every = 0;
};
void AddProblemFlags(CLI::App* app, ProblemFlags* flags);
// Everything but the tensors.
void ApplyProblemFlags(const ProblemFlags& flags, Case* problem);
kda_dtype OutputDtype(const ProblemFlags& flags, const Case& problem);

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
Options MakeOptions(const ExecutionFlags& flags, const std::string& rung, const std::string& isa);

// Tensors of a safetensors file by their names. Names that are not used are returned in `unused`.
Case ReadCase(const std::string& path, std::vector<std::string>* unused);

// Names of the library's tables.
std::vector<std::string> RungNames();
std::vector<std::string> SwitchNames(uint32_t bits);
std::vector<std::string> IsaNames();

kda_dtype DtypeFromFlag(const std::string& name);  // bf16, fp16 | f16, fp32 | f32

}  // namespace kda::cli

#endif  // KDA_CLI_FLAGS_H_
