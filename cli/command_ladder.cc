// kda ladder: the rungs of the optimisation ladder, one after another, on one problem.
#include <fmt/format.h>
#include <fmt/ranges.h>

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

// P10, P25, P50, P75, P90, P95, P99 and the longest of the ShareGPT-derived prompt lengths.
const std::vector<int64_t> kDefaultLengths = {8, 13, 28, 94, 336, 571, 928, 1024};

struct LadderFlags {
  std::string workload;
  std::vector<int64_t> lengths = kDefaultLengths;
  int64_t heads = 0;
  GeneratorFlags generator;
  MeasureFlags measure;
  ExecutionFlags execution;
  bool json = false;
};

const char kFooter[] =
    "Each rung turns one more switch on (kda info --switches says what each does). All are "
    "verified\n"
    "against the fp64 oracle, then timed in turns. The step is the gain over the rung before, the\n"
    "total that over the first; the bar is the time.\n"
    "Examples:\n"
    "  kda ladder                              real prompt lengths, 8 to 1024 tokens\n"
    "  kda ladder --workload headline --threads 1\n"
    "  kda ladder --lengths 2048,512,7 --heads 4 --isa avx2";

// "+fuse" for one more switch than the rung before.
std::string Added(uint32_t on, uint32_t before) {
  const std::vector<std::string> names = SwitchNames(on & ~before);
  return names.empty() ? "(all off)" : fmt::format("+{}", fmt::join(names, " +"));
}

struct Step {
  std::string name, added;
};

std::vector<Step> Steps() {
  std::vector<Step> steps;
  const char* name = nullptr;
  uint32_t on = 0, before = 0;
  for (int32_t i = 0; kda_rung(i, &name, &on) != 0; ++i) {
    steps.push_back({name, Added(on, before)});
    before = on;
  }
  return steps;
}

void PrintLadder(const Point& point, const LadderFlags& flags, const Bench& bench) {
  const std::vector<Step> steps = Steps();
  double slowest = 0;
  for (const Measurement& m : point.measurements) slowest = std::max(slowest, m.time.median);
  const Json& ran = point.measurements[0].ran;
  fmt::print("{}, {}, {}, K = {}, V = {}; {}, {}{}\n\n",
             Counted(point.batch.sequences(), "sequence"), Counted(point.batch.Tokens(), "token"),
             Counted(flags.heads, "head"), flags.generator.dim_k, flags.generator.dim_v,
             IsaRan(ran), Counted(ran["threads"].get<int>(), "thread"),
             bench.pinned() ? ", pinned" : "");
  Table table({"rung", "switch", "median", "p10", "p90", "step", "total", "max error", "rel error",
               "time"});
  const Measurement *first = nullptr, *before = nullptr;
  for (size_t i = 0; i < point.measurements.size(); ++i) {
    const Measurement& m = point.measurements[i];
    const std::string error = fmt::format("{:.1e}", m.verdicts[0].difference.max_abs);
    const std::string relative =
        fmt::format("{:.1e}", m.verdicts[0].difference.RelativeFrobenius());
    if (!m.passed) {
      table.Add({m.rung, steps[i].added, "-", "-", "-", "-", "-", error, relative, "NOT VERIFIED"});
      continue;
    }
    const auto gain = [&](const Measurement* than) {
      return than == nullptr ? "-" : fmt::format("{:.2f}x", than->time.median / m.time.median);
    };
    const size_t bar = static_cast<size_t>(std::max(1.0, 40 * m.time.median / slowest + 0.5));
    table.Add({m.rung, steps[i].added, HumanTime(m.time.median), HumanTime(m.time.p10),
               HumanTime(m.time.p90), gain(before), gain(first), error, relative,
               std::string(bar, '#')});
    before = &m;
    if (first == nullptr) first = &m;
  }
  fmt::print("{}", table.Text());
  fmt::print("\n{} of each, in turns. Verified before, against the fp64 recurrence: {}\n",
             Counted(point.measurements[0].time.count, "timed run"), point.verified);
  fmt::print("\nWhat ran:\n{}", WhatRan({point}));
}

void PrintJson(const Point& point, const LadderFlags& flags, const Bench& bench,
               const Context& context) {
  Json json = {{"manifest", Manifest(context)}};
  AddToManifest(flags.generator, flags.execution, bench, &json["manifest"]);
  json["results"] = Json::array();
  const Measurement *first = nullptr, *before = nullptr;
  for (const Measurement& m : point.measurements) {
    Json record = MeasurementJson(m, point.batch, flags.heads, flags.heads * flags.generator.group,
                                  point.verified);
    const auto gain = [&](const Measurement* than) {
      return than == nullptr ? Json(nullptr) : Json(than->time.median / m.time.median);
    };
    record["step"] = m.passed ? gain(before) : Json(nullptr);
    record["total"] = m.passed ? gain(first) : Json(nullptr);
    json["results"].push_back(record);
    if (!m.passed) continue;
    before = &m;
    if (first == nullptr) first = &m;
  }
  fmt::print("{}\n", json.dump(2));
}

int RunLadder(LadderFlags* flags, const Context& context) {
  const Batch batch = flags->workload == "headline" ? HeadlineWorkload()[0] : Batch{flags->lengths};
  if (flags->heads == 0) flags->heads = kHeadlineHeads;
  flags->execution.rungs = RungNames();
  const std::vector<Implementation> which = Implementations(flags->execution, KDA_PREFILL);
  std::optional<Progress> progress("ladder");
  Bench bench(flags->generator, flags->measure, flags->heads, {batch}, KDA_PREFILL, which,
              &*progress);
  Point point;
  point.batch = batch;
  point.measurements = bench.Run(batch, which, /*alone=*/true, &*progress);
  progress.reset();
  point.verified = bench.verified();
  if (flags->json) {
    PrintJson(point, *flags, bench, context);
  } else {
    PrintLadder(point, *flags, bench);
  }
  return ReportFailures({point}) > 0 ? kExitFailed : 0;
}

}  // namespace

void AddLadder(CLI::App* app, Context* context) {
  const auto flags = std::make_shared<LadderFlags>();
  flags->measure.auto_seconds = 10;
  flags->measure.auto_max = 20;
  CLI::App* command =
      app->add_subcommand("ladder", "the optimisation steps one after another, verified and timed");
  command->footer(kFooter);
  const std::string group = "Problem";
  CLI::Option* workload =
      command->add_option("--workload", flags->workload, "headline: 4 sequences of 2048 tokens")
          ->check(OneOf({"headline"}))
          ->group(group);
  command->add_option("--lengths", flags->lengths, "tokens of each sequence, packed")
      ->check(WholeNumberIn(1, 1 << 24).description(""))
      ->delimiter(',')
      ->type_name("N[,N...]")
      ->capture_default_str()
      ->excludes(workload)
      ->group(group);
  command->add_option("--heads", flags->heads, "query/key heads (default: 16)")
      ->check(WholeNumberIn(1, 1024))
      ->group(group);
  AddMeasureFlags(command, &flags->measure);
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  command->add_option("--isa", flags->execution.isas, "instruction set to force")
      ->check(OneOf(IsaNames()))
      ->expected(1)
      ->group("How it is computed");
  AddThreadsFlag(command, &flags->execution);
  AddGeneratorFlags(command, /*semantics=*/true, &flags->generator);
  command->callback([flags, context] { context->exit_code = RunLadder(flags.get(), *context); });
}

}  // namespace kda::cli
