// The published ladder on the TPU: every combination of switches in the evaluator against the fp64
// recurrence, and through libtpu.
#include "tpu/ladder/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/case.h"
#include "support/compare.h"
#include "support/oracle.h"
#include "support/tolerance.h"
#include "tpu/hlo/printer.h"
#include "tpu/mega_cases.h"
#include "tpu/module_case.h"
#include "tpu/tiny_kernel.h"

namespace kda::test {
namespace {

using tpu::BuildLadder;
using tpu::HeadForm;
using tpu::Ladder;
using tpu::LadderOptions;
using tpu::WhyNoLibtpu;

LadderOptions With(uint32_t switches, kda_solver solver = KDA_SOLVER_AUTO,
                   HeadForm form = HeadForm::kInterleaved) {
  LadderOptions options;
  options.switches = switches;
  options.solver = solver;
  options.form = form;
  return options;
}

ModuleResult RunLadder(const Case& c, const LadderOptions& options) {
  const Ladder ladder = BuildLadder(ProblemOf(c), options);
  return RunModule(*ladder.module, c);
}

void ExpectRight(const Case& c, const LadderOptions& options, double limit,
                 const Oracle* known = nullptr) {
  const Oracle oracle = known != nullptr ? *known : Solve(c);
  const Ladder ladder = BuildLadder(ProblemOf(c), options);
  SCOPED_TRACE(ladder.plan.description);
  const ModuleResult result = RunModule(*ladder.module, c);
  EXPECT_TRUE(Near(result.o, oracle.o, OutputParts(c), limit)) << "o";
  EXPECT_TRUE(ZeroElsewhere(c, result.o));
  EXPECT_EQ(result.S.empty(), !c.want_state);
  if (!c.want_state) return;
  EXPECT_TRUE(Near(result.S, oracle.S, StateParts(c, oracle.S_written), limit)) << "final_state";
}

// Empty sequences first, in the middle and last; lengths around a strip and a
// chunk; rows past the end.
Case Mixed(int64_t H, Regime regime = Regime::kMix, uint64_t seed = 7) {
  const std::vector<int64_t> cu = Offsets({0, 65, 0, 1, 64, 17, 0});
  return Standard(Std(seed, cu.back() + 3, H).Packed(cu).In(regime));
}

// --- Every combination ---------------------------------------------------------------------------

class Combination : public ::testing::TestWithParam<uint32_t> {};

TEST_P(Combination, IsRight) {
  const Case c = Mixed(8);
  ExpectRight(c, With(GetParam()), kTpuLimit);
}

TEST_P(Combination, IsRightWithOtherSolvers) {
  const Case c = Standard(Std(3, 90, 8).In(Regime::kSlow));
  const Oracle oracle = Solve(c);
  for (kda_solver solver : {KDA_SOLVER_BLOCK, KDA_SOLVER_SUBSTITUTION, KDA_SOLVER_NEUMANN64}) {
    ExpectRight(c, With(GetParam(), solver), kTpuLimit, &oracle);
  }
}

TEST_P(Combination, Compiles) {
  KDA_NEEDS_LIBTPU();
  const Ladder ladder = BuildLadder(ProblemOf(Mixed(8)), With(GetParam()));
  tpu::CompileRequest request = tpu::TinyRequest();
  request.module = tpu::hlo::Print(*ladder.module);
  const tpu::CompileResult result = Compile(request);
  EXPECT_TRUE(result.ok()) << ladder.plan.description << ": " << result.message;
}

std::string SwitchesOf(const ::testing::TestParamInfo<uint32_t>& info) {
  std::string name;
  for (int32_t i = 0; kda_switch(i) != nullptr; ++i) {
    if ((info.param & kda_switch(i)->bit) != 0) name += std::string("_") + kda_switch(i)->name;
  }
  return name.empty() ? "original" : name.substr(1);
}

// Those that the switches' needs leave.
std::vector<uint32_t> Reachable() {
  std::vector<uint32_t> all;
  for (uint32_t on = 0; on <= KDA_SWITCHES_ALL; ++on) {
    const uint32_t both = KDA_SWITCH_FUSE | KDA_SWITCH_SAFE_GATE;
    if ((on & KDA_SWITCH_HEAD_BLOCK) == 0 || (on & both) == both) all.push_back(on);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Ladder, Combination, ::testing::ValuesIn(Reachable()), SwitchesOf);

TEST(Ladder, SerialHeadsCompile) {
  KDA_NEEDS_LIBTPU();
  for (kda_solver solver : {KDA_SOLVER_AUTO, KDA_SOLVER_BLOCK, KDA_SOLVER_SUBSTITUTION}) {
    const Ladder ladder =
        BuildLadder(ProblemOf(Mixed(8)), With(KDA_SWITCHES_ALL, solver, HeadForm::kSerial));
    tpu::CompileRequest request = tpu::TinyRequest();
    request.module = tpu::hlo::Print(*ladder.module);
    const tpu::CompileResult result = Compile(request);
    EXPECT_TRUE(result.ok()) << ladder.plan.description << ": " << result.message;
  }
}

// The first rung and the last.
TEST(Ladder, OtherTargetsCompile) {
  KDA_NEEDS_LIBTPU();
  for (const char* target : {"v5e", "v5p", "tpu7x"}) {
    for (const uint32_t switches : {uint32_t{0}, uint32_t{KDA_SWITCHES_ALL}}) {
      const Ladder ladder = BuildLadder(ProblemOf(Mixed(8)), With(switches));
      tpu::CompileRequest request = tpu::TinyRequest(target);
      request.module = tpu::hlo::Print(*ladder.module);
      const tpu::CompileResult result = Compile(request);
      EXPECT_TRUE(result.ok()) << target << ", " << ladder.plan.description << ": "
                               << result.message;
    }
  }
}

// --- Bits ----------------------------------------------------------------------------------------

// unified_layout, flat_grid, head_block and the form of head_block change no bit.
void ExpectSameBits(int64_t H, uint32_t kept) {
  const Case c = Mixed(H);
  const ModuleResult first = RunLadder(c, With(kept));
  const auto same = [&](const LadderOptions& options) {
    const ModuleResult other = RunLadder(c, options);
    EXPECT_TRUE(first.arrays == other.arrays)
        << BuildLadder(ProblemOf(c), options).plan.description;
  };
  for (uint32_t on : Reachable()) {
    if ((on & (KDA_SWITCH_SAFE_GATE | KDA_SWITCH_FUSE)) != kept || on == kept) continue;
    same(With(on));
    if ((on & KDA_SWITCH_HEAD_BLOCK) != 0) same(With(on, KDA_SOLVER_AUTO, HeadForm::kSerial));
  }
}

TEST(LadderBits, StayOnSafeGateAndFuse) {
  for (int64_t H : {8, 16, 32}) ExpectSameBits(H, KDA_SWITCH_SAFE_GATE | KDA_SWITCH_FUSE);
}
TEST(LadderBits, StayOnOneOfThem) {
  ExpectSameBits(8, KDA_SWITCH_SAFE_GATE);
  ExpectSameBits(8, KDA_SWITCH_FUSE);
}
TEST(LadderBits, StayOnNone) { ExpectSameBits(8, 0); }

// A sequence gives the same bits alone and packed with others, whatever those hold.
TEST(LadderBits, SequencesAreIndependent) {
  Case c = Standard(Std(11, 66 + 40 + 70, 8).Packed({0, 66, 106, 176}));
  const Case alone = Alone(c, 1);
  for (int64_t t : {65, 106}) {
    for (int64_t h = 0; h < c.H; ++h) c.Key(t, h, 5) = c.Value(t, h, 5) = c.G(t, h, 5) = kNan;
  }
  for (uint32_t on : {KDA_SWITCHES_ALL, KDA_SWITCH_SAFE_GATE, uint32_t{0}}) {
    const ModuleResult packed = RunLadder(c, With(on)), one = RunLadder(alone, With(on));
    const auto row = static_cast<int64_t>(one.o.size()) / 40;
    for (int64_t i = 0; i < 40 * row; ++i) {
      ASSERT_EQ(packed.o[static_cast<size_t>(66 * row + i)], one.o[static_cast<size_t>(i)]) << i;
    }
    const auto state = one.S.size();
    ASSERT_TRUE(
        std::equal(one.S.begin(), one.S.end(), packed.S.begin() + static_cast<int64_t>(state)));
  }
}

// --- Problems ------------------------------------------------------------------------------------

TEST(LadderCases, EveryRegime) {
  for (Regime regime : {Regime::kMix, Regime::kSat, Regime::kSlow, Regime::kNorm}) {
    const Case c = Mixed(8, regime);
    const Oracle oracle = Solve(c);
    for (uint32_t on : {KDA_SWITCHES_ALL, uint32_t{0}}) {
      ExpectRight(c, With(on), kTpuLimit, &oracle);
      ExpectRight(c, With(on, KDA_SOLVER_BLOCK), kTpuLimit, &oracle);
    }
  }
}

TEST(LadderCases, Heads) {
  for (int64_t H : {1, 2, 3, 16, 24}) {
    const Case c = Standard(Std(5, 70, H));
    ExpectRight(c, With(KDA_SWITCHES_ALL), kTpuLimit);
  }
}

Case Correlated() {
  Case c = Standard(Std(2, 130, 8).In(Regime::kSlow));
  for (int64_t t = 1; t < c.T; ++t) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t d = 0; d < c.K; ++d) c.Key(t, h, d) = c.Key(0, h, d);
    }
  }
  return c;
}

