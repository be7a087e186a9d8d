// From a problem to a predicted time: builds a program, compiles it, reads its schedule, predicts.
#ifndef KDA_TPU_REPORT_H_
#define KDA_TPU_REPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "tpu/hlo/module.h"
#include "tpu/ladder/ladder.h"
#include "tpu/mega/mega.h"
#include "tpu/pjrt/compile.h"
#include "tpu/predict.h"
#include "tpu/problem.h"
#include "tpu/schedule/schedule.h"

namespace kda::tpu {

enum class Family { kMega, kLadder, kDecode };

struct ProgramRequest {
  Family family = Family::kMega;
  TpuProblem problem;
  int partitions = 1;    // chips that share out the heads (shard.h); mega and decode
  LadderOptions ladder;  // of the ladder
};

// A problem of packed sequences: tokens, sequences and lengths.
TpuProblem PackedProblem(const std::vector<int64_t>& lengths, int64_t heads);

struct BuiltProgram {
  std::unique_ptr<hlo::Module> module;
  CountsByKernel counts;    // for the problem's lengths
  std::string description;  // one line: what it is, every fallback with its reason
};

// Throws ir::BuildError where the problem is none of the kernel's: what it asks is
// checked, no code is written.
void CheckProgram(const ProgramRequest& request);
// .. and also where what has been built is too much for a chip, or for
// counting how often its parts run.
BuiltProgram BuildProgram(const ProgramRequest& request);

struct CompileSettings {
  const Target* target = nullptr;
  std::vector<std::string> child;  // as CompileRequest's
  std::string libtpu;
  double timeout_seconds = 600;
  bool keep_executable = false;
};
CompileResult CompileProgram(const BuiltProgram& program, const CompileSettings& settings,
                             bool schedule);

// What one step of a kernel costs: of its own loop over steps (kStepsLabel) where it
// has one, else of its grid.
struct KernelStep {
  double steps = 1;
  double cycles = 0;
};

struct Report {
  std::string error;  // one line; empty: all is well
  CompileResult compiled;
  Schedule schedule;
  Prediction prediction;
  std::vector<KernelStep> steps;  // of prediction.kernels
  // Of prediction.kernels: indices into schedule.programs, -1: none.
  std::vector<int32_t> programs;
  bool ok() const { return error.empty(); }
};

Report PredictProgram(const BuiltProgram& program, const CompileSettings& settings);

}  // namespace kda::tpu

#endif  // KDA_TPU_REPORT_H_
