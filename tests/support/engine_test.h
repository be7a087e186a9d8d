// Fixture and sweeps: a case runs on every engine (the reference and the CPU's instruction sets)
// and, on the CPU, on rungs, switches and solvers.
#ifndef KDA_TESTS_SUPPORT_ENGINE_TEST_H_
#define KDA_TESTS_SUPPORT_ENGINE_TEST_H_

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "support/compare.h"
#include "support/oracle.h"
#include "support/run.h"

namespace kda::test {

struct Engine {
  kda_backend backend;
  kda_isa isa;
  const char* name;
};
inline void PrintTo(const Engine& engine, std::ostream* os) { *os << engine.name; }
const std::vector<Engine>& Engines();

class EngineTest : public ::testing::TestWithParam<Engine> {
 public:
  static void SetUpTestSuite();

 protected:
  void SetUp() override;

  bool IsCpu() const { return GetParam().backend == KDA_BACKEND_CPU; }
  // This engine with every default.
  Config Base() const;
  // Base, and on the CPU every rung of the ladder and every stable solver.
  std::vector<Config> Configs() const;
  // Configs(), or Base() alone in decode, which has neither switches nor solvers.
  std::vector<Config> ConfigsFor(kda_mode mode) const;
  // On the CPU every switch combination that can be had, with every stable solver.
  std::vector<Config> AllSwitches() const;

  // Runs under each configuration and expects the oracle's result.
  void ExpectRight(const Case& c, const std::vector<Config>& configs) const;
  void ExpectRight(const Case& c) const { ExpectRight(c, Configs()); }
};

// Set in the environment (KDA_TEST_FAST=1) where instrumented builds would take too long: the same
// tests over fewer and shorter problems.
bool FastTests();

}  // namespace kda::test

// A group of tests on every engine, named after its case.
#define KDA_CASE(case_id)                                                          \
  class case_id : public ::kda::test::EngineTest {};                               \
  INSTANTIATE_TEST_SUITE_P(, case_id, ::testing::ValuesIn(::kda::test::Engines()), \
                           [](const auto& info) { return std::string(info.param.name); })

#endif  // KDA_TESTS_SUPPORT_ENGINE_TEST_H_
