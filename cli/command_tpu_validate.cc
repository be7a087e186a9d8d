// kda tpu validate: predicted wall times of the ladder beside those measured on a v6e by others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>

#include "cli/command_tpu.h"
#include "cli/error.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tpu_flags.h"
#include "cli/tpu_published.h"
#include "tpu/hlo/printer.h"
#include "tpu/pjrt/exchange.h"

namespace kda::cli {
namespace {

constexpr int64_t kHeads = 24;  // of the measured grid
constexpr char kAll[] = "all";
// Corners, middle and edges of the grid.
constexpr char kUsualPoints[] = "8x1,8x64,64x8,256x4,1024x1,1024x64";

struct Rung {
  const char* name;      // as the library names it
  const char* measured;  // as the table does
};
constexpr Rung kRungs[] = {
    {"original", "original"}, {"port", "mxu_port"}, {"optimized", "optimized"}};

const char kFooter[] =
    "Of every point (sequence length x sequences) that others measured on a v6e, 24 heads each, "
    "the\n"
    "library's own rungs are compiled and predicted, the host's 0.122 ms added, and the error is\n"
    "|predicted / measured - 1|. The measured kernels are the published ones, the predicted ones "
    "this\n"
    "library's: an error is as much a difference between kernels as one of the predictor\n"
    "(docs/tpu.md).\n"
    "A program takes libtpu 2 s to some minutes on an idle machine, and several times that on a "
    "busy "
    "one; all\n"
    "56 points are 168 programs. One that takes longer than --time-limit is given up on: the "
    "result "
    "names\n"
    "it, and no median has it in it. What is kept in a folder is not compiled again, so that a run "
    "which\n"
    "was ended goes on.\n"
    "Examples:\n"
    "  kda tpu validate                                  6 of the points\n"
    "  kda tpu validate --points all --keep compiled     all 56: half an hour on two idle cores\n"
    "  kda tpu validate --points 8x1,1024x64 --rung optimized";

struct ValidateFlags {
  TpuFlags tpu;
  std::string points = kUsualPoints;
  std::vector<std::string> rungs;
  std::string keep;
  int64_t jobs = 2;
  bool json = false;
};

// A measured point, and what became of its program.
struct Point {
  tpu::MeasuredPoint measured;
  std::string name;  // "1024x64"
  TpuFlags flags;
  std::string error;
  tpu::CompileStatus status = tpu::CompileStatus::kOk;
  tpu::Prediction prediction;

