// The mega kernel's states: where they lie, pools, checkpoints, sequences in parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/generator.h"
#include "support/goldens.h"
#include "tpu/mega_cases.h"

namespace kda::test {
namespace {

constexpr int64_t kState = 128 * 128;

// A query at row 3 reads state [3, 97] and nothing else; a key at 5 and a value at 9 write [5, 9].
TEST(MegaState, Layout) {
  const double sizes[] = {1, 2, 3, 65536, F32(1e30), F32(1e-30), F32(-1 / 3.0), 7};  // of head h
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kLog}) {
    for (int64_t T : {1, 65}) {
      Case c = InBf16(Zeros(T, 8));
      c.scale = 1;
      if (gate == MegaGate::kBounded) {
        c.gate = KDA_GATE_BOUNDED;
        c.lower_bound = -5;
        std::fill(c.g.begin(), c.g.end(), Bf16(-1e30));
      }
      c.S0.assign(static_cast<size_t>(8 * kState), 0);
      for (int64_t h = 0; h < 8; ++h) {
        c.State(0, h, 3, 97) = sizes[h];
        c.Key(0, h, 5) = c.Value(0, h, 9) = c.Beta(0, h) = 1;
        c.Q(T - 1, h, 3) = 1;
      }
      const MegaResult result = RunMega(c);
      for (int64_t h = 0; h < 8; ++h) {
        for (int64_t i = 0; i < kState; ++i) {
          const double want = i == 3 * 128 + 97 ? sizes[h] : i == 5 * 128 + 9;
          ASSERT_EQ(result.S.Get(h * kState + i), want) << h << " " << i;
        }
        for (int64_t d = 0; d < 128; ++d) {
          ASSERT_EQ(result.o.At({T - 1, h, d}), d == 97 ? Bf16(sizes[h]) : 0);
        }
      }
    }
  }
}

// --- Pools ---

Case Pool(const std::vector<int64_t>& lengths, const std::vector<int64_t>& slots, int64_t rows,
          MegaGate gate = MegaGate::kBounded, int64_t heads = 8) {
  Case c = MegaStandard(4, heads, lengths, gate);
  c.slots = slots;
  c.pool = rows;
  c.S0.resize(static_cast<size_t>(rows * heads * kState));
  for (size_t i = 0; i < c.S0.size(); ++i) c.S0[i] = F32(0.1 * Normal(4, kTagState, i));
  return c;
}

// Slots that no sequence names, and the tokens of a sequence in slot -1, are left as they are;
// whatever those tokens hold.
TEST(MegaState, PoolInPlace) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    Case c = Pool({5, 70, 33, 2}, {5, 0, -1, 2}, 7, gate);
    const MegaResult want = CheckMega(c);
    for (auto* x : {&c.q, &c.k, &c.v, &c.g}) {
      std::fill(x->begin() + 75 * 1024, x->begin() + 108 * 1024, kNan);
    }
    std::fill(c.beta.begin() + 75 * 8, c.beta.begin() + 108 * 8, kNan);
    const MegaResult got = RunMega(c);
    EXPECT_TRUE(SameBits(got, want));
    for (int64_t slot : {1, 3, 4, 6})
      EXPECT_TRUE(SameRows(got.S, slot, 1, MegaArguments(c).back(), slot));
  }
}

// More sequences than there are places on the chip, some of them skipped,
// some empty, two head groups.
TEST(MegaState, MoreSequencesThanPlaces) {
  CheckMega(Pool({1, 3, 0, 2, 9, 0, 0, 1, 64, 2, 1, 5, 4, 0, 1},
                 {14, -1, 3, 0, 7, -1, 5, 9, 12, 1, -1, -1, 2, 11, 4}, 16));
  CheckMega(Pool({1, 0, 2, 65, 3}, {4, -1, 0, 3, 1}, 5, MegaGate::kBounded, 48));
  CheckMega(Pool({3, 2, 1, 0}, {-1, -1, -1, -1}, 2));
  CheckMega(Pool({70}, {1}, 2, MegaGate::kLog));
}

TEST(MegaState, PoolHasTheBitsOfRows) {
  Case c = Pool({5, 70, 33}, {2, 0, 1}, 3);
  const MegaResult pool = RunMega(c);
  Case rows = c;
  rows.slots.clear();
  std::rotate_copy(c.S0.begin(), c.S0.begin() + 2 * 8 * kState, c.S0.end(), rows.S0.begin());
  const MegaResult plain = RunMega(rows);
  EXPECT_TRUE(pool.o == plain.o);
  for (int64_t n = 0; n < 3; ++n) EXPECT_TRUE(SameRows(pool.S, c.slots[n], 1, plain.S, n));
}

// A state that is not kept, or kept elsewhere.
TEST(MegaState, OtherFinalSlots) {
  const Case c = Pool({5, 70, 3}, {2, 0, 4}, 7);
  const MegaResult in_place = RunMega(c);
  MegaRun run;
  run.final_slots = {6, -1, 4};
  const MegaResult got = RunMega(c, run);
  EXPECT_TRUE(got.o == in_place.o);
  EXPECT_TRUE(SameRows(got.S, 6, 1, in_place.S, 2));
  EXPECT_TRUE(SameRows(got.S, 4, 1, in_place.S, 4));
  const tpu::ir::Array before = MegaArguments(c).back();
  for (int64_t slot : {0, 1, 2, 3, 5}) EXPECT_TRUE(SameRows(got.S, slot, 1, before, slot));
}

