// What is computed (run, verify): the options, what a file says of its problem, what both become.
#ifndef KDA_CLI_PROBLEM_FLAGS_H_
#define KDA_CLI_PROBLEM_FLAGS_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/generator.h"
#include "cli/manifest.h"
#include "cli/safetensors.h"

namespace kda::cli {

// Empty: neither the command line nor the file says.
struct ProblemFlags {
  std::optional<std::string> gate;  // log, bounded, softplus
  std::optional<double> lower_bound;
  std::optional<bool> beta_logits, qk_l2norm;
  std::optional<double> scale;              // K^-0.5 where empty
  std::optional<std::string> state_layout;  // kv, vk
  std::optional<std::string> out_dtype;     // that of v where empty
  std::optional<bool> decode;
  std::optional<int64_t> checkpoint_every;  // none where empty
};

// `gate_default` is the help's words for the gate where nobody says.
void AddProblemFlags(CLI::App* app, const std::string& gate_default, ProblemFlags* flags);

// The metadata of a safetensors file, "kda.<option>" each: what the flags are, to write, ..
Metadata ToMetadata(const ProblemFlags& flags);

// .. and to read: fills what the command line left open.
struct FromFile {
  Metadata taken;                       // option and value
  std::vector<std::string> overridden;  // "--gate softplus; the file says bounded"
  std::string Describe() const;         // "gate bounded, lower_bound -5"
  Json ToJson() const;                  // of what was taken
};
FromFile TakeFromFile(const std::string& path, const Metadata& metadata, ProblemFlags* flags);

// The defaults of what is still open, but for what depends on the tensors.
void FillDefaults(const std::string& gate, ProblemFlags* flags);

// The same for inputs made here, and what of it the generator needs.
void FillGenerator(ProblemFlags* flags, GeneratorFlags* generator);

// The input to check: the file, where one is named, or `batch` of `heads` as the generator makes
// it. Fills the flags that are open, from the file or by default.
InputFile FileOrGenerated(const std::string& path, const Batch& batch, int64_t heads,
                          GeneratorFlags* generator, ProblemFlags* flags, FromFile* from,
                          Progress* progress = nullptr);

// Everything but the tensors. The defaults are filled.
void ApplyProblemFlags(const ProblemFlags& flags, Case* problem);
kda_dtype OutputDtype(const ProblemFlags& flags, const Case& problem);

// What the reader of a file should know: unused tensors, options that replace what the file says,
// values out of the operator's domain. Lines for stderr.
std::vector<std::string> Notes(const std::string& path, const InputFile& input,
                               const FromFile& from);

}  // namespace kda::cli

#endif  // KDA_CLI_PROBLEM_FLAGS_H_
