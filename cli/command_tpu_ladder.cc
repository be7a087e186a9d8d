// kda tpu ladder and bars: the published rungs and the library's own kernel, predicted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "cli/command_tpu.h"
#include "cli/error.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tpu_flags.h"
#include "cli/tpu_published.h"
#include "cli/tpu_report.h"
#include "cli/workload.h"

namespace kda::cli {
namespace {

struct LadderFlags {
  TpuFlags tpu;
  bool json = false;
};

const char kLadderFooter[] =
    "Each rung turns one more switch on, as it was published; serial is the last one with its "
    "heads "
    "in a\n"
    "loop of the kernel. mega is the library's own. The step is the gain over the rung before "
    "(serial and\n"
    "optimized: over flat_grid). Predicted are device times; published are wall times that others\n"
    "measured on a v6e, with the host's 0.12 ms in them, where there are any for the shape.\n"
    "It takes minutes: eight programs one after another, each 5 to 60 s of libtpu on an idle "
    "machine.\n"
    "Examples:\n"
    "  kda tpu ladder                                          the headline\n"
    "  kda tpu ladder --batch 64 --seqlen 1024 --heads 24";

const char kBarsFooter[] =
    "Each bar is a time to reach, predicted for a v6e, beside the best TPU kernel there was as the "
    "same\n"
    "predictor sees it. Exit code 1 when one is missed. It takes minutes: seven programs one "
    "after\n"
    "another, each 10 to 40 s of libtpu on an idle machine.\n"
    "Examples:\n"
    "  kda tpu bars\n"
    "  kda tpu bars --json";

// One row: a program and what became of it.
struct Row {
  std::string name, what;
  TpuFlags flags;
  int before = -1;  // the row it is compared with
  std::string error;
  std::string description;
  std::optional<tpu::Report> report;
  std::optional<double> published;

