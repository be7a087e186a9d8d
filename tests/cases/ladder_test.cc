// The ladder: every switch combination right, some of them bit for bit alike, all really different
// code; and the published solver, which is wrong where it is known to be.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/plan.h"
#include "reference/dtypes.h"
#include "support/engine_test.h"
#include "support/goldens.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

KDA_CASE(Ladder);
KDA_CASE(Neumann64);
KDA_CASE(CaseE13);

// Lengths of every kind, empty sequences first, in the middle and last.
Case Mixed(int64_t heads) {
  const std::vector<int64_t> cu = Offsets({0, 5, 130, 0, 16, 64, 77, 1, 0});
  return Standard(Std(81, cu.back(), heads).Packed(cu));
}

TEST_P(Ladder, EverySwitchCombinationIsRight) {
  ExpectRight(Mixed(8), AllSwitches());
  ExpectRight(Mixed(3), AllSwitches());
  Case grouped = Standard(Std(82, 150, 4).ValueHeads(8).Packed({0, 0, 70, 150}).In(Regime::kSat));
  grouped.qk_l2norm = true;
  grouped.checkpoint_every = 40;
  ExpectRight(grouped, AllSwitches());
  Case log = Mixed(8);
  SetLogGate(&log, -0.02);
  log.S0.clear();
  ExpectRight(log, AllSwitches());
  Case rectangular = Standard(Std(83, 100, 8).Dims(60, 100).In(Regime::kSlow));
  rectangular.order = KDA_STATE_VK;
  ExpectRight(rectangular, AllSwitches());
}

// Combinations that cannot be had fall back, give the bits of what they fall back to, and say so.
TEST_P(Ladder, FallbacksAreReported) {
  if (!IsCpu()) return;
  const Case c = Mixed(8);
  for (uint32_t missing : {KDA_SWITCH_SAFE_GATE, KDA_SWITCH_FUSE}) {
    const Result asked = RunCase(c, Base().Off(missing));
    const Result plain = RunCase(c, Base().Off(missing | KDA_SWITCH_HEAD_BLOCK));
    EXPECT_EQ(asked.info.switches_fallback, KDA_SWITCH_HEAD_BLOCK);
    EXPECT_EQ(asked.info.switches, plain.info.switches);
    EXPECT_EQ(plain.info.switches_fallback, 0u);
    EXPECT_NE(asked.description.find("head_block off"), std::string::npos) << asked.description;
    EXPECT_TRUE(SameBits(asked, plain));
  }
}

// The switches the table marks so change nothing but the way: one answer for each setting of the
// others.
TEST_P(Ladder, LayoutAndGridSwitchesKeepTheBits) {
  if (!IsCpu()) return;
  uint32_t same_bits = 0;
  for (int32_t i = 0; const kda_switch_info* info = kda_switch(i); ++i) {
    if (info->same_bits != 0) same_bits |= info->bit;
  }
  EXPECT_EQ(same_bits, KDA_SWITCH_UNIFIED_LAYOUT | KDA_SWITCH_FLAT_GRID | KDA_SWITCH_HEAD_BLOCK);
  for (int64_t heads : {1, 2, 3, 8, 16}) {
    Case c = Mixed(heads);
    c.dtypes.o = heads % 2 == 0 ? KDA_BF16 : KDA_F32;
    c.checkpoint_every = 50;
    std::map<std::pair<uint32_t, kda_solver>, Result> answers;
    for (const Config& config : AllSwitches()) {
      SCOPED_TRACE(config.Name());
      const Result result = RunCase(c, config.Threads(2));
      const auto key = std::make_pair(config.switches_off & ~same_bits, config.solver);
      const auto [answer, is_first] = answers.emplace(key, result);
      ASSERT_TRUE(is_first || SameBits(answer->second, result)) << heads;
    }
    EXPECT_EQ(answers.size(), FastTests() ? 4u : 8u);  // safe_gate, fuse, solvers
  }
}

