// kda bench: timings of verified runs.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/error.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/table.h"

namespace kda::cli {
namespace {

struct BenchFlags {
  std::string workload;
  int64_t batch = 1, heads = 0;
  std::optional<int64_t> seqlen;
  std::vector<int64_t> lengths;
  bool decode = false;
  int64_t batches = 100;  // sharegpt only
  double time_limit = 0;
  GeneratorFlags generator;
  MeasureFlags measure;
  ExecutionFlags execution;
  bool json = false;
};

const char kFooter[] =
    "Workloads (K = V = 128; another number of heads with --heads):\n"
    "  headline  4 sequences of 2048 tokens, 16 heads\n"
    "  k3        1 sequence of 128 to 8192 tokens, 24 heads (Kimi K3, one of four chips)\n"
    "  grid      56 points: 8 to 1024 tokens x 1 to 64 sequences, 24 heads\n"
    "  sharegpt  for B = 1 to 64, 100 batches of B sequences with the lengths of real prompts\n"
    "Each result is verified against the fp64 oracle first (a part of it where it is large; the\n"
    "record says which); several rungs or instruction sets are timed in turns.\n"
    "Examples:\n"
    "  kda bench --workload headline --threads 1\n"
    "  kda bench --batch 4 --seqlen 300 --heads 8 --rung original,port,optimized\n"
    "  kda bench --batch 64 --decode --heads 24\n"
    "  kda bench --workload sharegpt --batches 10 --rung original,optimized --time-limit 120\n"
    "  kda bench --workload headline --warmup 20 --repeat 100 --json > result.json";

// The problems of one command.
struct Work {
  std::string name;
  std::vector<Batch> batches;
  std::vector<int64_t> replay;  // sharegpt: the B of each batch, in groups
  int64_t heads = kHeadlineHeads;
  kda_mode mode = KDA_PREFILL;
};

Work MakeWork(const BenchFlags& flags) {
  Work work;
  work.name = flags.workload.empty() ? "custom" : flags.workload;
  if (flags.workload == "headline") {
    work.batches = HeadlineWorkload();
  } else if (flags.workload == "k3") {
    work.batches = K3Workload();
    work.heads = kK3Heads;
  } else if (flags.workload == "grid") {
    work.batches = GridWorkload();
    work.heads = kK3Heads;
  } else if (flags.workload == "sharegpt") {
    work.heads = kK3Heads;
    for (const Replay& replay : ShareGptReplays()) {
      const size_t count = std::min(replay.lengths.size(), static_cast<size_t>(flags.batches));
      for (size_t i = 0; i < count; ++i) {
        work.batches.push_back(Batch::Of(replay.batch, replay.lengths[i]));
        work.replay.push_back(replay.batch);
      }
    }
  } else if (!flags.lengths.empty()) {
    work.batches = {Batch{flags.lengths}};
  } else {
    work.batches = {Batch::Of(flags.batch, flags.seqlen.value_or(flags.decode ? 1 : 1024))};
  }
  if (flags.decode) work.mode = KDA_DECODE;
  if (flags.heads > 0) work.heads = flags.heads;
  return work;
}

MeasureFlags Measures(const BenchFlags& flags) {
  MeasureFlags measure = flags.measure;
  if (flags.workload != "sharegpt") return measure;
  // 700 batches: the spread over batches is what counts, so few runs of each.
  measure.auto_seconds = 0.05;
  measure.auto_min = 1;
  measure.auto_max = 5;
  measure.verify_budget = std::min<int64_t>(measure.verify_budget, 1024);
  return measure;
}

struct Outcome {
  std::vector<Point> points;
  int64_t skipped = 0;  // beyond the time limit
  std::optional<double> zero_state_ratio;
};

Outcome MeasureAll(const BenchFlags& flags, const Work& work,
                   const std::vector<Implementation>& which, Progress* progress, Bench* bench) {
  Outcome outcome;
  const Stopwatch watch;
  double all = 0, done = 0;
  for (const Batch& batch : work.batches) all += 64 + double(batch.Tokens());
  for (const Batch& batch : work.batches) {
    if (flags.time_limit > 0 && watch.Seconds() > flags.time_limit) {
      ++outcome.skipped;
      continue;
    }
    const bool alone = work.batches.size() == 1;
    if (!alone) progress->Update(done / all, batch.Describe());
    std::vector<Measurement> measurements = bench->Run(batch, which, alone, progress);
    outcome.points.push_back({batch, bench->verified(), std::move(measurements)});
    done += 64 + double(batch.Tokens());
  }
  if (outcome.skipped == 0 && !work.batches.empty()) {
    progress->Update(0.99, "zero state against random state");
    outcome.zero_state_ratio =
        bench->ZeroStateRatio(work.batches[work.batches.size() / 2], which.back());
  }
  return outcome;
}

// The points of one B; all of them where nothing is replayed.
std::vector<Point> PointsOf(const Work& work, const std::vector<Point>& points, int64_t batch) {
  std::vector<Point> group;
  for (size_t i = 0; i < points.size(); ++i) {
    if (work.replay.empty() || work.replay[i] == batch) group.push_back(points[i]);
  }
  return group;
}

std::vector<int64_t> ReplayedBatches(const Work& work) {
  std::vector<int64_t> batches = work.replay;
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  return batches;
}

void PrintJson(const BenchFlags& flags, const Work& work, const Outcome& outcome,
               const Bench& bench, const Context& context) {
  Json json = {{"manifest", Manifest(context)}};
  Json& manifest = json["manifest"];
  AddToManifest(flags.generator, flags.execution, bench, &manifest);
  manifest["workload"] = work.name;
  manifest["mode"] = work.mode == KDA_DECODE ? "decode" : "prefill";
  json["results"] = Json::array();
  const int64_t value_heads = work.heads * flags.generator.group;
  for (const Point& point : outcome.points) {
    for (const Measurement& m : point.measurements) {
      json["results"].push_back(
          MeasurementJson(m, point.batch, work.heads, value_heads, point.verified));
    }
  }
  json["comparisons"] = Json::array();
  for (const Comparison& comparison : ComparePairs(outcome.points)) {
    json["comparisons"].push_back(comparison.ToJson());
  }
  if (!work.replay.empty()) {
    json["replays"] = Json::array();
    for (int64_t batch : ReplayedBatches(work)) {
      json["replays"].push_back(ReplayJson(batch, PointsOf(work, outcome.points, batch)));
    }
  }
  json["zero_state_ratio"] =
      outcome.zero_state_ratio ? Json(*outcome.zero_state_ratio) : Json(nullptr);
  json["complete"] = outcome.skipped == 0;
  json["skipped_by_time_limit"] = outcome.skipped;
  fmt::print("{}\n", json.dump(2));
}

void PrintComparisons(const Work& work, const std::vector<Point>& points, size_t of) {
  for (const Comparison& comparison : ComparePairs(points)) {
    fmt::print("  {}\n", work.batches.size() == 1
                             ? fmt::format("{} against {}: {:.2f}x", comparison.fast,
                                           comparison.slow, GeometricMean(comparison.ratios))
                             : comparison.Describe(of));
  }
}

void PrintForPeople(const BenchFlags& flags, const Work& work, const Outcome& outcome,
                    const Bench& bench) {
  if (outcome.points.empty()) {
    fmt::print("nothing was measured within the time limit\n");
    return;
  }
  const int64_t value_heads = work.heads * flags.generator.group;
  const Json& ran = outcome.points[0].measurements[0].ran;
  fmt::print("{}: {}, K = {}, V = {}, {}{}, {}{}\n\n", work.name, Counted(work.heads, "head"),
             flags.generator.dim_k, flags.generator.dim_v,
             work.mode == KDA_DECODE ? "decode" : "prefill",
             ran["backend"] == "reference" ? ", the recurrence in fp64 (backend reference)" : "",
             Counted(ran["threads"].get<int>(), "thread"), bench.pinned() ? ", pinned" : "");
  if (work.replay.empty()) {
    fmt::print("{}", PointsTable(outcome.points, value_heads));
    fmt::print("\nVerified before timing, against the fp64 recurrence: {}{}\n",
               outcome.points.back().verified,
               outcome.points.size() > 1 ? " (of the last point; --json has each)" : "");
    if (ComparePairs(outcome.points).size() > 0) fmt::print("\nTimed in turns:\n");
    PrintComparisons(work, outcome.points, work.batches.size());
  } else {
    for (int64_t batch : ReplayedBatches(work)) {
      const std::vector<Point> points = PointsOf(work, outcome.points, batch);
      const auto asked = std::count(work.replay.begin(), work.replay.end(), batch);
      if (points.empty()) continue;
      fmt::print("{}", ReplayTable(batch, points));
      PrintComparisons(work, points, static_cast<size_t>(asked));
      fmt::print("\n");
    }
    fmt::print("Columns:\n{}\n", kReplayLegend);
    fmt::print("All {} batches:\n", outcome.points.size());
    PrintComparisons(work, outcome.points, work.batches.size());
    fmt::print("Verified before timing, against the fp64 recurrence: every batch, of the last {}\n",
               outcome.points.back().verified);
  }
  fmt::print("\nWhat ran:\n{}", WhatRan(outcome.points));
  if (outcome.zero_state_ratio) {
    fmt::print("A zero initial state takes {:.3f} of the time of a random one.\n",
               *outcome.zero_state_ratio);
  }
  if (outcome.skipped > 0) {
    fmt::print("The time limit of {} s cut off {} of {} problems.\n", flags.time_limit,
               outcome.skipped, work.batches.size());
  }
}

int RunBench(const BenchFlags& flags, const Context& context) {
  const Work work = MakeWork(flags);
  const std::vector<Implementation> which = Implementations(flags.execution, work.mode);
  std::optional<Progress> progress("bench " + work.name);
  Bench bench(flags.generator, Measures(flags), work.heads, work.batches, work.mode, which,
              &*progress);
  const Outcome outcome = MeasureAll(flags, work, which, &*progress, &bench);
  progress.reset();
  if (flags.json) {
    PrintJson(flags, work, outcome, bench, context);
  } else {
    PrintForPeople(flags, work, outcome, bench);
  }
  return ReportFailures(outcome.points) > 0 ? kExitFailed : 0;
}

}  // namespace

void AddBench(CLI::App* app, Context* context) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app->add_subcommand("bench", "time verified runs");
  command->footer(kFooter);
  const std::string group = "Problem";
  CLI::Option* workload =
      command
          ->add_option("--workload", flags->workload, "a named set of problems (default: headline)")
          ->check(OneOf({"headline", "k3", "grid", "sharegpt"}))
          ->group(group);
  CLI::Option* batch = command->add_option("--batch", flags->batch, "sequences, packed")
                           ->check(WholeNumberIn(1, 65536))
                           ->capture_default_str();
  CLI::Option* seqlen =
      command->add_option("--seqlen", flags->seqlen, "tokens of each (default: 1024; decode: 1)")
          ->check(WholeNumberIn(1, 1 << 24));
  CLI::Option* lengths =
      command->add_option("--lengths", flags->lengths, "different lengths instead, packed")
          ->check(WholeNumberIn(1, 1 << 24).description(""))
          ->delimiter(',')
          ->type_name("N[,N...]");
  for (CLI::Option* option : {batch, seqlen, lengths}) option->excludes(workload)->group(group);
  lengths->excludes(batch)->excludes(seqlen);
  command->add_option("--heads", flags->heads, "query/key heads (default: the workload's, or 16)")
      ->check(WholeNumberIn(1, 1024))
      ->group(group);
  command->add_flag("--decode", flags->decode, "decode: token by token from given states")
      ->excludes(workload)
      ->group(group);
  CLI::Option* batches =
      command->add_option("--batches", flags->batches, "sharegpt: the first N of each B's 100")
          ->check(WholeNumberIn(1, 100))
          ->group(group);
  AddMeasureFlags(command, &flags->measure);
  command
      ->add_option("--time-limit", flags->time_limit,
                   "seconds after which no further problem is begun")
      ->check(PositiveNumber())
      ->group("Measurement");
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddExecutionFlags(command, /*lists=*/true, &flags->execution);
  AddGeneratorFlags(command, /*semantics=*/true, &flags->generator);
  command->callback([flags, context, batch, seqlen, lengths, batches] {
    if (batches->count() > 0 && flags->workload != "sharegpt") {
      BadArgument("--batches: {} has no meaning without --workload sharegpt", flags->batches);
    }
    const bool shaped = batch->count() + seqlen->count() + lengths->count() > 0 || flags->decode;
    if (flags->workload.empty() && !shaped) flags->workload = "headline";
    context->exit_code = RunBench(*flags, *context);
  });
}

}  // namespace kda::cli
