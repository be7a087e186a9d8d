// kda info: what this machine and this build can do.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cli/commands.h"
#include "cli/error.h"
#include "cli/flags.h"
#include "cli/generator.h"
#include "cli/table.h"

namespace kda::cli {
namespace {

struct InfoFlags {
  bool isas = false, limits = false, switches = false, json = false;
};

std::string Number(double value) {
  const bool whole = std::fabs(value) < 1e15 && value == std::floor(value);
  return whole ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value);
}

Table IsasTable() {
  Table table({"instruction set", "architecture", "needs"});
  for (int32_t i = 0; const kda_isa_info* info = kda_isa_row(i); ++i) {
    table.Add({info->name, info->architecture, info->needs});
  }
  return table;
}

Table LimitsTable() {
  Table table({"limit", "smallest", "largest", "note"});
  for (int32_t i = 0; const kda_limit_info* limit = kda_limit(i); ++i) {
    table.Add({limit->name, Number(limit->min), Number(limit->max), limit->note});
  }
  return table;
}

Table SwitchesTable() {
  Table table({"switch", "stage", "needs", "effect", "same bits on and off"});
  for (int32_t i = 0; const kda_switch_info* info = kda_switch(i); ++i) {
    table.Add({info->name, info->stage, info->needs[0] == '\0' ? "-" : info->needs, info->effect,
               info->same_bits != 0 ? "yes" : "no"});
  }
  return table;
}

Table RungsTable() {
  Table table({"rung", "switches on"});
  const char* name = nullptr;
  uint32_t on = 0;
  for (int32_t i = 0; kda_rung(i, &name, &on) != 0; ++i) {
    table.Add({name, on == 0 ? "none" : fmt::format("{}", fmt::join(SwitchNames(on), ", "))});
  }
  return table;
}

// Whether this machine has it, whatever KDA_MAX_ISA says.
bool MachineHas(int32_t isa) {
  const char* const cap = std::getenv("KDA_MAX_ISA");
  if (cap == nullptr) return kda_isa_available(isa) != 0;
  const std::string saved = cap;
  unsetenv("KDA_MAX_ISA");
  const bool has = kda_isa_available(isa) != 0;
  setenv("KDA_MAX_ISA", saved.c_str(), 1);
  return has;
}

// What would run for each instruction set, on a K3-like problem; nothing is run.
Json Kernels() {
  Json kernels = Json::array();
  Case problem = PackedCase(DescribeInputs({}, 8, 128, 1), Batch::Of(1, 128));
  DescribeOutputs(KDA_BF16, &problem);
  std::vector<int32_t> isas = {KDA_ISA_AUTO};
  for (int32_t i = 0; const kda_isa_info* info = kda_isa_row(i); ++i) isas.push_back(info->isa);
  for (const int32_t isa : isas) {
    Json kernel = {{"isa", kda_isa_name(isa)}};
    bool available = isa == KDA_ISA_AUTO || kda_isa_available(isa) != 0;
    kernel["capped"] = !available && MachineHas(isa);
    if (available) {
      Options options;
      options.isa = isa;
      options.threads = 1;
      Plan plan;
      const Status status = Plan::Create(MakeProblem(problem), options, &plan);
      if (status.code() == KDA_ERROR_UNAVAILABLE) {  // by the system: the tile registers
        available = false;
        kernel["refused"] = status.message();
      } else {
        Check(status);
        kernel["ran"] = RanJson(plan);
      }
    }
    kernel["available"] = available;
    kernels.push_back(kernel);
  }
  return kernels;
}

Json TablesJson() {
  Json json;
  json["limits"] = Json::array();
  for (int32_t i = 0; const kda_limit_info* limit = kda_limit(i); ++i) {
    json["limits"].push_back(
        {{"name", limit->name}, {"min", limit->min}, {"max", limit->max}, {"note", limit->note}});
  }
  json["switches"] = Json::array();
  for (int32_t i = 0; const kda_switch_info* info = kda_switch(i); ++i) {
    json["switches"].push_back({{"name", info->name},
                                {"stage", info->stage},
                                {"needs", info->needs},
                                {"effect", info->effect},
                                {"same_bits", info->same_bits != 0}});
  }
  json["rungs"] = Json::array();
  const char* name = nullptr;
  uint32_t on = 0;
  for (int32_t i = 0; kda_rung(i, &name, &on) != 0; ++i) {
    json["rungs"].push_back({{"name", name}, {"switches", SwitchNames(on)}});
  }
  return json;
}

void PrintForPeople(const Json& kernels, const Json& manifest) {
  const CpuInfo& cpu = ReadCpuInfo();
  fmt::print("kda {} ({}, {}, {})\n", kda_version_string(),
             manifest["git_commit"].get<std::string>(), manifest["compiler"].get<std::string>(),
             manifest["build_type"].get<std::string>());
  fmt::print("CPU: {}, {} usable\n", cpu.model, Counted(cpu.processors, "processor"));
  fmt::print("CPU features: {}\n", fmt::join(cpu.features, " "));
  fmt::print("KDA_MAX_ISA: {}\n\n", manifest["KDA_MAX_ISA"].is_null()
                                        ? "not set"
                                        : manifest["KDA_MAX_ISA"].get<std::string>());
  fmt::print("Instruction sets, and what runs with each (one thread, K = V = 128):\n");
  for (const Json& kernel : kernels) {
    fmt::print("  {:<12} {}\n", kernel["isa"].get<std::string>(),
               kernel["available"].get<bool>() ? kernel["ran"]["description"].get<std::string>()
               : kernel["capped"].get<bool>()  ? "capped by KDA_MAX_ISA"
               : kernel.contains("refused")    ? kernel["refused"].get<std::string>()
                                               : "not on this machine");
  }
  fmt::print("\nThe ladder's rungs (kda ladder measures them):\n{}", RungsTable().Text());
  fmt::print("kda tpu has one more, serial: optimized with the heads of a step in a loop.\n");
  fmt::print("\nMore: kda info --switches, kda info --limits, kda info --json\n");
}

}  // namespace

