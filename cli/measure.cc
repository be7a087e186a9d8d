#include "cli/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "cli/error.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace kda::cli {
namespace {

double TimedRun(const Plan& plan, const Args& args) {
  const Stopwatch watch;
  const Status status = plan.Run(args);
  const double milliseconds = watch.Milliseconds();
  Check(status);
  return milliseconds;
}

// Throws what making the plans would, on shapes alone.
void CheckPlans(Case shape, const std::vector<Batch>& batches, kda_mode mode,
                const std::vector<Implementation>& which) {
  shape.mode = mode;
  for (const Batch& batch : batches) {
    Case problem = PackedCase(shape, batch);
    DescribeOutputs(static_cast<kda_dtype>(problem.v.layout.dtype), &problem);
    for (const Implementation& implementation : which) CreatePlan(problem, implementation.options);
  }
}

}  // namespace

void AddMeasureFlags(CLI::App* app, MeasureFlags* flags) {
  const std::string group = "Measurement";
  app->add_option("--warmup", flags->warmup,
                  "runs before timing, the verified one included (default: 2, or 1 for long runs)")
      ->check(WholeNumberIn(1, 1000000))
      ->group(group);
  app->add_option("--repeat", flags->repeat,
                  "timed runs of each implementation, in turns (default: about a second's worth, "
                  "3 to 50)")
      ->check(WholeNumberIn(1, 1000000))
      ->group(group);
  app->add_option("--verify-tokens", flags->verify_budget,
                  "token-heads of each problem to check against the fp64 oracle before timing")
      ->check(WholeNumberIn(1, INT64_MAX))
      ->capture_default_str()
      ->group(group);
}

std::vector<Implementation> Implementations(ExecutionFlags flags, kda_mode mode) {
  if (flags.threads == 0) flags.threads = ReadCpuInfo().processors;
  const char* const token_by_token = flags.backend == "reference" ? "reference"
                                     : mode == KDA_DECODE         ? "decode"
                                                                  : nullptr;
  if (token_by_token != nullptr && flags.rungs.size() > 1) {
    BadArgument("--rung: {} goes token by token, where {} and {} would run the same; one is taken",
                token_by_token, flags.rungs[0], flags.rungs[1]);
  }
  std::vector<Implementation> list;
  std::set<std::string> seen;
  for (const std::string& rung : flags.rungs) {
    for (const std::string& isa : flags.isas) {
      Implementation implementation;
      implementation.rung = token_by_token != nullptr ? "-" : rung;
      implementation.isa = isa;
      const std::string name = token_by_token != nullptr ? token_by_token : rung;
      implementation.label = flags.isas.size() > 1 ? name + "/" + isa : name;
      implementation.options = MakeOptions(flags, rung, isa);
      implementation.options.flags |= KDA_OPTION_CALLER_WORKSPACE;
      if (!seen.insert(implementation.label).second) {
        BadArgument("--rung, --isa: {} is named twice", implementation.label);
      }
      list.push_back(implementation);
    }
  }
  return list;
}

Bench::Bench(const GeneratorFlags& generator, const MeasureFlags& flags, int64_t heads,
             const std::vector<Batch>& batches, kda_mode mode,
             const std::vector<Implementation>& which, Progress* progress)
    : flags_(flags) {
  int64_t tokens = 0, sequences = 0;
  for (const Batch& batch : batches) {
    tokens = std::max(tokens, batch.Tokens());
    sequences = std::max(sequences, batch.sequences());
  }
  progress->Note("checking options");
  CheckPlans(DescribeInputs(generator, heads, tokens, sequences), batches, mode, which);
  const int64_t bytes = InputBytes(generator, heads, tokens, sequences);
  const int64_t available = AvailableMemory();
  if (available > 0 && bytes > available) {
    Failed(
        "the inputs and outputs of {} tokens x {} heads need {} bytes of memory, {} are free; "
        "fewer --heads or a smaller --batch fit",
        tokens, heads, HumanCount(double(bytes)), HumanCount(double(available)));
  }
  inputs_ = MakeInputs(generator, heads, tokens, sequences, progress);
  inputs_.mode = mode;
  DescribeOutputs(static_cast<kda_dtype>(inputs_.v.layout.dtype), &inputs_);
  inputs_.final_state.layout = inputs_.initial_state.layout;  // for every sequence of the largest
  AllocateOutputs(&inputs_);
}

