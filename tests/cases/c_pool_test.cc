// Group C: a pool of states, addressed by slots.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/dtypes.h"
#include "support/engine_test.h"
#include "support/goldens.h"

namespace kda::test {
namespace {

KDA_CASE(CaseC10);

// StdB's four sequences on a pool of seven slots; the third is skipped.
Case Pool() {
  Case c = StdB();
  const int64_t state = 2 * 128 * 128;
  std::vector<double> pool(static_cast<size_t>(7 * state));
  for (size_t i = 0; i < pool.size(); ++i) {
    pool[i] = static_cast<double>(1 + static_cast<int64_t>(i) / state) / 8 +
              static_cast<double>(i % 37) / 1024;
  }
  c.S0 = pool;
  c.pool = 7;
  c.slots = {5, 0, -1, 2};
  return c;
}

TEST_P(CaseC10, SlotsInPlace) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    for (kda_dtype dtype : {KDA_F32, KDA_BF16}) {
      Case c = Pool();
      c.mode = mode;
      c.in_place = true;
      c.dtypes.initial = c.dtypes.final = dtype;
      for (double& x : c.S0) x = reference::Round(dtype, x);
      TensorBuffer before(dtype, {7, 2, 128, 128}, Layout(), KDA_STATE_KV, 0);
      before.Write(c.S0);
      const Oracle oracle = Solve(c);
      for (const Config& config : ConfigsFor(mode)) {
        SCOPED_TRACE(config.Name());
        const Result result = RunCase(c, config);
        EXPECT_TRUE(Matches(c, result, oracle));
        for (int64_t slot : {1, 3, 4, 5, 6}) {  // 5: an empty sequence's, handed on as it is
          EXPECT_TRUE(SameBits(StateBits(c, result.S, slot), StateBits(c, before.Read(), slot)))
              << slot;
        }
        for (uint32_t bits : RowBits(c, result.o, 5, 21)) ASSERT_EQ(bits, 0u);
      }
    }
  }
}

TEST_P(CaseC10, SlotsIntoAnotherPool) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case c = Pool();
    c.mode = mode;
    const Oracle oracle = Solve(c);
    for (const Config& config : ConfigsFor(mode)) {
      SCOPED_TRACE(config.Name());
      const Result result = RunCase(c, config);
      EXPECT_TRUE(Matches(c, result, oracle));
      for (int64_t slot : {1, 3, 4, 6}) {
        EXPECT_TRUE(IsPoison(StateBits(c, result.S, slot), KDA_F32, kPoisonHuge)) << slot;
      }
    }
  }
}

// The same bits whatever slots the sequences use, and as without slots.
TEST_P(CaseC10, SlotsChangeNoBits) {
  const Case plain = StdB();
  for (const Config& config : Configs()) {
    const Result expected = RunCase(plain, config);
    Case c = plain;
    c.pool = 4;
    c.slots = {3, 1, 0, 2};
    const int64_t state = 2 * 128 * 128;
    for (int64_t n = 0; n < 4; ++n) {
      std::copy_n(plain.S0.begin() + n * state, state,
                  c.S0.begin() + c.slots[static_cast<size_t>(n)] * state);
    }
    const Result result = RunCase(c, config);
    EXPECT_TRUE(SameBits(expected.o.bits, result.o.bits)) << config.Name();
    for (int64_t n = 0; n < 4; ++n) {
      EXPECT_TRUE(SameBits(StateBits(plain, expected.S, n),
                           StateBits(c, result.S, c.slots[static_cast<size_t>(n)])));
    }
  }
}

TEST_P(CaseC10, EverySequenceSkipped) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case c = Pool();
    c.mode = mode;
    c.slots = {-1, -1, -1, -1};
    for (double& x : c.q) x = kNan;
    for (const Config& config : ConfigsFor(mode)) {
      const Result result = RunCase(c, config);
      for (uint32_t bits : result.o.bits) ASSERT_EQ(bits, 0u);
      EXPECT_TRUE(IsPoison(result.S.bits, KDA_F32, kPoisonHuge));
    }
  }
}

// A skipped sequence's inputs may hold anything.
TEST_P(CaseC10, SkippedInputsAreNotRead) {
  const Case c = Pool();
  for (const Config& config : Configs()) {
    const Result clean = RunCase(c, config);
    Case dirty = c;
    for (int64_t t = 5; t < 21; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        dirty.Beta(t, h) = kNan;
        for (int64_t d = 0; d < 128; ++d) dirty.G(t, h, d) = dirty.Key(t, h, d) = kNan;
      }
    }
    EXPECT_TRUE(SameBits(clean, RunCase(dirty, config))) << config.Name();
  }
}

// The pool only read.
TEST_P(CaseC10, SlotsWithoutFinalState) {
  Case c = Pool();
  c.want_state = false;
  c.slots = {5, 0, -1, 2};
  ExpectRight(c);
}

}  // namespace
}  // namespace kda::test