TEST(LadderCases, IdenticalKeysWithStableSolvers) {
  const Case c = Correlated();
  const Oracle oracle = Solve(c);
  for (uint32_t on : {KDA_SWITCHES_ALL, uint32_t{0}}) {
    ExpectRight(c, With(on, KDA_SOLVER_BLOCK), kTpuCancelling, &oracle);
    ExpectRight(c, With(on, KDA_SOLVER_SUBSTITUTION), kTpuCancelling, &oracle);
  }
}

// The published chain is wrong there: this is what it is kept to show.
TEST(LadderCases, IdenticalKeysWithThePublishedSolver) {
  const Case c = Correlated();
  const ModuleResult result = RunLadder(c, With(KDA_SWITCHES_ALL, KDA_SOLVER_NEUMANN64));
  EXPECT_GT(ErrorOf(result.o, Solve(c).o).rel_f, 1e2);
}

TEST(LadderCases, GatesWithoutBound) {
  Case c = Mixed(8);
  c.gate = KDA_GATE_SOFTPLUS;
  for (uint32_t on : {KDA_SWITCHES_ALL, uint32_t{0}}) ExpectRight(c, With(on), kTpuLimit);
  c = Mixed(8);
  SetLogGate(&c, -0.1);
  ExpectRight(c, With(KDA_SWITCHES_ALL), kTpuLimit);
  SetLogGate(&c, -50);
  ExpectRight(c, With(KDA_SWITCHES_ALL), kTpuLimit);
  SetLogGate(&c, 0);
  ExpectRight(c, With(KDA_SWITCHES_ALL), kTpuLimit);
}

