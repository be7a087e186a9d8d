// The options that the sub-commands of `kda tpu` share, and what they become.
#ifndef KDA_CLI_TPU_FLAGS_H_
#define KDA_CLI_TPU_FLAGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/manifest.h"
#include "tpu/report.h"

namespace kda::cli {

// What is computed, and by which kernel. K = V = 128.
struct TpuFlags {
  int64_t batch = 4, seqlen = 0;  // 0: usual_seqlen; of decode 1
  int64_t usual_seqlen = 2048;    // the headline
  std::vector<int64_t> lengths;
  int64_t heads = 16;
  std::string gate = "bounded";
  std::optional<double> lower_bound;   // of the bounded gate; -5 where empty
  std::string gate_dtype, beta_dtype;  // empty: what the kernel is made for
  bool qk_l2norm = false, beta_logits = false;
  bool no_initial_state = false, no_final_state = false;
  int64_t slots = 0;

  std::string kernel = "mega";
  bool precise = false;  // of mega
  std::string rung = "optimized";
  std::vector<std::string> sets;  // "switch=0|1"
  std::string form;               // empty: interleaved
  std::string solver = "auto";

  std::string target = "v6e";
  std::string libtpu;
  double time_limit = 600;  // seconds, for one compilation
};
// --batch, --seqlen, --lengths, --heads; `without`: an option that excludes them, or null.
void AddTpuShapeFlags(CLI::App* app, TpuFlags* flags, const std::string& group,
                      CLI::Option* without);
// --gate-dtype, --beta-dtype; `without` as above.
void AddTpuDtypeFlags(CLI::App* app, TpuFlags* flags, const std::string& group,
                      CLI::Option* without);
// .. and all else of the problem.
void AddTpuProblemFlags(CLI::App* app, TpuFlags* flags);
void AddTpuKernelFlags(CLI::App* app, TpuFlags* flags);
void AddTpuCompilerFlags(CLI::App* app, TpuFlags* flags);

std::vector<int64_t> LengthsOf(const TpuFlags& flags);
// "bf16" or "fp32": `name`, an option's value, or where it is empty what the kernel is made for.
std::string DtypeName(const std::string& name, const std::string& kernel);
// Throws Error, naming the options, where they contradict each other or the kernel.
tpu::ProgramRequest MakeTpuRequest(const TpuFlags& flags);

// BuildProgram, its refusals as Error.
tpu::BuiltProgram BuildTpuProgram(const tpu::ProgramRequest& request);
tpu::CompileSettings MakeSettings(const TpuFlags& flags);
// Throws Error unless the result is good.
void CheckCompiled(const tpu::CompileResult& result);

// Runs `work` and calls `show` every now and then meanwhile.
void WithProgress(const std::function<void()>& show, const std::function<void()>& work);

// PredictProgram with progress under the name of a task; throws Error where it fails.
tpu::Report PredictWithProgress(const tpu::BuiltProgram& program, const TpuFlags& flags,
                                const std::string& task);

// Throws Error, before anything is computed, where a file cannot be written.
// Empty: none is asked for.
void CheckWritable(const std::string& option, const std::string& path);

// Makes a folder where there is none; throws Error where it cannot, or
// nothing can be written there.
void CheckFolder(const std::string& option, const std::string& path);

// What was asked for, for the manifest's reader.
Json TpuProblemJson(const TpuFlags& flags);
Json CompiledJson(const tpu::CompileResult& result, const TpuFlags& flags);
std::string Bytes(int64_t bytes);  // "12.3 MB"

}  // namespace kda::cli

#endif  // KDA_CLI_TPU_FLAGS_H_