// A skipped sequence touches no slot, whatever its final one; more of them than there are places.
TEST(MegaState, SkippedWithAFinalSlot) {
  const Case c = Pool({5, 70, 3, 1, 0, 9, 2, 4}, {2, -1, 4, -1, -1, -1, 0, -1}, 12);
  const MegaResult want = CheckMega(c);
  MegaRun run;
  run.final_slots = std::vector<int64_t>{2, 5, 4, 6, 7, 8, 0, 9};
  EXPECT_TRUE(SameBits(RunMega(c, run), want));
  run.unroll = 1;
  EXPECT_TRUE(SameBits(RunMega(c, run), want));
}

TEST(MegaState, PoolWithoutInitialState) {
  Case c = Pool({5, 70, 3}, {2, -1, 0}, 3);
  c.S0.clear();
  CheckMega(c);
}

TEST(MegaState, PoolWithoutFinalState) {
  Case c = Pool({5, 70, 3}, {2, -1, 0}, 3);
  const MegaResult with = RunMega(c);
  c.want_state = false;
  EXPECT_TRUE(CheckMega(c).o == with.o);
}

// --- Checkpoints ---

TEST(MegaState, Checkpoints) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    for (int64_t every : {1, 10, 50, 64, 100}) {
      SCOPED_TRACE(Name(gate) + " every " + std::to_string(every));
      if (gate == MegaGate::kSoftplus && every != 10 && every != 64) continue;
      Case c = every == 1 ? MegaStandard(5, 8, {3, 0, 9}, gate)
                          : MegaStandard(5, 8, {130, 9, 0, 100}, gate);
      c.checkpoint_every = every;
      const MegaResult result = CheckMega(c);
      if (every == 64) {
        Case plain = c;
        plain.checkpoint_every = 0;
        const MegaResult want = RunMega(plain);
        EXPECT_TRUE(result.o == want.o);
        EXPECT_TRUE(result.S == want.S);
      }
    }
  }
}

// A checkpoint is the final state of the tokens so far.
TEST(MegaState, CheckpointsAreFinalStates) {
  Case c = MegaStandard(10, 8, {130}, MegaGate::kBounded);
  for (int64_t every : {64, 65}) {
    c.checkpoint_every = every;
    const MegaResult result = CheckMega(c);
    for (int64_t row = 0; row < 2; ++row) {
      Case part = Slice(c, 0, (row + 1) * every, 0);
      part.cu = {0, part.T};
      part.checkpoint_every = every;
      EXPECT_TRUE(SameRows(result.checkpoints, row, 1, RunMega(part).S, 0)) << row;
    }
  }
}

// Rows of a skipped sequence are counted and left; those of sequences too
// short for one do not exist.
TEST(MegaState, CheckpointsOfAPool) {
  Case c = Pool({70, 130, 9, 64, 0}, {3, -1, 2, 0, 1}, 5);
  for (int64_t every : {64, 30}) {
    c.checkpoint_every = every;
    CheckMega(c);
  }
  c.want_state = false;
  CheckMega(c);
  c.S0.clear();
  CheckMega(c);
}

TEST(MegaState, CheckpointsOfTwoGroupsOfHeads) {
  Case c = MegaStandard(5, 48, {20, 3, 7}, MegaGate::kBounded);
  c.checkpoint_every = 7;
  CheckMega(c);
}

// --- Parts ---

// Cut where chunks end, nothing changes; elsewhere, nothing that counts.
TEST(MegaState, SplitAnywhere) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    const Case c = MegaStandard(6, 8, {150}, gate);
    const MegaResult whole = RunMega(c);
    const Oracle oracle = Solve(c);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{64, 128}, {1, 149}, {17, 50, 51}, {63}, {65}}) {
      if (gate == MegaGate::kSoftplus && cuts.front() != 64) continue;
      MegaResult all;
      all.o = tpu::ir::Array(tpu::ir::DType::kBF16, {150, 8, 128});
      std::vector<double> state = c.S0;
      int64_t first = 0;
      for (size_t i = 0; i <= cuts.size(); ++i) {
        const int64_t last = i < cuts.size() ? cuts[i] : 150;
        Case part = Slice(c, first, last, -1);
        part.cu = {0, part.T};
        part.S0 = state;
        const MegaResult result = RunMega(part);
        std::copy_n(result.o.bf16(), part.T * 1024, all.o.bf16() + first * 1024);
        all.S = result.S;
        const std::vector<float> floats = result.S.Floats();
        state.assign(floats.begin(), floats.end());
        first = last;
      }
      const MegaErrors e = ErrorsOf(c, all, oracle);
      SCOPED_TRACE(cuts.front());
      EXPECT_EQ(e.fault, "");
      EXPECT_LE(e.o, kTpuLimit);
      EXPECT_LE(e.S, kTpuLimit);
      EXPECT_LE(e.part, kTpuLimit);
      EXPECT_TRUE(cuts.front() % 64 != 0 || SameBits(all, whole));
    }
  }
}

}  // namespace
}  // namespace kda::test
