#include "cli/tpu_flags.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <future>

#include "cli/error.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/workload.h"
#include "tpu/ir/evaluator.h"
#include "tpu/pjrt/target.h"

namespace kda::cli {

namespace {

using tpu::ir::DType;

constexpr int64_t kMaxTokens = int64_t{1} << 24;

std::vector<std::string> AllTargets() {
  size_t count = 0;
  const tpu::Target* targets = tpu::Targets(&count);
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.emplace_back(targets[i].name);
  return names;
}

// The published kernels were timed with fp32 gates and beta; mega reads bf16.
DType DtypeOf(const std::string& name, const std::string& kernel) {
  if (name.empty()) return kernel == "ladder" ? DType::kF32 : DType::kBF16;
  return name == "fp32" ? DType::kF32 : DType::kBF16;
}

tpu::LadderOptions MakeLadderOptions(const TpuFlags& flags) {
  ExecutionFlags execution;
  execution.sets = flags.sets;
  execution.solver = flags.solver;
  const PlanOptions plan = MakeOptions(execution, flags.rung, "auto");
  tpu::LadderOptions options;
  options.switches = KDA_SWITCHES_ALL & ~plan.switches_off;
  options.forced = plan.forced_on;
  options.solver = static_cast<kda_solver>(plan.solver);
  options.form = flags.form == "grid"     ? tpu::HeadForm::kGrid
                 : flags.form == "serial" ? tpu::HeadForm::kSerial
                                          : tpu::HeadForm::kInterleaved;
  return options;
}

void CheckLadderOnly(const TpuFlags& flags) {
  if (flags.kernel == "ladder") return;
  const TpuFlags usual;
  const char* option = !flags.sets.empty()            ? "--set"
                       : flags.rung != usual.rung     ? "--rung"
                       : flags.form != usual.form     ? "--form"
                       : flags.solver != usual.solver ? "--solver"
                                                      : nullptr;
  if (option != nullptr) {
    BadArgument("{}: belongs to --kernel ladder, not to --kernel {}", option, flags.kernel);
  }
}

}  // namespace

void AddTpuShapeFlags(CLI::App* app, TpuFlags* flags, const std::string& group,
                      CLI::Option* without) {
  CLI::Option* batch = app->add_option("--batch", flags->batch, "sequences, packed")
                           ->check(WholeNumberIn(1, 65536))
                           ->capture_default_str();
  CLI::Option* seqlen =
      app->add_option("--seqlen", flags->seqlen,
                      fmt::format("tokens of each (default: {}; of decode 1)", flags->usual_seqlen))
          ->check(WholeNumberIn(1, kMaxTokens));
  CLI::Option* lengths =
      app->add_option("--lengths", flags->lengths, "tokens of each sequence, instead of these two")
          ->check(WholeNumberIn(0, kMaxTokens))
          ->delimiter(',')
          ->type_name("N[,N...]")
          ->excludes(batch)
          ->excludes(seqlen);
  CLI::Option* heads = app->add_option("--heads", flags->heads, "heads")
                           ->check(WholeNumberIn(1, 1024))
                           ->capture_default_str();
  for (CLI::Option* option : {batch, seqlen, lengths, heads}) {
    option->group(group);
    if (without != nullptr) option->excludes(without);
  }
}

void AddTpuProblemFlags(CLI::App* app, TpuFlags* flags) {
  const std::string group = "What is computed (K = V = 128)";
  AddTpuShapeFlags(app, flags, group, nullptr);
  app->add_option("--gate", flags->gate, "what g holds, as for kda run")
      ->check(OneOf({"bounded", "softplus", "log"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--lower-bound", flags->lower_bound, "of the bounded gate")
      ->check(FiniteNumber())
      ->capture_default_str()
      ->group(group);
  for (auto& [name, value] :
       {std::pair<const char*, std::string*>{"--gate-dtype", &flags->gate_dtype},
        {"--beta-dtype", &flags->beta_dtype}}) {
    app->add_option(name, *value, "default: bf16; for the ladder fp32, as it was published")
        ->check(OneOf({"bf16", "fp32"}))
        ->group(group);
  }
  app->add_flag("--qk-l2norm", flags->qk_l2norm, "normalise each row of q and k first")
      ->group(group);
  app->add_flag("--beta-logits", flags->beta_logits, "beta is a logit")->group(group);
  app->add_flag("--no-initial-state", flags->no_initial_state, "states start at zero")
      ->group(group);
  app->add_flag("--no-final-state", flags->no_final_state, "states are not given back")
      ->group(group);
  app->add_option("--slots", flags->slots, "states lie in a pool of N rows, addressed by slots")
      ->check(WholeNumberIn(1, 1 << 20))
      ->group(group);
}

void AddTpuKernelFlags(CLI::App* app, TpuFlags* flags) {
  const std::string group = "By which kernel";
  app->add_option("--kernel", flags->kernel,
                  "mega: one kernel for everything; ladder: the published ones; decode: one token "
                  "per sequence")
      ->check(OneOf({"mega", "ladder", "decode"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--rung", flags->rung, "of the ladder (kda info lists what each turns on)")
      ->check(OneOf(RungNames()))
      ->capture_default_str()
      ->group(group);
  app->add_option("--set", flags->sets,
                  "turn one switch of the ladder on or off, after --rung; repeatable")
      ->type_name("SWITCH=0|1")
      ->group(group);
  app->add_option("--form", flags->form,
                  "the ladder's last step: heads in the grid, in a serial loop, or interleaved")
      ->check(OneOf({"grid", "serial", "interleaved"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--solver", flags->solver, "of the ladder; auto: as published")
      ->check(OneOf({"auto", "substitution", "block", "neumann64"}))
      ->capture_default_str()
      ->group(group);
}

void AddTpuCompilerFlags(CLI::App* app, TpuFlags* flags) {
  const std::string group = "Compiler";
  app->add_option("--target", flags->target, "TPU to compile for; v6e:2x2 shares out the heads")
      ->check(OneOf(AllTargets()))
      ->capture_default_str()
      ->group(group);
  app->add_option("--libtpu", flags->libtpu,
                  "libtpu.so (default: KDA_LIBTPU of the environment, else what scripts/setup tpu "
                  "fetched, else Python's)")
      ->type_name("FILE")
      ->group(group);
  app->add_option("--time-limit", flags->time_limit, "seconds for one compilation")
      ->check(PositiveNumber())
      ->capture_default_str()
      ->group(group);
}

std::vector<int64_t> LengthsOf(const TpuFlags& flags) {
  if (!flags.lengths.empty()) return flags.lengths;
  const int64_t usual = flags.kernel == "decode" ? 1 : flags.usual_seqlen;
  return Batch::Of(flags.batch, flags.seqlen > 0 ? flags.seqlen : usual).lengths;
}

tpu::ProgramRequest MakeTpuRequest(const TpuFlags& flags) {
  CheckLadderOnly(flags);
  tpu::ProgramRequest request;
  tpu::TpuProblem& p = request.problem;
  p = tpu::PackedProblem(LengthsOf(flags), flags.heads);
  if (p.tokens < 1 || p.tokens > kMaxTokens) {
    BadArgument("--lengths: {} tokens in all are not from 1 to {}", p.tokens, kMaxTokens);
  }
  p.gate = flags.gate == "bounded"    ? KDA_GATE_BOUNDED
           : flags.gate == "softplus" ? KDA_GATE_SOFTPLUS
                                      : KDA_GATE_LOG;
  if (p.gate == KDA_GATE_BOUNDED && flags.lower_bound > 0) {
    BadArgument("--lower-bound: {} is above 0", flags.lower_bound);
  }
  p.lower_bound = flags.lower_bound;
  p.has_a_log = p.has_dt_bias = p.gate != KDA_GATE_LOG;
  p.qk_l2norm = flags.qk_l2norm;
  p.beta_logits = flags.beta_logits;
  p.gate_dtype = DtypeOf(flags.gate_dtype, flags.kernel);
  p.beta_dtype = DtypeOf(flags.beta_dtype, flags.kernel);
  p.initial_state = !flags.no_initial_state;
  p.final_state = !flags.no_final_state;
  p.slots = flags.slots;
  request.family = flags.kernel == "mega"     ? tpu::Family::kMega
                   : flags.kernel == "ladder" ? tpu::Family::kLadder
                                              : tpu::Family::kDecode;
  const tpu::Target& target = *tpu::FindTarget(flags.target);
  request.partitions = target.partitions;
  p.vmem_bytes = target.vmem_bytes;
  if (flags.kernel == "ladder") request.ladder = MakeLadderOptions(flags);
  return request;
}

tpu::BuiltProgram BuildTpuProgram(const tpu::ProgramRequest& request) {
  try {
    return tpu::BuildProgram(request);
  } catch (const tpu::ir::BuildError& error) {
    BadArgument("{}", error.what());
  }
}

tpu::CompileSettings MakeSettings(const TpuFlags& flags) {
  tpu::CompileSettings settings;
  settings.target = tpu::FindTarget(flags.target);
  settings.child = {"/proc/self/exe", "tpu", "compile-child"};
  settings.libtpu = flags.libtpu;
  settings.timeout_seconds = flags.time_limit;
  return settings;
}

void CheckCompiled(const tpu::CompileResult& result) {
  if (result.ok()) return;
  const bool argument = result.status == tpu::CompileStatus::kBadRequest;
  throw Error(argument ? kExitArgument : kExitFailed, result.message);
}

void WithProgress(Progress* progress, double begin, double end, double expected_seconds,
                  const std::string& now, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  std::future<void> done = std::async(std::launch::async, work);
  while (done.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // Slows down past what was expected and never arrives.
    const double share = seconds / (seconds + expected_seconds / 3);
    progress->Update(begin + (end - begin) * share, now);
  }
  done.get();
}

tpu::Report PredictWithProgress(const tpu::BuiltProgram& program, const TpuFlags& flags,
                                Progress* progress, double begin, double end,
                                const std::string& now) {
  tpu::Report report;
  WithProgress(progress, begin, end, 20, now,
               [&] { report = tpu::PredictProgram(program, MakeSettings(flags)); });
  CheckCompiled(report.compiled);
  if (!report.ok()) Failed("{}", report.error);
  return report;
}

Json TpuProblemJson(const TpuFlags& flags) {
  const tpu::ProgramRequest request = MakeTpuRequest(flags);
  const tpu::TpuProblem& p = request.problem;
  const auto name = [](DType dtype) { return dtype == DType::kF32 ? "fp32" : "bf16"; };
  Json json = {{"tokens", p.tokens}, {"lengths", p.lengths}, {"heads", p.heads},
               {"dim_k", tpu::kDim}, {"dim_v", tpu::kDim},   {"gate", flags.gate}};
  if (p.gate == KDA_GATE_BOUNDED) json["lower_bound"] = p.lower_bound;
  json["gate_dtype"] = name(p.gate_dtype);
  json["beta_dtype"] = name(p.beta_dtype);
  json["qk_l2norm"] = p.qk_l2norm;
  json["beta_logits"] = p.beta_logits;
  json["initial_state"] = p.initial_state;
  json["final_state"] = p.final_state;
  json["slots"] = p.slots;
  return json;
}

Json CompiledJson(const tpu::CompileResult& result, const TpuFlags& flags) {
  return {{"target", flags.target},
          {"compiler", result.compiler},
          {"fingerprint", result.fingerprint},
          {"executable_bytes", result.executable_bytes},
          {"code_bytes", result.code_bytes},
          {"argument_bytes", result.argument_bytes},
          {"output_bytes", result.output_bytes},
          {"temporary_bytes", result.temporary_bytes},
          {"compile_seconds", result.seconds},
          {"process_seconds", result.process_seconds}};
}

std::string Bytes(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", b / 1e9);
  if (bytes >= 1000000) return fmt::format("{:.3g} MB", b / 1e6);
  if (bytes >= 1000) return fmt::format("{:.3g} kB", b / 1e3);
  return fmt::format("{} B", bytes);
}

}  // namespace kda::cli
