#include "cli/manifest.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/Version.hpp>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/flags.h"
#include "git_commit.h"

namespace kda::cli {
namespace {

std::string AfterColon(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos || colon + 2 > line.size()) return "";
  return line.substr(colon + 2);
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

CpuInfo FindCpuInfo() {
  static const std::set<std::string> kFeatures = {
      "sse2",        "sse4_2",   "avx",      "avx2",     "fma",         "f16c",
      "avx512f",     "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_fp16",
      "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "avx_vnni",    "asimd",
      "bf16",        "asimdfhm", "sve",      "i8mm"};
  CpuInfo info;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (info.model.empty() && line.rfind("model name", 0) == 0) info.model = AfterColon(line);
    const bool flags = line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0;
    if (flags && info.features.empty()) {
      std::istringstream words(AfterColon(line));
      for (std::string word; words >> word;) {
        if (kFeatures.count(word) != 0) info.features.push_back(word);
      }
    }
  }
  if (info.model.empty()) info.model = "unknown";
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  info.processors = sched_getaffinity(getpid(), sizeof allowed, &allowed) == 0
                        ? CPU_COUNT(&allowed)
                        : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return info;
}

}  // namespace

const CpuInfo& ReadCpuInfo() {
  static const CpuInfo info = FindCpuInfo();
  return info;
}

Json Manifest(const Context& context) {
  const CpuInfo& cpu = ReadCpuInfo();
  const char* max_isa = std::getenv("KDA_MAX_ISA");
  utsname system = {};
  uname(&system);
  Json manifest;
  manifest["command"] = context.command;
  manifest["time"] = UtcNow();
  manifest["git_commit"] = KDA_GIT_COMMIT;
  manifest["compiler"] = KDA_COMPILER;
  manifest["compiler_flags"] = KDA_COMPILER_FLAGS;
  manifest["build_type"] = KDA_BUILD_TYPE;
  manifest["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  manifest["cpu"] = cpu.model;
  manifest["cpu_features"] = cpu.features;
  manifest["processors"] = cpu.processors;
  manifest["libraries"] = {
      {"kda", kda_version_string()},
      {"cli11", CLI11_VERSION},
      {"fmt",
       fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                    NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)}};
  manifest["KDA_MAX_ISA"] = max_isa == nullptr ? Json(nullptr) : Json(max_isa);
  return manifest;
}

Json RanJson(const Plan& plan) {
  const PlanInfo info = plan.Info();
  Json ran;
  ran["backend"] = kda_backend_name(info.backend);
  const bool reference = info.backend == KDA_BACKEND_REFERENCE;
  ran["isa"] = reference ? Json(nullptr) : Json(kda_isa_name(info.isa));
  ran["solver"] = kda_solver_name(info.solver);
  ran["threads"] = info.threads;
  ran["switches"] = SwitchNames(info.switches);
  ran["switches_fallback"] = SwitchNames(info.switches_fallback);
  ran["description"] = plan.Describe();
  return ran;
}

std::string IsaRan(const Json& ran) {
  return ran["isa"].is_null() ? "-" : ran["isa"].get<std::string>();
}

}  // namespace kda::cli
