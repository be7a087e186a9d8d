#include "cli/flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "cli/error.h"

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

int32_t IsaNamed(const std::string& name) {
  for (int32_t i = 0; const kda_isa_info* info = kda_isa_row(i); ++i) {
    if (name == info->name) return info->isa;
  }
  return KDA_ISA_AUTO;
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

CLI::Validator PositiveNumber() {
  CLI::Validator validator("X");
  validator.operation([](std::string& value) {
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    const bool good = !value.empty() && *end == '\0' && std::isfinite(number) && number > 0;
    return good ? std::string() : fmt::format("'{}' must be a finite number > 0", value);
  });
  return validator;
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
      "instruction set to force; one this machine lacks is an error (exit code 1). auto = the best "
      "one here, "
      "capped by the environment variable KDA_MAX_ISA" +
      more;
  const std::string rung_help =
      "rung of the optimisation ladder (kda info lists what each turns on)" + more;
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
  app->add_option("--set", flags->sets,
                  "turn one switch on or off, after --rung; repeatable. One that is turned on here "
                  "and cannot run is an error; of a rung it is left out, and said (switches: kda "
                  "info --switches)")
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

PlanOptions MakeOptions(const ExecutionFlags& flags, const std::string& rung,
                        const std::string& isa) {
  PlanOptions options;
  options.backend = IndexOfName(NamesOf(kda_backend_name), flags.backend);
  options.isa = IsaNamed(isa);
  options.solver = IndexOfName(NamesOf(kda_solver_name), flags.solver);
  options.threads = flags.threads;
  uint32_t on = RungSwitches(rung);
  for (const std::string& set : flags.sets) {
    const auto [bit, value] = ParseSet(set);
    on = value ? on | bit : on & ~bit;
    options.forced_on = value ? options.forced_on | bit : options.forced_on & ~bit;
  }
  options.switches_off = KDA_SWITCHES_ALL & ~on;
  return options;
}

namespace {

// The tensors of an input file: one row each.
struct TensorName {
  const char* name;
  Tensor Case::*tensor;
  bool required, index;
};
constexpr TensorName kTensorNames[] = {
    {"q", &Case::q, true, false},
    {"k", &Case::k, true, false},
    {"v", &Case::v, true, false},
    {"g", &Case::g, true, false},
    {"beta", &Case::beta, true, false},
    {"A_log", &Case::A_log, false, false},
    {"dt_bias", &Case::dt_bias, false, false},
    {"initial_state", &Case::initial_state, false, false},
    {"cu_seqlens", &Case::cu_seqlens, false, true},
    {"slots", &Case::slots, false, true},
    {"has_initial", &Case::has_initial, false, true},
    {"checkpoint_offsets", &Case::checkpoint_offsets, false, true},
    {"checkpoint_tokens", &Case::checkpoint_tokens, false, true}};

}  // namespace

InputFile ReadInput(const std::string& path) {
  const SafetensorsReader file(path);
  InputFile input;
  input.metadata = file.metadata();
  input.unused = file.Names();
  for (const TensorName& row : kTensorNames) {
    if (!file.Has(row.name)) {
      if (row.required) {
        BadArgument("{}: missing in {}; q, k, v, g and beta are needed", row.name, path);
      }
      continue;
    }
    Tensor& tensor = input.problem.*row.tensor;
    tensor = file.Read(row.name);
    const kda_tensor& layout = tensor.layout;
    if (row.index && layout.rank != 1) {
      BadArgument("{}: shape [{}] has {} dimensions; 1 is needed", row.name,
                  fmt::join(layout.shape, layout.shape + layout.rank, ", "), layout.rank);
    }
    if (row.index && layout.dtype != KDA_I32 && layout.dtype != KDA_I64) {
      BadArgument("{}: dtype {} is not I32 or I64", row.name, SafetensorsDtype(layout.dtype));
    }
    input.unused.erase(std::find(input.unused.begin(), input.unused.end(), row.name));
  }
  return input;
}

std::vector<std::pair<std::string, Tensor>> InputTensors(const Case& problem) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const TensorName& row : kTensorNames) {
    const Tensor& tensor = problem.*row.tensor;
    if (tensor.present()) tensors.emplace_back(row.name, tensor);
  }
  return tensors;
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

std::vector<std::string> IsaNames() {
  std::vector<std::string> names = {kda_isa_name(KDA_ISA_AUTO)};
  for (int32_t i = 0; const kda_isa_info* info = kda_isa_row(i); ++i) {
    names.emplace_back(info->name);
  }
  return names;
}

kda_dtype DtypeFromFlag(const std::string& name) {
  if (name == "bf16") return KDA_BF16;
  if (name == "fp16") return KDA_F16;
  return KDA_F32;
}

}  // namespace kda::cli