// Gates of which only the order counts, at both ends of what fp32 holds.
TEST(LadderCases, GatesOfAnySize) {
  std::vector<Case> cases = TotalWipes();
  cases.push_back(SoftplusTails());
  cases.push_back(GateParameters());
  for (Case c : cases) {
    c.dtypes.g = KDA_BF16;
    const Oracle oracle = Solve(c);
    for (uint32_t on : {KDA_SWITCHES_ALL, uint32_t{0}})
      ExpectRight(c, With(on), kTpuLimit, &oracle);
  }
}

TEST(LadderCases, NormalisedRowsOfAnySize) {
  Case c = Mixed(8);
  c.qk_l2norm = true;
  for (double& x : c.q) x *= 0x1p120;
  for (double& x : c.k) x *= 0x1p100;
  for (uint32_t on : {KDA_SWITCHES_ALL, uint32_t{0}}) ExpectRight(c, With(on), kTpuLimit);
}

TEST(LadderCases, OptionalArguments) {
  for (uint32_t on : {KDA_SWITCHES_ALL, uint32_t{0}}) {
    Case c = Mixed(8);
    c.S0.clear();
    ExpectRight(c, With(on), kTpuLimit);
    c = Mixed(8);
    c.want_state = false;
    c.A_log.clear();
    c.dt_bias.clear();
    ExpectRight(c, With(on), kTpuLimit);
    c = Mixed(8);
    c.qk_l2norm = true;
    for (double& x : c.q) x *= 4;
    for (double& x : c.k) x *= 0.25;
    ExpectRight(c, With(on), kTpuLimit);
    c = Mixed(8);
    SetBeta(&c, 0.75);
    ExpectRight(c, With(on), kTpuLimit);
    c = Mixed(8);
    c.dtypes.g = c.dtypes.beta = KDA_F32;
    ExpectRight(c, With(on), kTpuLimit);
  }
}