void AddInfo(CLI::App* app, Context* context) {
  const auto flags = std::make_shared<InfoFlags>();
  CLI::App* command =
      app->add_subcommand("info", "CPU, instruction sets, what would run, limits, versions");
  command->footer(
      "The environment variable KDA_MAX_ISA, the name of an instruction set of this architecture,\n"
      "rules out those after it in the table, in every program that uses the library.\n"
      "Examples:\n"
      "  kda info\n"
      "  kda info --isas        the table of instruction sets, as markdown\n"
      "  kda info --limits      the validator's limits, as markdown\n"
      "  kda info --switches    what each switch of --set and of the rungs does, as markdown\n"
      "  KDA_MAX_ISA=avx2 kda info");
  CLI::Option* isas =
      command->add_flag("--isas", flags->isas, "only the table of instruction sets, as markdown");
  CLI::Option* limits =
      command->add_flag("--limits", flags->limits, "only the table of limits, as markdown");
  CLI::Option* switches =
      command->add_flag("--switches", flags->switches, "only the table of switches, as markdown");
  command->add_flag("--json", flags->json, "everything, as JSON")
      ->excludes(isas)
      ->excludes(limits)
      ->excludes(switches);
  command->callback([flags, context] {
    if (flags->json) {
      Json json = {{"version", kda_version_string()}, {"manifest", Manifest(*context)}};
      json["isas"] = Kernels();
      json.update(TablesJson());
      fmt::print("{}\n", json.dump(2));
      return;
    }
    if (flags->isas) fmt::print("{}", IsasTable().Markdown());
    if (flags->limits) fmt::print("{}", LimitsTable().Markdown());
    if (flags->switches) fmt::print("{}", SwitchesTable().Markdown());
    if (flags->isas || flags->limits || flags->switches) return;
    PrintForPeople(Kernels(), Manifest(*context));
  });
}

}  // namespace kda::cli