  double ms() const { return report->prediction.device_ms; }
};

// A libtpu that is not there fails every row; anything else this one.
void PredictRow(Row* row, const std::function<void()>& show) {
  try {
    const tpu::BuiltProgram program = BuildTpuProgram(MakeTpuRequest(row->flags));
    row->description = program.description;
    tpu::Report report;
    WithProgress(show, [&] { report = tpu::PredictProgram(program, MakeSettings(row->flags)); });
    if (report.compiled.status == tpu::CompileStatus::kNoLibtpu ||
        report.compiled.status == tpu::CompileStatus::kBadLibtpu) {
      CheckCompiled(report.compiled);
    }
    row->error = report.error;
    // The code is large, and nobody asks for it again.
    report.schedule.programs.clear();
    report.compiled.storage.reset();
    if (report.ok()) row->report = std::move(report);
  } catch (const Error& error) {
    if (error.exit_code != kExitArgument) throw;
    row->error = error.what();
  }
}

void PredictRows(const char* task, std::vector<Row>* rows) {
  Progress progress(task);
  // A contradiction is found before anything is compiled.
  for (const Row& row : *rows) MakeTpuRequest(row.flags);
  const auto count = static_cast<int64_t>(rows->size());
  for (int64_t i = 0; i < count; ++i) {
    Row& row = (*rows)[static_cast<size_t>(i)];
    PredictRow(&row, [&] { progress.Step(i, count, row.name); });
  }
}

int Failures(const std::vector<Row>& rows) {
  int failures = 0;
  for (const Row& row : rows) {
    if (row.error.empty()) continue;
    ++failures;
    fmt::print(stderr, "not predicted: {}: {}\n", row.name, OneLine(row.error));
  }
  return failures;
}

std::vector<Row> LadderRows(const TpuFlags& flags) {
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, const std::string& what, int before) {
    Row row;
    row.name = name;
    row.what = what;
    row.flags = flags;
    row.before = before;
    const bool as_published = flags.gate == "bounded" && flags.gate_dtype.empty() &&
                              flags.beta_dtype.empty() && !flags.qk_l2norm && !flags.beta_logits &&
                              !flags.lower_bound && !flags.no_initial_state &&
                              !flags.no_final_state;
    if (as_published) row.published = PublishedMs(LengthsOf(flags), flags.heads, name);
    rows.push_back(row);
    return &rows.back();
  };
  const char* name = nullptr;
  uint32_t on = 0, before = 0;
  for (int32_t i = 0; kda_rung(i, &name, &on) != 0; ++i) {
    const std::vector<std::string> names = SwitchNames(on & ~before);
    const std::string added =
        names.empty() ? "(all off)" : fmt::format("+{}", fmt::join(names, " +"));
    before = on;
    const int last = static_cast<int>(rows.size()) - 1;
    if (on == KDA_SWITCHES_ALL) {
      Row* serial = add("serial", added + ", in a loop", last);
      serial->flags.kernel = "ladder";
      serial->flags.form = "serial";
    }
    Row* row = add(name, added, last);
    row->flags.kernel = "ladder";
    row->flags.rung = name;
  }
  add("mega", "one kernel", static_cast<int>(rows.size()) - 1)->flags.kernel = "mega";
  return rows;
}

std::string Gain(double before, double now) { return fmt::format("{:.2f}x", before / now); }

void PrintLadder(const std::vector<Row>& rows, const TpuFlags& flags) {
  fmt::print("{}, {}, {} gate, for {}\n", Batch{LengthsOf(flags)}.Describe(),
             Counted(flags.heads, "head"), flags.gate, flags.target);
  fmt::print("{}: device time\n{}: wall time\n\n", tpu::kPredictedFigure, kPublishedFigure);
  Table table({"rung", "switch", "predicted", "step", "total", "kernels", "XLA", "published",
               "step", "total"});
  for (const Row& row : rows) {
    const Row* before = row.before < 0 ? nullptr : &rows[static_cast<size_t>(row.before)];
    const Row& first = rows[0];
    std::vector<std::string> cells = {row.name, row.what};
    if (row.report) {
      const tpu::Prediction& p = row.report->prediction;
      cells.push_back(HumanTime(p.device_ms));
      cells.push_back(before != nullptr && before->report ? Gain(before->ms(), row.ms()) : "-");
      cells.push_back(first.report && before != nullptr ? Gain(first.ms(), row.ms()) : "-");
      cells.push_back(HumanTime(p.kernels_ms));
      cells.push_back(HumanTime(p.xla_ms));
    } else {
      cells.insert(cells.end(), {"-", "-", "-", "-", "-"});
    }
    if (row.published) {
      cells.push_back(HumanTime(*row.published));
      cells.push_back(
          before != nullptr && before->published ? Gain(*before->published, *row.published) : "-");
      cells.push_back(before != nullptr && first.published ? Gain(*first.published, *row.published)
                                                           : "-");
    } else {
      cells.insert(cells.end(), {"-", "-", "-"});
    }
    table.Add(cells);
  }
  fmt::print("{}\nWhat was compiled:\n", table.Text());
  for (const Row& row : rows) {
    if (!row.description.empty()) fmt::print("  {}: {}\n", row.name, row.description);
  }
}

void PrintLadderJson(const std::vector<Row>& rows, const TpuFlags& flags, const Context& context) {
  Json json = {{"manifest", Manifest(context)}, {"target", flags.target}};
  json["figure"] = tpu::kPredictedFigure;
  json["published_figure"] = kPublishedFigure;
  json["lengths"] = LengthsOf(flags);
  json["heads"] = flags.heads;
  json["results"] = Json::array();
  for (const Row& row : rows) {
    Json record = {{"rung", row.name}, {"switch", row.what}, {"program", row.description}};
    if (row.report) {
      record.update(ReportJson(*row.report));
      const Row* before = row.before < 0 ? nullptr : &rows[static_cast<size_t>(row.before)];
      record["step"] =
          before != nullptr && before->report ? Json(before->ms() / row.ms()) : Json(nullptr);
      record["total"] = rows[0].report ? Json(rows[0].ms() / row.ms()) : Json(nullptr);
      record["compiled"] = CompiledJson(row.report->compiled, row.flags);
    } else {
      record["error"] = row.error;
    }
    record["published_ms"] = row.published ? Json(*row.published) : Json(nullptr);
    json["results"].push_back(record);
  }
  fmt::print("{}\n", json.dump(2));
}

int Ladder(const LadderFlags& flags, const Context& context) {
  std::vector<Row> rows = LadderRows(flags.tpu);
  PredictRows("tpu ladder", &rows);
  if (flags.json) {
    PrintLadderJson(rows, flags.tpu, context);
  } else {
    PrintLadder(rows, flags.tpu);
  }
  return Failures(rows) > 0 ? kExitFailed : 0;
}

// --- Bars ----------------------------------------------------------------------------------------

struct Bar {
  const char* name;
  int64_t batch, seqlen, heads;
  const char* gate;
  const char* kernel;
  // Predicted as ours are: the published optimized kernel, the best TPU kernel there was (0: none).
  double published, best;
  double bar;  // ms; 0: of decode
};

constexpr char kBarsTarget[] = "v6e";
// The libtpu that compiled Bar::published for its prediction, and the
// programs that others measured.
constexpr char kPublishedCompiler[] = "libtpu 0.0.42";

// docs/tpu.md says whose kernels these are.
constexpr Bar kBars[] = {
    {"headline, bounded gate", 4, 2048, 16, "bounded", "mega", 2.61, 0.47, 0.24},
    {"headline, unbounded gate", 4, 2048, 16, "softplus", "mega", 0, 1.96, 0.45},
    {"S=8192 B=1 H=24", 1, 8192, 24, "bounded", "mega", 3.68, 0.65, 0.36},
    {"S=1024 B=64 H=24", 64, 1024, 24, "bounded", "mega", 33.1, 5.4, 2.9},
    {"S=8 B=64 H=24", 64, 8, 24, "bounded", "mega", 2.36, 2.0, 0.40},
    {"S=128 B=1 H=24", 1, 128, 24, "bounded", "mega", 0.075, 0.016, 0.015},
    {"decode B=64 H=24", 64, 1, 24, "bounded", "decode", 0, 0, 0},
};

// Of decode: 1.3 times the states' reading and writing at the predictor's bandwidth.
double BarMs(const Bar& bar) {
  if (bar.bar > 0) return bar.bar;
  const double bytes = 2.0 * 4 * static_cast<double>(bar.batch * bar.heads * tpu::kDim * tpu::kDim);
  return 1.3 * bytes / (tpu::ConstantsOf(*tpu::FindTarget(kBarsTarget)).kernel_hbm_tb_s * 1e9);
}

int Bars(const LadderFlags& flags, const Context& context) {
  if (flags.tpu.target != kBarsTarget) {
    BadArgument("--target: '{}': the bars are times of a {}", flags.tpu.target, kBarsTarget);
  }
  std::vector<Row> rows;
  for (const Bar& bar : kBars) {
    Row row;
    row.name = bar.name;
    row.flags = flags.tpu;
    row.flags.batch = bar.batch;
    row.flags.seqlen = bar.seqlen;
    row.flags.heads = bar.heads;
    row.flags.gate = bar.gate;
    row.flags.kernel = bar.kernel;
    rows.push_back(row);
  }
  PredictRows("tpu bars", &rows);
  int missed = 0;
  Json json = {{"manifest", Manifest(context)},
               {"figure", tpu::kPredictedFigure},
               {"published_compiler", kPublishedCompiler},
               {"target", flags.tpu.target},
               {"bars", Json::array()}};
  Table table({"shape", "kernel", "predicted", "bar", "", "best TPU kernel before", "ours is",
               "published optimized", "measured", "bound"});
  const auto time = [](double ms) { return ms > 0 ? HumanTime(ms) : "-"; };
  const auto optional = [](double ms) { return ms > 0 ? Json(ms) : Json(nullptr); };
  for (size_t i = 0; i < rows.size(); ++i) {
    const Bar& bar = kBars[i];
    const Row& row = rows[i];
    const double limit = BarMs(bar);
    std::optional<double> measured;
    if (bar.published > 0) measured = PublishedMs(LengthsOf(row.flags), bar.heads, "optimized");
    const bool met = row.report && row.ms() <= limit;
    missed += met ? 0 : 1;
    const std::string bound = row.report && !row.report->prediction.kernels.empty()
                                  ? tpu::BoundName(row.report->prediction.kernels.back().bound)
                                  : "-";
    table.Add({bar.name, bar.kernel, row.report ? HumanTime(row.ms()) : "-", HumanTime(limit),
               !row.report ? "not there"
               : met       ? "met"
                           : "MISSED",
               time(bar.best), row.report && bar.best > 0 ? Gain(bar.best, row.ms()) : "-",
               time(bar.published), measured ? HumanTime(*measured) : "-", bound});
    Json record = {{"name", bar.name},     {"kernel", bar.kernel}, {"batch", bar.batch},
                   {"seqlen", bar.seqlen}, {"heads", bar.heads},   {"gate", bar.gate}};
    record["predicted_ms"] = row.report ? Json(row.ms()) : Json(nullptr);
    record["bar_ms"] = limit;
    record["met"] = met;
    record["best_before_ms"] = optional(bar.best);
    record["published_optimized_ms"] = optional(bar.published);
    record["published_optimized_measured_ms"] = measured ? Json(*measured) : Json(nullptr);
    if (row.report) record.update(ReportJson(*row.report));
    if (!row.error.empty()) record["error"] = row.error;
    json["bars"].push_back(record);
  }
  if (flags.json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print(
        "{}, device time, for {}: all but the column \"measured\"\n"
        "measured: the published optimized kernel, wall time on a v6e, by others, with {}; the "
        "column\n"
        "before it is its prediction as compiled by the same\n\n{}",
        tpu::kPredictedFigure, flags.tpu.target, kPublishedCompiler, table.Text());
  }
  Failures(rows);
  return missed > 0 ? kExitFailed : 0;
}

}  // namespace

void AddTpuLadder(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<LadderFlags>();
  CLI::App* command = tpu->add_subcommand(
      "ladder",
      "the published rungs and mega one after another, predicted, beside what was measured");
  command->footer(kLadderFooter);
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddTpuProblemFlags(command, &flags->tpu);
  AddTpuCompilerFlags(command, &flags->tpu);
  command->callback([flags, context] { context->exit_code = Ladder(*flags, *context); });
}

void AddTpuBars(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<LadderFlags>();
  CLI::App* command = tpu->add_subcommand(
      "bars", "the times that this library's TPU kernels have to reach on a v6e");
  command->footer(kBarsFooter);
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddTpuCompilerFlags(command, &flags->tpu);
  command->get_option("--target")->group("");  // any but a v6e is refused by name
  command->callback([flags, context] { context->exit_code = Bars(*flags, *context); });
}

}  // namespace kda::cli
