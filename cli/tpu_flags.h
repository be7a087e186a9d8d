// The options that the sub-commands of `kda tpu` share, and what they become.
#ifndef KDA_CLI_TPU_FLAGS_H_
#define KDA_CLI_TPU_FLAGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cli/manifest.h"
#include "tpu/report.h"

namespace kda::cli {

class Progress;

// What is computed, and by which kernel. K = V = 128.
struct TpuFlags {
  int64_t batch = 4, seqlen = 0;  // 0: usual_seqlen; of decode 1
  int64_t usual_seqlen = 2048;    // the headline
  std::vector<int64_t> lengths;
  int64_t heads = 16;
  std::string gate = "bounded";
  double lower_bound = -5;
  std::string gate_dtype, beta_dtype;  // empty: what the kernel is made for
  bool qk_l2norm = false, beta_logits = false;
  bool no_initial_state = false, no_final_state = false;
  int64_t slots = 0;

  std::string kernel = "mega";
  std::string rung = "optimized";
  std::vector<std::string> sets;  // "switch=0|1"
  std::string form = "interleaved";
  std::string solver = "auto";

  std::string target = "v6e";
  std::string libtpu;
  double time_limit = 600;  // seconds, for one compilation
};
// --batch, --seqlen, --lengths, --heads; `without`: an option that excludes them, or null.
void AddTpuShapeFlags(CLI::App* app, TpuFlags* flags, const std::string& group,
                      CLI::Option* without);
// .. and all else of the problem.
void AddTpuProblemFlags(CLI::App* app, TpuFlags* flags);
void AddTpuKernelFlags(CLI::App* app, TpuFlags* flags);
void AddTpuCompilerFlags(CLI::App* app, TpuFlags* flags);

std::vector<int64_t> LengthsOf(const TpuFlags& flags);
tpu::ProgramRequest MakeTpuRequest(const TpuFlags& flags);

// BuildProgram, its refusals as Error.
tpu::BuiltProgram BuildTpuProgram(const tpu::ProgramRequest& request);
tpu::CompileSettings MakeSettings(const TpuFlags& flags);
// Throws Error unless the result is good.
void CheckCompiled(const tpu::CompileResult& result);

// Runs `work` while `progress` shows that time passes: from `begin` to `end` of all there is to do,
// most of it in `expected_seconds`.
void WithProgress(Progress* progress, double begin, double end, double expected_seconds,
                  const std::string& now, const std::function<void()>& work);

// PredictProgram with progress; throws Error where it fails.
tpu::Report PredictWithProgress(const tpu::BuiltProgram& program, const TpuFlags& flags,
                                Progress* progress, double begin, double end,
                                const std::string& now);

// What was asked for, for the manifest's reader.
Json TpuProblemJson(const TpuFlags& flags);
Json CompiledJson(const tpu::CompileResult& result, const TpuFlags& flags);
std::string Bytes(int64_t bytes);  // "12.3 MB"

}  // namespace kda::cli

#endif  // KDA_CLI_TPU_FLAGS_H_