TEST(LadderCases, NothingAtAll) {
  const Case c = Standard(Std(9, 3, 8).Packed({0, 0, 0}));
  for (uint32_t on : {KDA_SWITCHES_ALL, uint32_t{0}}) {
    const ModuleResult result = RunLadder(c, With(on));
    EXPECT_EQ(Norm(result.o), 0);
    EXPECT_EQ(ErrorOf(result.S, c.S0).max_abs, 0);
  }
}

// --- Plans ---------------------------------------------------------------------------------------

std::string Describe(const tpu::TpuProblem& p, const LadderOptions& options) {
  return PlanLadder(p, options).description;
}

TEST(LadderPlan, SaysWhyItFallsBack) {
  tpu::TpuProblem p = ProblemOf(Mixed(8));
  EXPECT_EQ(
      Describe(p, With(KDA_SWITCHES_ALL)),
      "ladder, switches safe_gate,fuse,unified_layout,flat_grid,head_block, solver neumann64, "
      "heads interleaved");
  EXPECT_EQ(Describe(p, With(0)), "ladder, switches none, solver substitution, heads in the grid");
  EXPECT_NE(
      Describe(p, With(KDA_SWITCHES_ALL & ~KDA_SWITCH_FUSE)).find("head_block off: needs fuse"),
      std::string::npos);
  EXPECT_NE(Describe(p, With(KDA_SWITCHES_ALL, KDA_SOLVER_AUTO, HeadForm::kGrid))
                .find("head_block off: heads in the grid"),
            std::string::npos);
  p.lower_bound = -11;
  EXPECT_NE(Describe(p, With(KDA_SWITCHES_ALL)).find("safe_gate off: lower_bound is too low"),
            std::string::npos);
  p = ProblemOf(Mixed(8));
  p.gate = KDA_GATE_SOFTPLUS;
  EXPECT_NE(Describe(p, With(KDA_SWITCHES_ALL)).find("safe_gate off: the gate has no bound"),
            std::string::npos);
  p = ProblemOf(Mixed(3));
  EXPECT_NE(Describe(p, With(KDA_SWITCHES_ALL)).find("head_block off: needs heads that are a mult"),
            std::string::npos);
}

TEST(LadderPlan, RefusesHeadBlockThatDoesNotFitVmem) {
  tpu::TpuProblem p = ProblemOf(Mixed(16));
  const uint32_t on = KDA_SWITCHES_ALL & ~KDA_SWITCH_SAFE_GATE;
  const std::string description = Describe(p, With(on));
  EXPECT_NE(description.find("of VMEM without safe_gate, there are 32.00 MiB"), std::string::npos)
      << description;
  EXPECT_GT(HeadBlockVmemBytes(p, false), int64_t{32} << 20);
  EXPECT_LT(HeadBlockVmemBytes(p, true), int64_t{16} << 20);
  LadderOptions forced = With(on);
  forced.forced = KDA_SWITCH_HEAD_BLOCK;
  EXPECT_THROW(PlanLadder(p, forced), tpu::ir::BuildError);
  forced = With(KDA_SWITCHES_ALL);
  forced.forced = KDA_SWITCHES_ALL;
  EXPECT_NO_THROW(PlanLadder(p, forced));
}

TEST(LadderPlan, FallsBackWithMoreHeadsThanVmemHolds) {
  tpu::TpuProblem p = ProblemOf(Mixed(8));
  for (int64_t heads : {24, 32}) {
    p.heads = heads;
    EXPECT_NE(PlanLadder(p, {}).switches & KDA_SWITCH_HEAD_BLOCK, 0u) << heads;
  }
  for (int64_t heads : {48, 96}) {
    p.heads = heads;
    EXPECT_EQ(PlanLadder(p, {}).switches & KDA_SWITCH_HEAD_BLOCK, 0u) << heads;
  }
}

// The most heads that the plan lets through compile.
TEST(LadderPlan, LetsThroughWhatCompiles) {
  KDA_NEEDS_LIBTPU();
  tpu::TpuProblem p = ProblemOf(Mixed(8));
  p.heads = 32;
  for (kda_solver solver : {KDA_SOLVER_NEUMANN64, KDA_SOLVER_BLOCK}) {
    const Ladder ladder = BuildLadder(p, With(KDA_SWITCHES_ALL, solver));
    tpu::CompileRequest request = tpu::TinyRequest();
    request.module = tpu::hlo::Print(*ladder.module);
    const tpu::CompileResult result = Compile(request);
    EXPECT_TRUE(result.ok()) << ladder.plan.description << ": " << result.message;
  }
}

}  // namespace
}  // namespace kda::test
