#include "support/engine_test.h"

#include <malloc.h>

#include <cstdlib>
#include <cstring>

#include "support/isas.h"

namespace kda::test {

const std::vector<Engine>& Engines() {
  static const std::vector<Engine>* const engines = [] {
    auto* const list = new std::vector<Engine>{{KDA_BACKEND_REFERENCE, KDA_ISA_AUTO, "reference"}};
    for (const kda_isa isa : IsasOfBuild()) {
      list->push_back({KDA_BACKEND_CPU, isa, kda_isa_name(isa)});
    }
    return list;
  }();
  return *engines;
}

void EngineTest::SetUpTestSuite() {
  // Buffers of a MiB come and go by the thousand: keep them mapped.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

void EngineTest::SetUp() {
  const std::string why_not = IsCpu() ? WhyNot(GetParam().isa) : "";
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

Config EngineTest::Base() const {
  Config config;
  config.backend = GetParam().backend;
  config.isa = GetParam().isa;
  return config;
}

std::vector<Config> EngineTest::Configs() const {
  const Config base = Base();
  if (!IsCpu()) return {base};
  std::vector<Config> configs;
  const char* name = nullptr;
  uint32_t on = 0;
  for (int32_t i = 0; kda_rung(i, &name, &on) != 0; ++i) {
    const bool is_end = i == 0 || on == KDA_SWITCHES_ALL;
    if (is_end || !FastTests()) configs.push_back(base.Off(KDA_SWITCHES_ALL & ~on));
  }
  configs.push_back(base.With(KDA_SOLVER_SUBSTITUTION));
  configs.push_back(base.With(KDA_SOLVER_BLOCK).Off(KDA_SWITCH_SAFE_GATE));
  return configs;
}

std::vector<Config> EngineTest::ConfigsFor(kda_mode mode) const {
  return mode == KDA_PREFILL ? Configs() : std::vector<Config>{Base()};
}

std::vector<Config> EngineTest::AllSwitches() const {
  if (!IsCpu()) return {Base()};
  std::vector<Config> configs;
  const uint32_t needed = KDA_SWITCH_SAFE_GATE | KDA_SWITCH_FUSE;  // by head_block
  for (kda_solver solver : {KDA_SOLVER_SUBSTITUTION, KDA_SOLVER_BLOCK}) {
    if (FastTests() && solver != KDA_SOLVER_BLOCK) continue;
    for (uint32_t off = 0; off <= KDA_SWITCHES_ALL; ++off) {
      const bool falls_back = (off & KDA_SWITCH_HEAD_BLOCK) == 0 && (off & needed) != 0;
      if (!falls_back) configs.push_back(Base().Off(off).With(solver));
    }
  }
  return configs;
}

void EngineTest::ExpectRight(const Case& c, const std::vector<Config>& configs) const {
  const Oracle oracle = Solve(c);
  for (const Config& config : configs) {
    SCOPED_TRACE(config.Name());
    EXPECT_TRUE(Matches(c, RunCase(c, config), oracle));
  }
}

bool FastTests() {
  const char* value = std::getenv("KDA_TEST_FAST");
  return value != nullptr && std::strcmp(value, "0") != 0 && value[0] != '\0';
}

}  // namespace kda::test