void Bench::PrepareWorkspace(int64_t bytes) {
  if (workspace_.present() && workspace_.Bytes() >= bytes) return;
  workspace_ = Tensor();  // gives the smaller one back first
  const int64_t available = AvailableMemory();
  if (available > 0 && bytes > available) {
    Failed("a workspace of {} bytes is needed, {} are free; fewer --heads or a smaller --batch fit",
           HumanCount(double(bytes)), HumanCount(double(available)));
  }
  workspace_ = NewTensor(KDA_BF16, {(bytes + 1) / 2});
  FillNan(workspace_);  // also touches its pages before any run is timed
}

double Bench::VerifyAndWarm(const Case& problem, const Plan& plan, const Args& args,
                            const Sample& sample, Progress* progress, Measurement* m) const {
  progress->Note("verifying " + m->label);
  // Poison: a result that was never written cannot pass.
  FillNan(problem.o);
  FillNan(problem.final_state);
  double last = TimedRun(plan, args);
  m->verdicts = sample.Compare(problem);
  m->passed = std::all_of(m->verdicts.begin(), m->verdicts.end(),
                          [](const Verdict& verdict) { return verdict.Passed(); });
  if (!m->passed) return 0;
  m->warmup = flags_.warmup > 0 ? flags_.warmup : last < 500 ? 2 : 1;
  for (int64_t w = 1; w < m->warmup; ++w) {
    progress->Note("warming up " + m->label);
    last = TimedRun(plan, args);
  }
  return last;
}

std::vector<Measurement> Bench::Run(const Batch& batch, const std::vector<Implementation>& which,
                                    bool alone, Progress* progress) {
  const Case problem = PackedCase(inputs_, batch);
  std::vector<Plan> plans;
  int64_t workspace_bytes = 0;
  for (const Implementation& implementation : which) {
    plans.push_back(CreatePlan(problem, implementation.options));
    workspace_bytes =
        std::max(workspace_bytes, static_cast<int64_t>(plans.back().Info().workspace_size));
  }
  progress->Note("workspace");
  PrepareWorkspace(workspace_bytes);
  const Sample sample(problem, flags_.verify_budget, progress);
  verified_ = sample.Describe();
  if (!pin_tried_) pinned_ = PinThreads(progress->watcher());
  pin_tried_ = true;

  Args args = MakeArgs(problem);
  args.workspace = workspace_.data;
  args.workspace_size = static_cast<size_t>(workspace_.Bytes());
  std::vector<Measurement> measurements(which.size());
  std::vector<size_t> timed;
  double round = 0;  // milliseconds of one turn of all
  for (size_t i = 0; i < which.size(); ++i) {
    Measurement& m = measurements[i];
    m.rung = which[i].rung;
    m.isa = which[i].isa;
    m.label = which[i].label;
    m.ran = RanJson(plans[i]);
    round += VerifyAndWarm(problem, plans[i], args, sample, progress, &m);
    if (m.passed) timed.push_back(i);
  }
  int64_t repeat = flags_.repeat;
  if (repeat == 0) {
    const double fit = flags_.auto_seconds * 1e3 / std::max(round, 1e-3);
    repeat = std::clamp(static_cast<int64_t>(std::min(fit, 1e9)), flags_.auto_min, flags_.auto_max);
  }
  for (int64_t r = 0; r < repeat; ++r) {
    const std::string turn = fmt::format("turn {} of {}", r + 1, repeat);
    if (alone) {
      progress->Update(double(r) / double(repeat), turn);
    } else {
      progress->Note(turn);
    }
    for (const size_t i : timed) measurements[i].samples.push_back(TimedRun(plans[i], args));
  }
  for (const size_t i : timed) measurements[i].time = Summarise(measurements[i].samples);
  return measurements;
}

