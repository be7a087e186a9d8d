#include "cli/tpu_flags.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <tuple>

#include "cli/error.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/workload.h"
#include "tpu/ir/evaluator.h"
#include "tpu/pjrt/files.h"
#include "tpu/pjrt/target.h"

namespace kda::cli {

namespace {

using tpu::ir::DType;

constexpr int64_t kMaxTokens = int64_t{1} << 24;
// What the ladder's table calls optimized in its serial form.
constexpr char kSerialRung[] = "serial";

std::vector<std::string> AllTargets() {
  size_t count = 0;
  const tpu::Target* targets = tpu::Targets(&count);
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.emplace_back(targets[i].name);
  return names;
}

DType DtypeOf(const std::string& name, const std::string& kernel) {
  return DtypeName(name, kernel) == "fp32" ? DType::kF32 : DType::kBF16;
}

tpu::LadderOptions MakeLadderOptions(const TpuFlags& flags) {
  ExecutionFlags execution;
  execution.sets = flags.sets;
  execution.solver = flags.solver;
  const bool serial = flags.rung == kSerialRung;
  if (serial && !flags.form.empty() && flags.form != "serial") {
    BadArgument("--form: {} contradicts --rung serial, which is --rung optimized --form serial",
                flags.form);
  }
  const PlanOptions plan = MakeOptions(execution, serial ? "optimized" : flags.rung, "auto");
  tpu::LadderOptions options;
  options.switches = KDA_SWITCHES_ALL & ~plan.switches_off;
  options.forced = plan.forced_on;
  options.solver = plan.solver;
  options.form = flags.form == "grid"               ? tpu::HeadForm::kGrid
                 : serial || flags.form == "serial" ? tpu::HeadForm::kSerial
                                                    : tpu::HeadForm::kInterleaved;
  const bool head_block = (options.switches & KDA_SWITCH_HEAD_BLOCK) != 0;
  if (!head_block && !flags.form.empty() && flags.form != "grid") {
    BadArgument(
        "--form: {} needs the switch head_block, which is off (--rung {}); it is on with "
        "--rung optimized or --set head_block=1",
        flags.form, flags.rung);
  }
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

// "130,64": each a length.
void ParseLengths(const std::string& text, std::vector<int64_t>* lengths) {
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(',', from), text.size());
    int64_t length = 0;
    const auto result = std::from_chars(text.data() + from, text.data() + to, length);
    if (result.ec != std::errc() || result.ptr != text.data() + to || length < 0 ||
        length > kMaxTokens) {
      BadArgument("--lengths: '{}' in '{}' is not a whole number from 0 to {}",
                  text.substr(from, to - from), text, kMaxTokens);
    }
    lengths->push_back(length);
    from = to + 1;
  }
}

void CheckGate(const TpuFlags& flags) {
  if (!flags.lower_bound) return;
  if (flags.gate != "bounded") {
    BadArgument("--lower-bound: {} has no meaning with --gate {}; it belongs to --gate bounded",
                *flags.lower_bound, flags.gate);
  }
}

// What src/tpu calls an argument and what the options do. `shape`: eval may take
// it from a file's tensors.
struct ArgumentOption {
  const char *argument, *option;
  bool shape;
};
constexpr ArgumentOption kArgumentOptions[] = {{"heads", "--heads", true},
                                               {"gate_dtype", "--gate-dtype", true},
                                               {"beta_dtype", "--beta-dtype", true},
                                               {"slots", "--slots", true},
                                               {"partitions", "--target", false},
                                               {"precise", "--precise", false},
                                               {"lower_bound", "--lower-bound", false},
                                               {"scale", "--scale", false},
                                               {"checkpoint_every", "--checkpoint-every", false}};

const ArgumentOption* OptionOf(const std::string& argument) {
  for (const ArgumentOption& row : kArgumentOptions) {
    if (argument == row.argument) return &row;
  }
  return nullptr;
}

const char* LengthOption(const TpuFlags& flags) {
  return flags.lengths.empty() ? "--seqlen" : "--lengths";
}

// What a kernel does not take (tpu/problem.h says what that is), by the names of the options.
[[noreturn]] void RefuseByOption(const tpu::Refusal& refusal, const TpuFlags& flags,
                                 int partitions) {
  std::string option, value = refusal.value;
  if (const ArgumentOption* row = OptionOf(refusal.argument); row != nullptr) {
    option = row->option;
    if (option == "--gate-dtype") value = DtypeName(flags.gate_dtype, flags.kernel);
    if (option == "--precise") {
      BadArgument("--precise: belongs to --kernel mega, not to --kernel {}", flags.kernel);
    }
    if (option == "--target") value = fmt::format("{}, of {} chips", flags.target, value);
  } else if (refusal.argument.rfind("lengths[", 0) == 0) {
    option = LengthOption(flags);
    value += " tokens";
  } else {
    BadArgument("{}", refusal.what());
  }
  BadArgument("{}: {}, but --kernel {} takes {}{}", option, value, flags.kernel, refusal.allowed,
              partitions > 1 && option == "--heads" ? " of --target " + flags.target : "");
}

void CheckOptions(const TpuFlags& flags, const tpu::ProgramRequest& request) {
  try {
    tpu::CheckProgram(request);
  } catch (const tpu::Refusal& refusal) {
    RefuseByOption(refusal, flags, request.partitions);
  } catch (const tpu::ir::BuildError& error) {
    BadArgument("{}", error.what());
  }
  // Without slots' numbers each sequence is taken to have one of its own.
  const tpu::TpuProblem& p = request.problem;
  if (p.slots > 0 && p.final_state && p.slots < p.sequences) {
    BadArgument(
        "--slots: {} rows are too few for {} sequences, each of which writes one of its "
        "own (or --no-final-state)",
        p.slots, p.sequences);
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
  CLI::Option* lengths = app->add_option_function<std::vector<std::string>>(
                                "--lengths",
                                [flags](const std::vector<std::string>& words) {
                                  for (const std::string& word : words)
                                    ParseLengths(word, &flags->lengths);
                                },
                                "tokens of each sequence, instead of these two")
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

// The published kernels were timed with fp32 gates and beta; mega reads bf16.
std::string DtypeName(const std::string& name, const std::string& kernel) {
  if (!name.empty()) return name;
  return kernel == "ladder" ? "fp32" : "bf16";
}

void AddTpuDtypeFlags(CLI::App* app, TpuFlags* flags, const std::string& group,
                      CLI::Option* without) {
  for (auto& [name, of, value] :
       {std::tuple<const char*, const char*, std::string*>{"--gate-dtype", "g", &flags->gate_dtype},
        {"--beta-dtype", "beta", &flags->beta_dtype}}) {
    CLI::Option* option =
        app->add_option(
               name, *value,
               fmt::format("of {} (default: bf16; for the ladder fp32, as it was published)", of))
            ->check(OneOf({"bf16", "fp32"}))
            ->group(group);
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
  app->add_option("--lower-bound", flags->lower_bound,
                  "of the bounded gate (default: -5). Below -5.025, where 16 gates no longer lie "
                  "within 116 binades, mega takes the slower way of gates without a bound")
      ->check(FiniteNumber())
      ->group(group);
  AddTpuDtypeFlags(app, flags, group, nullptr);
  app->add_flag("--qk-l2norm", flags->qk_l2norm, "normalise each row of q and k first")
      ->group(group);
  app->add_flag("--beta-logits", flags->beta_logits, "beta is a logit")->group(group);
  app->add_flag("--no-initial-state", flags->no_initial_state, "states start at zero")
      ->group(group);
  app->add_flag("--no-final-state", flags->no_final_state, "states are not given back")
      ->group(group);
  app->add_option("--slots", flags->slots,
                  "states lie in a pool of N rows, addressed by slots; a row for each sequence at "
                  "least")
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
  app->add_flag("--precise", flags->precise,
                "of mega: one more pass for sums that all but cancel (keys alike, slow gates)")
      ->group(group);
  std::vector<std::string> rungs = RungNames();
  rungs.insert(rungs.end() - 1, kSerialRung);
  app->add_option("--rung", flags->rung,
                  "of the ladder (kda info lists what each turns on); serial: optimized with "
                  "--form serial")
      ->check(OneOf(rungs))
      ->capture_default_str()
      ->group(group);
  app->add_option("--set", flags->sets,
                  "turn one switch of the ladder on or off, after --rung; repeatable")
      ->type_name("SWITCH=0|1")
      ->group(group);
  app->add_option("--form", flags->form,
                  "the ladder's last step: heads in the grid, in a serial loop, or interleaved "
                  "(the default)")
      ->check(OneOf({"grid", "serial", "interleaved"}))
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
  CheckGate(flags);
  tpu::ProgramRequest request;
  tpu::TpuProblem& p = request.problem;
  p = tpu::PackedProblem(LengthsOf(flags), flags.heads);
  if (p.tokens < 1 || p.tokens > kMaxTokens) {
    BadArgument("{}: {} tokens in all are not from 1 to {}",
                flags.lengths.empty() ? "--batch, --seqlen" : "--lengths", p.tokens, kMaxTokens);
  }
  p.gate = flags.gate == "bounded"    ? KDA_GATE_BOUNDED
           : flags.gate == "softplus" ? KDA_GATE_SOFTPLUS
                                      : KDA_GATE_LOG;
  p.lower_bound = flags.lower_bound.value_or(-5);
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
  p.precise = flags.precise;
  if (flags.kernel == "ladder") request.ladder = MakeLadderOptions(flags);
  CheckOptions(flags, request);
  return request;
}

tpu::BuiltProgram BuildTpuProgram(const tpu::ProgramRequest& request) {
  try {
    return tpu::BuildProgram(request);
  } catch (const tpu::Refusal& refusal) {
    const ArgumentOption* row = OptionOf(refusal.argument);
    if (row == nullptr || row->shape) BadArgument("{}", refusal.what());
    BadArgument("{}: {}, but --kernel {} takes {}", row->option, refusal.value, refusal.kernel,
                refusal.allowed);
  } catch (const tpu::ir::BuildError& error) {
    BadArgument("{}", error.what());
  }
}

tpu::CompileSettings MakeSettings(const TpuFlags& flags) {
  tpu::RemoveTempFoldersOnSignals();  // a compilation leaves some 3 MB there
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

void WithProgress(const std::function<void()>& show, const std::function<void()>& work) {
  std::future<void> done = std::async(std::launch::async, work);
  while (done.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) show();
  done.get();
}

tpu::Report PredictWithProgress(const tpu::BuiltProgram& program, const TpuFlags& flags,
                                const std::string& task) {
  tpu::Report report;
  {
    Progress progress(task);
    WithProgress([&] { progress.Tick("libtpu compiles"); },
                 [&] { report = tpu::PredictProgram(program, MakeSettings(flags)); });
  }
  CheckCompiled(report.compiled);
  if (!report.ok()) Failed("{}", report.error);
  return report;
}

void CheckFolder(const std::string& option, const std::string& path) {
  if (path.empty()) BadArgument("{}: a folder is needed, not ''", option);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) BadArgument("{}: cannot make folder '{}': {}", option, path, error.message());
  if (access(path.c_str(), W_OK) == 0) return;
  BadArgument("{}: cannot write to '{}': {}", option, path, std::strerror(errno));
}

void CheckWritable(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (exists && S_ISDIR(status.st_mode)) errno = EISDIR;
  const bool writable =
      exists ? !S_ISDIR(status.st_mode) && access(path.c_str(), W_OK) == 0
             : stat(folder.c_str(), &status) == 0 && access(folder.c_str(), W_OK) == 0;
  if (!writable) BadArgument("{}: cannot write '{}': {}", option, path, std::strerror(errno));
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
  if (flags.kernel == "mega") json["precise"] = p.precise;
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
