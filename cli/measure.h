// Several implementations of one problem: each verified, then timed in turns.
#ifndef KDA_CLI_MEASURE_H_
#define KDA_CLI_MEASURE_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/generator.h"
#include "cli/manifest.h"
#include "cli/oracle.h"
#include "cli/timing.h"
#include "cli/workload.h"

namespace kda::cli {

class Progress;

struct MeasureFlags {
  int64_t warmup = -1;  // -1: 2 for runs under half a second, else 1
  int64_t repeat = 0;   // 0: as many as fit in `auto_seconds`, within [auto_min, auto_max]
  double auto_seconds = 1;
  int64_t auto_min = 3, auto_max = 50;
  int64_t verify_budget = 8192;  // token-heads of the oracle for each problem
};
void AddMeasureFlags(CLI::App* app, MeasureFlags* flags);

// One thing to compare: a rung on an instruction set.
struct Implementation {
  std::string rung, isa;  // as asked for; rung "-" where all run the same: token by token
  std::string label;      // "optimized", or "optimized/avx2" where instruction sets differ
  PlanOptions options;
};
// The product of the lists of rungs and instruction sets. Fixes the number of threads.
std::vector<Implementation> Implementations(ExecutionFlags flags, kda_mode mode);

struct Measurement {
  std::string rung, isa, label;  // as the implementation's
  Json ran;                      // what the plan ran
  std::vector<Verdict> verdicts;
  bool passed = false;  // only then timed
  int64_t warmup = 0;
  Statistics time;  // milliseconds
  std::vector<double> samples;
};

// Inputs, outputs and workspace for the largest problem of a workload, shared by all of them.
class Bench {
 public:
  // Throws Error where an implementation cannot run a batch, before any input is made, and
  // where the memory is not there.
  Bench(const GeneratorFlags& generator, const MeasureFlags& flags, int64_t heads,
        const std::vector<Batch>& batches, kda_mode mode, const std::vector<Implementation>& which,
        Progress* progress);

  // Verifies each implementation, then times them alternately. Measurements as implementations.
  // `alone`: the progress is that of this one problem.
  std::vector<Measurement> Run(const Batch& batch, const std::vector<Implementation>& which,
                               bool alone, Progress* progress);
  // Median time from a zero state over that from the random one, alternating.
  double ZeroStateRatio(const Batch& batch, const Implementation& implementation);

  const std::string& verified() const { return verified_; }  // what the last Run checked
  bool pinned() const { return pinned_; }

 private:
  void PrepareWorkspace(int64_t bytes);
  // Runs once on poisoned outputs, checks them and warms up. Returns the time of the last run.
  double VerifyAndWarm(const Case& problem, const Plan& plan, const Args& args,
                       const Sample& sample, Progress* progress, Measurement* measurement) const;

  MeasureFlags flags_;
  Case inputs_;
  Tensor workspace_, zero_state_;
  std::string verified_;
  bool pinned_ = false, pin_tried_ = false;
};

// The record of one measurement that `--json` prints.
Json MeasurementJson(const Measurement& measurement, const Batch& batch, int64_t heads,
                     int64_t value_heads, const std::string& verified);

// "o off by ..." for a measurement that failed.
std::string FailureText(const Measurement& measurement);

// Speed-ups of one implementation over another across problems.
struct Comparison {
  std::string slow, fast;
  std::vector<double> ratios;
  int64_t Faster() const;
  std::string Describe(size_t of) const;  // `of`: how many were asked for
  Json ToJson() const;
};

}  // namespace kda::cli

#endif  // KDA_CLI_MEASURE_H_