double Bench::ZeroStateRatio(const Batch& batch, const Implementation& implementation) {
  const Case random = PackedCase(inputs_, batch);
  if (!zero_state_.present()) {
    zero_state_ = NewTensor(inputs_.initial_state.layout);
    std::memset(zero_state_.data, 0, static_cast<size_t>(zero_state_.Bytes()));
  }
  const Plan plan = CreatePlan(random, implementation.options);
  PrepareWorkspace(static_cast<int64_t>(plan.Info().workspace_size));
  Args random_args = MakeArgs(random);
  random_args.workspace = workspace_.data;
  random_args.workspace_size = static_cast<size_t>(workspace_.Bytes());
  Args zero_args = random_args;
  zero_args.initial_state = zero_state_.data;
  TimedRun(plan, zero_args);
  const double once = TimedRun(plan, random_args);
  const int64_t repeat =
      std::clamp<int64_t>(static_cast<int64_t>(500 / std::max(once, 1e-2)), 5, 50);
  std::vector<double> zero, full;
  for (int64_t r = 0; r < repeat; ++r) {
    zero.push_back(TimedRun(plan, zero_args));
    full.push_back(TimedRun(plan, random_args));
  }
  return Summarise(zero).median / Summarise(full).median;
}

Json MeasurementJson(const Measurement& m, const Batch& batch, int64_t heads, int64_t value_heads,
                     const std::string& verified) {
  const auto [low, high] = std::minmax_element(batch.lengths.begin(), batch.lengths.end());
  Json record;
  record["rung"] = m.rung == "-" ? Json(nullptr) : Json(m.rung);
  record["isa"] = m.ran["isa"];
  record["batch"] = batch.sequences();
  record["seqlen"] = *low == *high ? Json(*low) : Json(batch.lengths);
  record["heads"] = heads;
  record["value_heads"] = value_heads;
  record["threads"] = m.ran["threads"];
  const double seconds = m.time.median / 1e3;
  const auto rate = [&](int64_t count) {
    return m.passed && seconds > 0 ? Json(double(count) / seconds) : Json(nullptr);
  };
  record["median_ms"] = m.passed ? Json(m.time.median) : Json(nullptr);
  record["p10_ms"] = m.passed ? Json(m.time.p10) : Json(nullptr);
  record["p90_ms"] = m.passed ? Json(m.time.p90) : Json(nullptr);
  record["token_heads_per_s"] = rate(batch.Tokens() * value_heads);
  record["tokens_per_s"] = rate(batch.Tokens());
  record["padded_tokens_per_s"] = rate(batch.PaddedTokens());
  const Difference& o = m.verdicts[0].difference;
  const Difference& state = m.verdicts[1].difference;
  record["max_error"] = o.max_abs;
  record["relative_error"] = o.RelativeFrobenius();
  record["state_max_error"] = state.max_abs;
  record["state_relative_error"] = state.RelativeFrobenius();
  record["relative_limit"] = m.verdicts[0].limit;
  record["state_relative_limit"] = m.verdicts[1].limit;
  record["passed"] = m.passed;
  record["verified"] = verified;
  record["warmup"] = m.warmup;
  record["repeat"] = m.time.count;
  for (const char* key : {"backend", "solver", "switches", "switches_fallback", "description"}) {
    record[key] = m.ran[key];
  }
  return record;
}

std::string FailureText(const Measurement& m) {
  std::string text;
  for (const Verdict& verdict : m.verdicts) {
    if (verdict.Passed()) continue;
    text += fmt::format("{}{}: {} relative error {:.2e} is over {:.0e} (largest {:.2e})",
                        text.empty() ? "" : "; ", m.label, verdict.tensor,
                        verdict.difference.RelativeFrobenius(), verdict.limit,
                        verdict.difference.max_abs);
  }
  return text;
}

int64_t Comparison::Faster() const {
  return std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return ratio > 1; });
}

std::string Comparison::Describe(size_t of) const {
  if (ratios.empty()) return fmt::format("{} against {}: nothing measured", fast, slow);
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  const std::string missing =
      ratios.size() < of ? fmt::format(" ({} not measured)", of - ratios.size()) : "";
  return fmt::format("{} against {}: {:.2f}x geometric mean, {:.2f}x to {:.2f}x, {} of {} faster{}",
                     fast, slow, GeometricMean(ratios), *low, *high, Faster(), of, missing);
}

Json Comparison::ToJson() const {
  Json json = {{"slow", slow}, {"fast", fast}, {"problems", ratios.size()}};
  if (ratios.empty()) return json;
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  json["geometric_mean"] = GeometricMean(ratios);
  json["min"] = *low;
  json["max"] = *high;
  json["faster"] = Faster();
  return json;
}

}  // namespace kda::cli