// With nothing on, all rungs would be this one.
TEST_P(Ladder, RungsRunDifferentCode) {
  if (!IsCpu()) return;
  const Case c = Mixed(8);
  const auto run = [&](uint32_t off) { return RunCase(c, Base().Off(off)); };
  const uint32_t simple = KDA_SWITCH_UNIFIED_LAYOUT | KDA_SWITCH_FLAT_GRID | KDA_SWITCH_HEAD_BLOCK;
  // safe_gate and fuse sum in other orders.
  EXPECT_FALSE(SameBits(run(simple).o.bits, run(simple | KDA_SWITCH_SAFE_GATE).o.bits));
  EXPECT_FALSE(SameBits(run(simple).o.bits, run(simple | KDA_SWITCH_FUSE).o.bits));
  // Solvers too.
  EXPECT_FALSE(SameBits(RunCase(c, Base().With(KDA_SOLVER_BLOCK)).o.bits,
                        RunCase(c, Base().With(KDA_SOLVER_SUBSTITUTION)).o.bits));
  // The stages of fuse off meet in memory; a gathered layout needs room for its tiles; a block of
  // heads for each of its heads.
  const auto size = [&](uint32_t off) { return run(off).info.workspace_size; };
  EXPECT_GT(size(KDA_SWITCH_FUSE), size(KDA_SWITCH_HEAD_BLOCK));
  EXPECT_GT(size(KDA_SWITCH_UNIFIED_LAYOUT), size(0));
  EXPECT_GT(size(KDA_SWITCH_UNIFIED_LAYOUT | KDA_SWITCH_FUSE), size(KDA_SWITCH_FUSE));
  EXPECT_GT(size(0), size(KDA_SWITCH_HEAD_BLOCK));
  Runner all(c, Base()), single(c, Base().Off(KDA_SWITCH_HEAD_BLOCK));
  EXPECT_GT(all.plan().get()->heads_per_step, 1);
  EXPECT_EQ(single.plan().get()->heads_per_step, 1);
}

// Counts the tasks a plan hands out.
struct Counter {
  int64_t tasks = 0;
  static void Run(void* context, int32_t count, kda_task task, void* argument) {
    static_cast<Counter*>(context)->tasks += count;
    for (int32_t i = 0; i < count; ++i) task(argument, i);
  }
};

// flat_grid off hands out steps for chunks that do not exist: with a thread for every step they can
// be counted.
TEST_P(Ladder, FlatGridVisitsOnlyWhatExists) {
  if (!IsCpu()) return;
  const Case c = Mixed(2);  // 9 chunks a head of 9 sequences of up to 3 chunks
  const auto tasks = [&](uint32_t off) {
    Counter counter;
    Config config = Base().Off(off | KDA_SWITCH_FUSE).Threads(256);
    config.executor = {&counter, Counter::Run};
    RunCase(c, config);
    return counter.tasks;
  };
  EXPECT_LT(tasks(0), tasks(KDA_SWITCH_FLAT_GRID));
}

TEST_P(Neumann64, RightOnRandomKeysWithinThePublishedLimit) {
  if (!IsCpu()) return;
  for (Regime regime : {Regime::kMix, Regime::kSat, Regime::kNorm}) {
    const std::vector<int64_t> cu = Offsets({130, 64, 210});
    const Case c = Standard(Std(84, cu.back(), 3).Packed(cu).In(regime));
    const Oracle oracle = Solve(c);
    for (uint32_t off : {0u, KDA_SWITCH_FUSE, KDA_SWITCH_SAFE_GATE, KDA_SWITCHES_ALL}) {
      const Config config = Base().With(KDA_SOLVER_NEUMANN64).Off(off);
      const Result result = RunCase(c, config);
      const Error error = ErrorOf(result.o.values, oracle.o);
      EXPECT_TRUE(error.finite);
      EXPECT_LE(error.max_abs, kPublishedAtol) << config.Name();
      // bf16 operands leave their mark where tokens remember each other: it is not the stable
      // solver under another name.
      if (regime != Regime::kSat) {
        EXPECT_GT(error.rel_f, kProducts) << config.Name();
      }
      EXPECT_EQ(result.info.solver, KDA_SOLVER_NEUMANN64);
    }
  }
}

