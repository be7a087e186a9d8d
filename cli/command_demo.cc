// kda demo: KDA prefill on real prompt lengths, three implementations, verified and timed.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/error.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/table.h"

namespace kda::cli {
namespace {

const std::vector<int64_t> kBatchSizes = {1, 8, 64};
const std::vector<std::string> kRungs = {"original", "port", "optimized"};
constexpr int64_t kWantedBatches = 20;  // heads are cut before fewer than these are replayed

struct DemoFlags {
  double time_limit = 120;
  ExecutionFlags execution;
};

// The batches of one B, and how many heads fit into its share of time and memory.
struct Part {
  int64_t batch = 0, heads = 0;
  std::vector<Batch> batches;
};

std::vector<Batch> BatchesOf(int64_t sequences) {
  std::vector<Batch> batches;
  for (const Replay& replay : ShareGptReplays()) {
    if (replay.batch != sequences) continue;
    for (int64_t length : replay.lengths) batches.push_back(Batch::Of(sequences, length));
  }
  return batches;
}

MeasureFlags DemoMeasure() {
  MeasureFlags measure;
  measure.auto_seconds = 0.05;
  measure.auto_min = 1;
  measure.auto_max = 5;
  measure.verify_budget = 512;
  return measure;
}

// Seconds that one token of one head costs all implementations together, each run once.
double CostPerTokenHead(const std::vector<Implementation>& which) {
  const Batch batch = Batch::Of(8, 96);
  MeasureFlags measure = DemoMeasure();
  measure.repeat = 1;
  const int64_t heads = 8;
  Progress progress("demo, how fast this machine is");
  Bench bench({}, measure, heads, {batch}, KDA_PREFILL, which, &progress);
  double milliseconds = 0;
  for (const Measurement& m : bench.Run(batch, which, /*alone=*/true, &progress))
    milliseconds += m.time.median;
  return milliseconds / 1e3 / double(batch.Tokens() * heads);
}

// Bytes that the largest batch needs with that many heads.
int64_t BytesNeeded(const Batch& largest, int64_t heads, const std::vector<Implementation>& which) {
  // A plan takes shapes only, and no memory is touched.
  Case shape =
      PackedCase(DescribeInputs({}, heads, largest.Tokens(), largest.sequences()), largest);
  DescribeOutputs(KDA_BF16, &shape);
  int64_t workspace = 0;
  for (const Implementation& implementation : which) {
    const PlanInfo info = CreatePlan(shape, implementation.options).Info();
    workspace = std::max(workspace, static_cast<int64_t>(info.workspace_size));
  }
  return workspace + InputBytes({}, heads, largest.Tokens(), largest.sequences());
}

Part FitPart(int64_t sequences, double seconds, double cost,
             const std::vector<Implementation>& which) {
  Part part;
  part.batch = sequences;
  part.batches = BatchesOf(sequences);
  double tokens = 0;
  const Batch* largest = &part.batches[0];
  for (const Batch& batch : part.batches) {
    tokens += double(batch.Tokens()) / double(part.batches.size());
    if (batch.Tokens() > largest->Tokens()) largest = &batch;
  }
  const int64_t memory = AvailableMemory();
  for (const int64_t heads : {kK3Heads, int64_t{16}, int64_t{8}, int64_t{4}, int64_t{2}}) {
    part.heads = heads;
    // Each batch runs about three times: verified, warmed up, timed.
    const double each = 3 * tokens * double(heads) * cost;
    const double longest = 3 * double(largest->Tokens() * heads) * cost;
    const bool fits = memory == 0 || BytesNeeded(*largest, heads, which) < memory / 2;
    if (fits && each * kWantedBatches < seconds && longest < seconds / 2) break;
  }
  return part;
}

std::vector<Point> ReplayPart(const Part& part, double seconds,
                              const std::vector<Implementation>& which) {
  const Stopwatch watch;
  Progress progress(fmt::format("B = {}", part.batch));
  Bench bench({}, DemoMeasure(), part.heads, part.batches, KDA_PREFILL, which, &progress);
  std::vector<Point> points;
  for (const Batch& batch : part.batches) {
    const double by_time = watch.Seconds() / seconds;
    if (by_time >= 1 && !points.empty()) break;
    const double by_count = double(points.size()) / double(part.batches.size());
    progress.Update(std::min(1.0, std::max(by_time, by_count)), batch.Describe());
    std::vector<Measurement> measurements = bench.Run(batch, which, /*alone=*/false, &progress);
    points.push_back({batch, bench.verified(), std::move(measurements)});
  }
  return points;
}

void PrintIntroduction(const DemoFlags& flags, const std::vector<Implementation>& which) {
  const CpuInfo& cpu = ReadCpuInfo();
  fmt::print(
      "Kimi Delta Attention (KDA) keeps one [128, 128] state per head and updates it with every\n"
      "token; prefill computes 64 tokens at a time. Here it runs on the lengths of real prompts\n"
      "(ShareGPT under Kimi K3's tokenizer: half have 28 tokens or fewer, the longest 1024), as\n"
      "batches of B sequences, with bf16 inputs, Kimi K3's bounded gate and a non-zero state, in\n"
      "three implementations:\n"
      "  original   four stages through memory, intra-chunk part element by element\n"
      "  port       the same, with the intra-chunk part as matrix products\n"
      "  optimized  one fused pass over the chunks that exist, several heads at a time\n"
      "A part of every batch is checked against the recurrence in fp64 before it is timed, and "
      "the\n"
      "three are timed in turns.\n\n");
  fmt::print("{}, {}; at most about {:.0f} s.\n\n", cpu.model,
             Counted(which[0].options.threads, "thread"), flags.time_limit);
  std::fflush(stdout);
}

void PrintPart(const Part& part, const std::vector<Point>& points) {
  fmt::print("B = {}: {} of {} batches replayed, {} heads{}\n", part.batch, points.size(),
             part.batches.size(), part.heads,
             part.heads < kK3Heads ? fmt::format(" (of K3's {}, to keep it short)", kK3Heads) : "");
  fmt::print("{}", ReplayTable(part.batch, points));
  fmt::print("\n");
  std::fflush(stdout);
}

void PrintSpeedups(const std::vector<std::vector<Point>>& parts) {
  fmt::print("Speed-up over original (geometric mean over batches):\n");
  double largest = 1;
  for (const auto& points : parts) {
    for (const Comparison& c : ComparePairs(points)) {
      largest = std::max(largest, GeometricMean(c.ratios));
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const Comparison& c : ComparePairs(parts[i])) {
      if (c.slow != kRungs[0] || c.ratios.empty()) continue;
      const double gain = GeometricMean(c.ratios);
      const auto [low, high] = std::minmax_element(c.ratios.begin(), c.ratios.end());
      fmt::print("  B = {:<3} {:<10} {:6.2f}x  {:<40}  {:.2f}x to {:.2f}x, {} of {} faster\n",
                 kBatchSizes[i], c.fast, gain,
                 std::string(static_cast<size_t>(std::max(1.0, 40 * gain / largest)), '#'), *low,
                 *high, c.Faster(), c.ratios.size());
    }
  }
}

int RunDemo(const DemoFlags& flags, const Context& context) {
  ExecutionFlags execution = flags.execution;
  execution.rungs = kRungs;
  const std::vector<Implementation> which = Implementations(execution, KDA_PREFILL);
  BytesNeeded(Batch::Of(1, 1), kK3Heads, which);  // what cannot run is refused before all else
  PrintIntroduction(flags, which);
  const Stopwatch watch;
  const double cost = CostPerTokenHead(which);
  std::vector<std::vector<Point>> parts;
  std::vector<Point> all;
  int64_t failures = 0;
  for (size_t i = 0; i < kBatchSizes.size(); ++i) {
    const double share =
        std::max(1.0, flags.time_limit - watch.Seconds()) / double(kBatchSizes.size() - i);
    const Part part = FitPart(kBatchSizes[i], share, cost, which);
    parts.push_back(ReplayPart(part, share, which));
    PrintPart(part, parts.back());
    failures += ReportFailures(parts.back());
    all.insert(all.end(), parts.back().begin(), parts.back().end());
  }
  fmt::print("Columns:\n{}\n", kReplayLegend);
  PrintSpeedups(parts);
  fmt::print(
      "\nVerified against fp64: {} (limit: relative error {:.0e}; above, the largest of each).\n",
      failures == 0 ? "a part of every result" : fmt::format("{} results are OFF", failures),
      all[0].measurements[0].verdicts[0].limit);
  fmt::print(
      "Of each batch, as many (sequence, head) pairs as have {} tokens together were checked.\n",
      DemoMeasure().verify_budget);
  fmt::print("\nWhat ran:\n{}", WhatRan(all));
  fmt::print(
      "\nNext:\n"
      "  {0} ladder                         what each of the five steps gains\n"
      "  {0} bench --workload sharegpt --rung original,port,optimized    all 700 batches\n"
      "  {0} verify --seqlen 300 --heads 4  a whole problem against fp64\n"
      "  {0} run --help                     your own tensors\n",
      context.program);
  return failures == 0 ? 0 : kExitFailed;
}

}  // namespace

void AddDemo(CLI::App* app, Context* context) {
  const auto flags = std::make_shared<DemoFlags>();
  CLI::App* command = app->add_subcommand(
      "demo", "real prompt lengths, three implementations, verified and timed (about 2 minutes)");
  command->footer("Examples:\n  kda demo\n  kda demo --time-limit 30 --threads 1");
  command->add_option("--time-limit", flags->time_limit, "seconds, about")
      ->check(PositiveNumber())
      ->capture_default_str();
  command->add_option("--isa", flags->execution.isas, "instruction set to force")
      ->check(OneOf(IsaNames()))
      ->expected(1);
  AddThreadsFlag(command, &flags->execution);
  command->callback([flags, context] { context->exit_code = RunDemo(*flags, *context); });
}

}  // namespace kda::cli
