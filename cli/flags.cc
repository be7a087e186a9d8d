#include "cli/flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "cli/error.h"
#include "cli/safetensors.h"

namespace kda::cli {
namespace {

constexpr int32_t kMaxThreads = 1024;

std::vector<std::string> NamesOf(const char* (*name)(int32_t)) {
  std::vector<std::string> names;
  for (int32_t i = 0; name(i) != nullptr; ++i) names.emplace_back(name(i));
  return names;
}

// Position in the list; the caller has validated the name.
int32_t IndexOfName(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<int32_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

uint32_t RungSwitches(const std::string& rung) {
  const char* name = nullptr;
  uint32_t on = 0;
  for (int32_t i = 0; kda_rung(i, &name, &on) != 0; ++i) {
    if (rung == name) return on;
  }
  BadArgument("--rung: '{}' is not one of {}", rung, fmt::join(RungNames(), ", "));
}

// "flat_grid=0" -> bit and value.
std::pair<uint32_t, bool> ParseSet(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  for (int32_t i = 0; const kda_switch_info* info = kda_switch(i); ++i) {
    if (name == info->name && (value == "0" || value == "1")) return {info->bit, value == "1"};
  }
  BadArgument("--set: '{}' is not <switch>=0 or <switch>=1 with a switch of {}", text,
              fmt::join(SwitchNames(KDA_SWITCHES_ALL), ", "));
}

}  // namespace

CLI::Validator OneOf(std::vector<std::string> allowed) {
  const std::string list = fmt::format("{}", fmt::join(allowed, ", "));
  CLI::Validator validator(fmt::format("{{{}}}", fmt::join(allowed, "|")));
  validator.operation([allowed = std::move(allowed), list](std::string& value) {
    const bool good = std::find(allowed.begin(), allowed.end(), value) != allowed.end();
    return good ? std::string() : fmt::format("'{}' is not one of {}", value, list);
  });
  return validator;
}

CLI::Validator WholeNumberIn(int64_t low, int64_t high) {
  CLI::Validator validator("N");
  validator.operation([low, high](std::string& value) {
    int64_t number = 0;
    const char* end = value.data() + value.size();
    const auto result = std::from_chars(value.data(), end, number);
    const bool good =
        result.ec == std::errc() && result.ptr == end && number >= low && number <= high;
    return good ? std::string()
                : fmt::format("'{}' is not a whole number from {} to {}", value, low, high);
  });
  return validator;
}

CLI::Validator FiniteNumber() {
  CLI::Validator validator("X");
  validator.operation([](std::string& value) {
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    const bool good = !value.empty() && *end == '\0' && std::isfinite(number);
    return good ? std::string() : fmt::format("'{}' is not a finite number", value);
  });
  return validator;
}

void AddProblemFlags(CLI::App* app, ProblemFlags* flags) {
  const std::string group = "What is computed";
  app->add_option("--gate", flags->gate,
                  "what g holds: log = the log-decay itself; bounded = lower_bound * "
                  "sigmoid(exp(A_log) (g + dt_bias)); softplus = -exp(A_log) softplus(g + dt_bias)")
      ->check(OneOf({"log", "bounded", "softplus"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--lower-bound", flags->lower_bound, "of the bounded gate (default: -5)")
      ->check(FiniteNumber())
      ->group(group);
  app->add_flag("--beta-logits", flags->beta_logits, "beta is a logit: sigmoid(beta) is used")
      ->group(group);
  app->add_flag("--qk-l2norm", flags->qk_l2norm, "normalise each row of q and k first")
      ->group(group);
  app->add_option("--scale", flags->scale, "factor of o (default: K^-0.5)")
      ->check(FiniteNumber())
      ->group(group);
  app->add_option("--state-layout", flags->state_layout,
                  "the states are [N, HV, K, V] (kv) or [N, HV, V, K] (vk)")
      ->check(OneOf({"kv", "vk"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--out-dtype", flags->out_dtype, "dtype of o (default: that of v)")
      ->check(OneOf({"bf16", "fp16", "fp32"}))
      ->group(group);
  app->add_flag("--decode", flags->decode, "token by token instead of in chunks")->group(group);
  app->add_option("--checkpoint-every", flags->checkpoint_every,
                  "also give the state after every N tokens of each sequence")
      ->check(WholeNumberIn(1, INT64_MAX))
      ->group(group);
}

void ApplyProblemFlags(const ProblemFlags& flags, Case* problem) {
  problem->mode = flags.decode ? KDA_DECODE : KDA_PREFILL;
  problem->gate = flags.gate == "bounded"    ? KDA_GATE_BOUNDED
                  : flags.gate == "softplus" ? KDA_GATE_SOFTPLUS
                                             : KDA_GATE_LOG;
  if (flags.lower_bound && problem->gate != KDA_GATE_BOUNDED) {
    BadArgument("--lower-bound: {} has no meaning with --gate {}; it belongs to --gate bounded",
                *flags.lower_bound, flags.gate);
  }
  problem->lower_bound = problem->gate == KDA_GATE_BOUNDED ? flags.lower_bound.value_or(-5.0) : 0.0;
  problem->state_order = flags.state_layout == "vk" ? KDA_STATE_VK : KDA_STATE_KV;
  problem->flags =
      (flags.beta_logits ? KDA_FLAG_BETA_LOGITS : 0) | (flags.qk_l2norm ? KDA_FLAG_QK_L2NORM : 0);
  problem->scale = flags.scale.value_or(KDA_DEFAULT_SCALE);
  problem->checkpoint_every = flags.checkpoint_every;
}

kda_dtype OutputDtype(const ProblemFlags& flags, const Case& problem) {
  return flags.out_dtype.empty() ? static_cast<kda_dtype>(problem.v.layout.dtype)
                                 : DtypeFromFlag(flags.out_dtype);
}

void AddThreadsFlag(CLI::App* app, ExecutionFlags* flags) {
  app->add_option("--threads", flags->threads, "threads; 0 = one for each processor")
      ->check(WholeNumberIn(0, kMaxThreads))
      ->capture_default_str()
      ->group("How it is computed");
}

void AddExecutionFlags(CLI::App* app, bool lists, ExecutionFlags* flags) {
  const std::string group = "How it is computed";
  const std::string more = lists ? "; several, with commas, are timed in turns" : "";
  const std::string isa_help =
      "instruction set to force; one this machine lacks is an error" + more;
  const std::string rung_help = "rung of the optimisation ladder (kda info --switches)" + more;
  app->add_option("--backend", flags->backend, "reference = the recurrence in fp64: slow, exact")
      ->check(OneOf(NamesOf(kda_backend_name)))
      ->capture_default_str()
      ->group(group);
  CLI::Option* isa = app->add_option("--isa", flags->isas, isa_help)
                         ->check(OneOf(IsaNames()))
                         ->capture_default_str()
                         ->group(group);
  CLI::Option* rung = app->add_option("--rung", flags->rungs, rung_help)
                          ->check(OneOf(RungNames()))
                          ->capture_default_str()
                          ->group(group);
  for (CLI::Option* option : {isa, rung}) {
    if (lists) {
      option->delimiter(',');
    } else {
      option->expected(1);
    }
  }
  app->add_option("--set", flags->sets, "turn one switch on or off, after --rung; repeatable")
      ->type_name("SWITCH=0|1")
      ->expected(1)
      ->take_all()
      ->group(group);
  app->add_option("--solver", flags->solver,
                  "of the intra-chunk system; neumann64 = the published form, wrong on correlated "
                  "keys with slow gates")
      ->check(OneOf(NamesOf(kda_solver_name)))
      ->capture_default_str()
      ->group(group);
  AddThreadsFlag(app, flags);
}

Options MakeOptions(const ExecutionFlags& flags, const std::string& rung, const std::string& isa) {
  Options options;
  options.backend = IndexOfName(NamesOf(kda_backend_name), flags.backend);
  options.isa = IndexOfName(IsaNames(), isa);
  options.solver = IndexOfName(NamesOf(kda_solver_name), flags.solver);
  options.threads = flags.threads;
  uint32_t on = RungSwitches(rung);
  for (const std::string& set : flags.sets) {
    const auto [bit, value] = ParseSet(set);
    on = value ? on | bit : on & ~bit;
  }
  options.switches_off = KDA_SWITCHES_ALL & ~on;
  return options;
}

Case ReadCase(const std::string& path, std::vector<std::string>* unused) {
  const SafetensorsReader file(path);
  Case problem;
  struct Name {
    const char* name;
    Tensor* tensor;
    bool required;
    bool index;
  };
  const Name names[] = {{"q", &problem.q, true, false},
                        {"k", &problem.k, true, false},
                        {"v", &problem.v, true, false},
                        {"g", &problem.g, true, false},
                        {"beta", &problem.beta, true, false},
                        {"A_log", &problem.A_log, false, false},
                        {"dt_bias", &problem.dt_bias, false, false},
                        {"initial_state", &problem.initial_state, false, false},
                        {"cu_seqlens", &problem.cu_seqlens, false, true},
                        {"slots", &problem.slots, false, true},
                        {"has_initial", &problem.has_initial, false, true},
                        {"checkpoint_offsets", &problem.checkpoint_offsets, false, true},
                        {"checkpoint_tokens", &problem.checkpoint_tokens, false, true}};
  *unused = file.Names();
  for (const Name& entry : names) {
    if (!file.Has(entry.name)) {
      if (entry.required) {
        BadArgument("{}: missing in {}; q, k, v, g and beta are needed", entry.name, path);
      }
      continue;
    }
    *entry.tensor = file.Read(entry.name);
    const kda_tensor& layout = entry.tensor->layout;
    if (entry.index && layout.rank != 1) {
      BadArgument("{}: shape [{}] has {} dimensions; 1 is needed", entry.name,
                  fmt::join(layout.shape, layout.shape + layout.rank, ", "), layout.rank);
    }
    if (entry.index && layout.dtype != KDA_I32 && layout.dtype != KDA_I64) {
      BadArgument("{}: dtype {} is not I32 or I64", entry.name, SafetensorsDtype(layout.dtype));
    }
    unused->erase(std::find(unused->begin(), unused->end(), entry.name));
  }
  return problem;
}

std::vector<std::string> RungNames() {
  std::vector<std::string> names;
  const char* name = nullptr;
  uint32_t on = 0;
  for (int32_t i = 0; kda_rung(i, &name, &on) != 0; ++i) names.emplace_back(name);
  return names;
}

std::vector<std::string> SwitchNames(uint32_t bits) {
  std::vector<std::string> names;
  for (int32_t i = 0; const kda_switch_info* info = kda_switch(i); ++i) {
    if ((bits & info->bit) != 0) names.emplace_back(info->name);
  }
  return names;
}

std::vector<std::string> IsaNames() { return NamesOf(kda_isa_name); }

kda_dtype DtypeFromFlag(const std::string& name) {
  if (name == "bf16") return KDA_BF16;
  if (name == "fp16") return KDA_F16;
  return KDA_F32;
}

}  // namespace kda::cli