// What random unit keys hide: wrong by orders of magnitude where keys are alike and decay is slow.
// The default passes on the same input.
TEST_P(Neumann64, WrongOnCorrelatedKeys) {
  if (!IsCpu()) return;
  for (double common : {3.0, 1.0}) {
    for (double G : {-0.01, -0.001}) {
      const Case c = CorrelatedKeys(common, G, 0.95);
      const Oracle oracle = Solve(c);
      const Result published = RunCase(c, Base().With(KDA_SOLVER_NEUMANN64));
      const Error error = ErrorOf(published.o.values, oracle.o);
      EXPECT_TRUE(!error.finite || error.rel_f > 1) << "relF " << error.rel_f;
      if (common == 3) {
        EXPECT_TRUE(!error.finite || error.rel_f > 1e3) << "relF " << error.rel_f;
      }
      EXPECT_TRUE(Matches(c, RunCase(c, Base()), oracle));
    }
  }
}

TEST_P(Neumann64, IsNeverChosenByItself) {
  for (const Golden& golden : Goldens()) {
    if (golden.name == "LInF64") continue;
    for (const Config& config : Configs()) {
      Runner runner(golden.make(), config);
      ASSERT_TRUE(runner.status().ok());
      EXPECT_NE(runner.plan().Info().solver, KDA_SOLVER_NEUMANN64) << config.Name();
    }
  }
}

// What was asked for ran, or the record says what ran instead.
TEST_P(CaseE13, TheRecordNamesWhatRan) {
  for (const Config& config : AllSwitches()) {
    const Result result = RunCase(StdB(), config);
    EXPECT_EQ(result.info.backend, config.backend);
    EXPECT_NE(result.description.find(kda_backend_name(config.backend)), std::string::npos);
    const uint32_t asked = KDA_SWITCHES_ALL & ~config.switches_off;
    EXPECT_EQ(result.info.switches | result.info.switches_fallback, asked);
    EXPECT_EQ(result.info.switches & result.info.switches_fallback, 0u);
    if (!IsCpu()) continue;
    EXPECT_EQ(result.info.isa, config.isa);
    EXPECT_EQ(result.info.solver, config.solver);
    EXPECT_NE(result.description.find(kda_isa_name(config.isa)), std::string::npos);
    EXPECT_NE(result.description.find(kda_solver_name(config.solver)), std::string::npos);
  }
}

// Every combination the plan takes gives the right answer.
TEST_P(CaseE13, EveryGateBetaGroupingAndState) {
  for (kda_gate gate : {KDA_GATE_LOG, KDA_GATE_BOUNDED, KDA_GATE_SOFTPLUS}) {
    for (bool logits : {false, true}) {
      for (int64_t value_heads : {2, 4}) {
        for (kda_dtype state : {KDA_F32, KDA_BF16}) {
          for (bool l2norm : {false, true}) {
            Case c = Standard(Std(85, 80, 2).ValueHeads(value_heads).Packed({0, 13, 80}));
            if (gate == KDA_GATE_LOG) SetLogGate(&c, -0.1);
            c.gate = gate;
            c.beta_logits = logits;
            c.qk_l2norm = l2norm;
            c.dtypes.initial = c.dtypes.final = state;
            for (double& x : c.S0) x = reference::Round(state, x);
            ExpectRight(c, {Base(), Base().Off(KDA_SWITCHES_ALL)});
            ExpectRight(AsDecode(c), {Base()});
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kda::test