  double ratio() const { return prediction.wall_ms / measured.ms; }
};

// --- Points --------------------------------------------------------------------------------------

std::string NameOf(const tpu::MeasuredPoint& point) {
  return fmt::format("{}x{}", point.tokens, point.batch);
}

std::vector<std::string> Words(const std::string& list) {
  std::vector<std::string> words;
  for (size_t from = 0; from <= list.size();) {
    const size_t to = std::min(list.find(',', from), list.size());
    words.push_back(list.substr(from, to - from));
    from = to + 1;
  }
  return words;
}

std::vector<Point> PointsOf(const ValidateFlags& flags) {
  const std::vector<tpu::MeasuredPoint> measured = tpu::ParseMeasured(kTpuGridCsv);
  const std::vector<std::string> wanted = Words(flags.points);
  for (const std::string& name : wanted) {
    const bool known =
        name == kAll || std::any_of(measured.begin(), measured.end(),
                                    [&](const auto& m) { return NameOf(m) == name; });
    if (!known) BadArgument("--points: nothing was measured at '{}'", OneLine(name));
  }
  std::vector<Point> points;
  for (const Rung& rung : kRungs) {
    const auto& rungs = flags.rungs;
    if (!rungs.empty() && std::find(rungs.begin(), rungs.end(), rung.name) == rungs.end()) continue;
    for (const tpu::MeasuredPoint& m : measured) {
      const auto is_wanted = [&](const std::string& w) { return w == kAll || w == NameOf(m); };
      if (m.implementation != rung.measured ||
          std::none_of(wanted.begin(), wanted.end(), is_wanted)) {
        continue;
      }
      Point point{m, NameOf(m), flags.tpu, "", {}, {}};
      point.flags.kernel = "ladder";
      point.flags.rung = rung.name;
      point.flags.batch = m.batch;
      point.flags.seqlen = m.tokens;
      point.flags.heads = kHeads;
      points.push_back(point);
    }
  }
  return points;
}

// --- Predicting ----------------------------------------------------------------------------------

// Whether `folder` holds the schedule of this very program for this target.
bool IsKept(const std::string& folder, const tpu::CompileRequest& request) {
  std::string text;
  if (folder.empty() || !tpu::ReadFile(folder + tpu::kModuleFile, &text) ||
      text != request.module) {
    return false;
  }
  text.clear();
  tpu::ReadFile(folder + tpu::kRequestFile, &text);
  if (tpu::Field(tpu::ParseRecord(text), "topology") != request.target->topology) return false;
  text.clear();
  tpu::ReadFile(folder + tpu::kResultFile, &text);
  return tpu::Field(tpu::ParseRecord(text), "status") ==
         tpu::CompileStatusName(tpu::CompileStatus::kOk);
}

void PredictPoint(const ValidateFlags& flags, Point* point) {
  const tpu::BuiltProgram program = BuildTpuProgram(MakeTpuRequest(point->flags));
  const tpu::CompileSettings settings = MakeSettings(point->flags);
  tpu::CompileRequest request;
  request.module = tpu::hlo::Print(*program.module);
  request.target = settings.target;
  request.child = settings.child;
  request.libtpu = settings.libtpu;
  request.timeout_seconds = settings.timeout_seconds;
  request.schedule = true;
  if (!flags.keep.empty()) {
    request.folder = fmt::format("{}/{}-{}", flags.keep, point->flags.rung, point->name);
  }
  tpu::CompileResult compiled;
  compiled.dumps = request.folder + tpu::kDumpFolder;
  if (!IsKept(request.folder, request)) {
    std::error_code ignored;  // Compile says what it cannot write
    std::filesystem::remove_all(request.folder, ignored);
    if (!request.folder.empty()) std::filesystem::create_directories(request.folder, ignored);
    compiled = tpu::Compile(request);
    point->status = compiled.status;
    point->error = compiled.message;
    if (!compiled.ok()) return;
  }
  tpu::Schedule schedule;
  if (tpu::ReadSchedule(compiled.dumps, settings.target->delay_slots, &schedule, &point->error)) {
    point->prediction = tpu::Predict(schedule, program.counts, *settings.target);
  }
}

// What is being compiled, by several threads, and for how long.
class AtHand {
 public:
  void Begin(const Point& point) {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_.emplace_back(&point, Clock::now());
  }
  void End(const Point& point) {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_.erase(std::find_if(running_.begin(), running_.end(),
                                [&](const auto& one) { return one.first == &point; }));
  }
  // "original 1024x64 (35 s), optimized 8x1 (2 s)"
  std::string Text() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> words;
    for (const auto& [point, since] : running_) {
      const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
      words.push_back(fmt::format("{} {} ({:.0f} s)", point->flags.rung, point->name, seconds));
    }
    return fmt::format("{}", fmt::join(words, ", "));
  }

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  std::vector<std::pair<const Point*, Clock::time_point>> running_;
};

// Every point, `flags.jobs` at a time. A libtpu that is not there ends it all.
void PredictPoints(const ValidateFlags& flags, std::vector<Point>* points) {
  std::atomic<size_t> next{0}, done{0};
  std::atomic<bool> stop{false};
  AtHand at_hand;
  const auto work = [&] {
    for (size_t i = next++; i < points->size() && !stop; i = next++) {
      Point& point = (*points)[i];
      at_hand.Begin(point);
      try {
        PredictPoint(flags, &point);
      } catch (const Error& error) {
        point.error = error.what();
      }
      if (point.status == tpu::CompileStatus::kNoLibtpu ||
          point.status == tpu::CompileStatus::kBadLibtpu) {
        stop = true;
      }
      at_hand.End(point);
      ++done;
    }
  };
  std::vector<std::future<void>> workers;
  for (int64_t i = 0; i < flags.jobs; ++i) {
    workers.push_back(std::async(std::launch::async, work));
  }
  Progress progress("tpu validate");
  for (std::future<void>& worker : workers) {
    while (worker.wait_for(std::chrono::milliseconds(200)) != std::future_status::ready) {
      progress.Step(static_cast<int64_t>(done.load()), static_cast<int64_t>(points->size()),
                    at_hand.Text());
    }
    worker.get();
  }
  for (const Point& point : *points) {
    if (stop && !point.error.empty()) throw Error(kExitFailed, point.error);
  }
}

// --- Results -------------------------------------------------------------------------------------

struct RungErrors {
  const char* rung;
  int64_t wanted = 0;                // points, of which the comparison has those predicted
  std::vector<std::string> missing;  // the others' names
  tpu::Comparison comparison;
  double median_ratio = 0;  // predicted / measured: which way the errors go
};

std::vector<RungErrors> ErrorsOf(const std::vector<Point>& points) {
  std::vector<RungErrors> all;
  for (const Rung& rung : kRungs) {
    std::vector<tpu::ComparedPoint> compared;
    std::vector<double> ratios;
    std::vector<std::string> missing;
    for (const Point& point : points) {
      if (point.flags.rung != rung.name) continue;
      if (!point.error.empty()) {
        missing.push_back(point.name);
        continue;
      }
      compared.push_back({point.name, point.prediction.wall_ms, point.measured.ms});
      ratios.push_back(point.ratio());
    }
    const auto wanted = static_cast<int64_t>(compared.size() + missing.size());
    if (wanted == 0) continue;
    all.push_back({rung.name, wanted, missing, {}, 0});
    if (compared.empty()) continue;
    all.back().comparison = tpu::Compare(compared);
    all.back().median_ratio = tpu::Median(ratios);
  }
  return all;
}

std::string Percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

void PrintText(const std::vector<Point>& points, const ValidateFlags& flags) {
  fmt::print("{}, with the host's share: wall time, {}\n{}: wall time\n\n", tpu::kPredictedFigure,
             flags.tpu.target, kPublishedFigure);
  Table all({"rung", "tokens x sequences", "predicted", "kernels", "XLA", "measured", "error"});
  for (const Point& point : points) {
    if (!point.error.empty()) continue;
    const tpu::Prediction& p = point.prediction;
    all.Add({point.flags.rung, point.name, HumanTime(p.wall_ms), HumanTime(p.kernels_ms),
             HumanTime(p.xla_ms), HumanTime(point.measured.ms),
             fmt::format("{:+.1f} %", 100 * (point.ratio() - 1))});
  }
  Table table({"rung", "points", "median error", "worst error", "at", "predicted / measured"});
  for (const RungErrors& rung : ErrorsOf(points)) {
    const tpu::Comparison& c = rung.comparison;
    const std::string of = fmt::format("{} of {}", c.points, rung.wanted);
    if (c.points == 0) {
      table.Add({rung.rung, of, "-", "-", "-", "-"});
      continue;
    }
    table.Add({rung.rung, of, Percent(c.median_error), Percent(c.worst_error), c.worst,
               fmt::format("{:.2f}", rung.median_ratio)});
  }
  fmt::print("{}\n{}", all.Text(), table.Text());
  for (const RungErrors& rung : ErrorsOf(points)) {
    if (rung.missing.empty()) continue;
    fmt::print("\nNot predicted, and in no figure of {}: {}\n", rung.rung,
               fmt::join(rung.missing, ", "));
  }
  fmt::print(
      "\nThe measured kernels are the published ones, the predicted ones this library's "
      "(docs/tpu.md).\n");
}

void PrintJson(const std::vector<Point>& points, const ValidateFlags& flags,
               const Context& context) {
  Json json = {{"manifest", Manifest(context)},
               {"target", flags.tpu.target},
               {"figure", tpu::kPredictedFigure},
               {"published_figure", kPublishedFigure},
               {"heads", kHeads},
               {"rungs", Json::array()},
               {"results", Json::array()}};
  for (const RungErrors& rung : ErrorsOf(points)) {
    const bool any = rung.comparison.points > 0;
    const auto number = [&](double x) { return any ? Json(x) : Json(nullptr); };
    json["rungs"].push_back({{"rung", rung.rung},
                             {"points", rung.comparison.points},
                             {"points_wanted", rung.wanted},
                             {"not_predicted", rung.missing},
                             {"median_error", number(rung.comparison.median_error)},
                             {"worst_error", number(rung.comparison.worst_error)},
                             {"worst_point", any ? Json(rung.comparison.worst) : Json(nullptr)},
                             {"median_ratio", number(rung.median_ratio)}});
  }
  for (const Point& point : points) {
    Json record = {{"rung", point.flags.rung},
                   {"seqlen", point.measured.tokens},
                   {"batch", point.measured.batch},
                   {"measured_ms", point.measured.ms}};
    if (point.error.empty()) {
      const tpu::Prediction& p = point.prediction;
      record.update({{"wall_ms", p.wall_ms},
                     {"predicted_ms", p.device_ms},
                     {"kernels_ms", p.kernels_ms},
                     {"xla_ms", p.xla_ms},
                     {"ratio", point.ratio()},
                     {"kernels", Json::array()}});
      for (const tpu::PredictedOperation& k : p.kernels) {
        record["kernels"].push_back({{"name", k.name},
                                     {"ms", k.us / 1e3},
                                     {"bound", tpu::BoundName(k.bound)},
                                     {"grid_steps", k.steps},
                                     {"cycles_per_step", k.cycles_per_step}});
      }
    } else {
      record["error"] = point.error;
    }
    json["results"].push_back(record);
  }
  fmt::print("{}\n", json.dump(2));
}

int Validate(const ValidateFlags& flags, const Context& context) {
  std::vector<Point> points = PointsOf(flags);
  if (!flags.keep.empty()) CheckFolder("--keep", flags.keep);
  PredictPoints(flags, &points);
  if (flags.json) {
    PrintJson(points, flags, context);
  } else {
    PrintText(points, flags);
  }
  int failures = 0;
  for (const Point& point : points) {
    if (point.error.empty()) continue;
    ++failures;
    fmt::print(stderr, "not predicted: {} {}: {}\n", point.flags.rung, point.name,
               OneLine(point.error));
  }
  return failures > 0 ? kExitFailed : 0;
}

}  // namespace

void AddTpuValidate(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<ValidateFlags>();
  flags->tpu.time_limit = 3600;  // programs of original, on a machine with other work
  CLI::App* command =
      tpu->add_subcommand("validate", "the predictor against times that others measured on a v6e");
  command->footer(kFooter);
  command
      ->add_option("--points", flags->points,
                   "sequence length x sequences, separated by commas, of what was measured; or all")
      ->type_name("SxB,..")
      ->capture_default_str();
  std::vector<std::string> names;
  for (const Rung& rung : kRungs) names.emplace_back(rung.name);
  command->add_option("--rung", flags->rungs, "only this one; repeatable")
      ->check(OneOf(names))
      ->allow_extra_args(false);
  command
      ->add_option("--keep", flags->keep,
                   "folder for what is compiled (15 MB a program), of one libtpu and target")
      ->type_name("DIR");
  command->add_option("--jobs", flags->jobs, "compilations at a time")
      ->check(WholeNumberIn(1, 64))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddTpuCompilerFlags(command, &flags->tpu);
  command->callback([flags, context] { context->exit_code = Validate(*flags, *context); });
}

}  // namespace kda::cli
