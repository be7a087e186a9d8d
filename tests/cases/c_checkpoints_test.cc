// Group C: states at interior tokens, and speculative windows built on them.
#include <gtest/gtest.h>

#include <cmath>

#include "support/engine_test.h"
#include "support/goldens.h"
#include "support/parts.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

KDA_CASE(CaseC12);
KDA_CASE(CaseC13);

// Every checkpoint has the bits of the final state of a run on the tokens before it, and asking for
// checkpoints changes nothing else.
void ExpectCheckpoints(const Case& c, const Config& config) {
  SCOPED_TRACE(config.Name());
  const Result with = RunCase(c, config);
  Case plain = c;
  plain.checkpoint_every = 0;
  plain.checkpoint_offsets.clear();
  plain.checkpoint_tokens.clear();
  const Result without = RunCase(plain, config);
  EXPECT_TRUE(SameBits(with.o.bits, without.o.bits)) << "o";
  EXPECT_TRUE(SameBits(with.S.bits, without.S.bits)) << "final_state";

  Runner runner(c, config);
  for (int64_t row = 0; row < c.Checkpoints(); ++row) {
    int64_t n = -1, token = -1;
    int32_t written = -1;
    ASSERT_EQ(kda_plan_checkpoint(runner.plan().get(), row, &n, &token, &written), KDA_OK);
    SCOPED_TRACE("sequence " + std::to_string(n) + " token " + std::to_string(token));
    ASSERT_EQ(written != 0, token <= c.Length(n));
    if (written == 0) {
      EXPECT_TRUE(IsPoison(StateBits(c, with.checkpoints, row), c.dtypes.checkpoints, kPoisonHuge));
      continue;
    }
    Case prefix = Slice(plain, c.First(n), c.First(n) + token, n);
    prefix.dtypes.final = c.dtypes.checkpoints;
    EXPECT_TRUE(SameBits(StateBits(c, with.checkpoints, row), RunCase(prefix, config).S.bits));
  }
}

Case WithList(Case c, std::vector<int64_t> offsets, std::vector<int64_t> tokens) {
  c.checkpoint_offsets = std::move(offsets);
  c.checkpoint_tokens = std::move(tokens);
  return c;
}

TEST_P(CaseC12, EverySoManyTokens) {
  for (int64_t every : {64, 16, 1, 7, 100, 130, 131}) {
    Case c = StdK();
    c.checkpoint_every = every;
    const auto configs = every == 64 ? Configs() : std::vector<Config>{Base()};
    ExpectRight(c, configs);
    for (const Config& config : configs) ExpectCheckpoints(c, config);
  }
}

TEST_P(CaseC12, ListedTokens) {
  for (const std::vector<int64_t>& tokens :
       {std::vector<int64_t>{128}, {64, 128}, {16}, {1, 5, 63, 64, 65, 100, 127, 129, 130}}) {
    const Case c = WithList(StdK(), {0, static_cast<int64_t>(tokens.size())}, tokens);
    ExpectRight(c);
    for (const Config& config : Configs()) ExpectCheckpoints(c, config);
  }
}

TEST_P(CaseC12, GoldenAt128) {
  const Case c = WithList(StdK(), {0, 1}, {128});
  const Result result = RunCase(c, Base());
  const double limit = ProductsError(result.info.products);
  EXPECT_NEAR(Norm(result.checkpoints.values), 39.6111044776, limit * 39.6);
  EXPECT_NEAR(result.checkpoints.values[0], 0.155060021221, limit / 2);
  EXPECT_NEAR(ErrorOf(result.S.values, result.checkpoints.values).rel_f, 0.36, 0.01);
}

// Offsets count from each sequence's start; those beyond its length are left alone, and said so.
TEST_P(CaseC12, Packed) {
  const Case base = Standard(Std(10, 220, 2).Packed({0, 0, 20, 150, 220}));
  const Case c = WithList(base, {0, 1, 3, 6, 7}, {1, 20, 64, 64, 65, 130, 71});
  ExpectRight(c);
  for (const Config& config : Configs()) {
    ExpectCheckpoints(c, config);
    EXPECT_EQ(RunCase(c, config).info.checkpoints_skipped, 3);  // 1 of none, 64 of 20, 71 of 70
  }
  Case every = base;
  every.checkpoint_every = 32;
  ExpectRight(every);
  for (const Config& config : Configs()) ExpectCheckpoints(every, config);
}

TEST_P(CaseC12, StatesInOtherDtypesAndOrders) {
  for (kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
    Case c = StdK();
    c.order = order;
    c.dtypes.checkpoints = KDA_BF16;
    c.checkpoint_every = 50;
    ExpectRight(c);
    for (const Config& config : Configs()) ExpectCheckpoints(c, config);
    c.mode = KDA_DECODE;
    c.dtypes.final = KDA_BF16;
    ExpectRight(c, {Base()});
  }
}

TEST_P(CaseC12, WithoutFinalState) {
  Case c = StdK();
  c.checkpoint_every = 64;
  const Result with = RunCase(c, Base());
  c.want_state = false;
  const Result without = RunCase(c, Base());
  EXPECT_TRUE(SameBits(with.o.bits, without.o.bits));
  EXPECT_TRUE(SameBits(with.checkpoints.bits, without.checkpoints.bits));
}

TEST_P(CaseC12, SkippedSequencesWriteNone) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case c = Standard(Std(10, 150, 2).Packed({0, 70, 150}));
    c.mode = mode;
    c.pool = 2;
    c.slots = {-1, 1};
    c.checkpoint_every = 35;
    for (const Config& config : ConfigsFor(mode)) {
      const Result result = RunCase(c, config);
      EXPECT_EQ(result.info.checkpoints, 4);
      EXPECT_EQ(result.info.checkpoints_skipped, 2);
      for (int64_t row : {0, 1}) {
        EXPECT_TRUE(IsPoison(StateBits(c, result.checkpoints, row), KDA_F32, kPoisonHuge));
      }
      for (int64_t row : {2, 3}) {
        EXPECT_FALSE(IsPoison(StateBits(c, result.checkpoints, row), KDA_F32, kPoisonHuge));
      }
    }
  }
}

// 50 tokens by prefill, then a window of five drafts.
struct Window {
  Case drafts;  // decode, the states after each token as checkpoints
  Case plain;   // the five tokens one by one
};

Window MakeWindow(const Config& config, kda_dtype dtype, kda_state_order order) {
  Case c = Standard(Std(13, 55, 2));
  c.dtypes.final = c.dtypes.checkpoints = dtype;
  c.order = order;
  const Result prompt = RunCase(Slice(c, 0, 50, 0), config);
  Window window;
  window.plain = AsDecode(Slice(c, 50, 55, -1));
  window.plain.S0 = prompt.S.values;
  window.plain.dtypes.initial = dtype;
  window.drafts = window.plain;
  window.drafts.checkpoint_every = 1;
  return window;
}

TEST_P(CaseC13, StatesAfterEachDraftAreThoseOfDecodeCalls) {
  for (kda_dtype dtype : {KDA_F32, KDA_BF16}) {
    for (kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
      const Window w = MakeWindow(Base(), dtype, order);
      const Result result = RunCase(w.drafts, Base());
      for (int64_t m = 1; m <= 5; ++m) {
        const Result calls = RunInParts(w.plain, OneByOne(m, KDA_DECODE), Base());
        EXPECT_TRUE(SameBits(StateBits(w.drafts, result.checkpoints, m - 1), calls.S.bits)) << m;
        EXPECT_TRUE(SameBits(RowBits(w.drafts, result.o, 0, m), calls.o.bits)) << m;
      }
      EXPECT_TRUE(SameBits(result.S.bits, StateBits(w.drafts, result.checkpoints, 4)));
    }
  }
}

// The other way to commit: a call with as many tokens as were accepted.
TEST_P(CaseC13, ShorterWindowsCommitTheSame) {
  for (kda_dtype dtype : {KDA_F32, KDA_BF16}) {
    const Window w = MakeWindow(Base(), dtype, KDA_STATE_KV);
    const Result all = RunCase(w.drafts, Base());
    for (int64_t m : {0, 1, 3, 5}) {
      Case c = w.plain;
      c.cu = {0, m};  // the other rows are capacity
      c.in_place = true;
      const Result result = RunCase(c, Base());
      TensorBuffer initial(dtype, {1, 2, 128, 128}, Layout(), KDA_STATE_KV, 0);
      initial.Write(c.S0);
      EXPECT_TRUE(SameBits(result.S.bits, m == 0 ? initial.Read().bits
                                                 : StateBits(w.drafts, all.checkpoints, m - 1)))
          << m;
    }
  }
}

TEST_P(CaseC13, RejectedDraftsLeaveNoTrace) {
  const Window w = MakeWindow(Base(), KDA_F32, KDA_STATE_KV);
  const Result clean = RunCase(w.drafts, Base());
  for (int64_t m : {1, 3}) {
    Case c = w.drafts;
    for (int64_t t = m; t < 5; ++t) {
      for (int64_t j = 0; j < 128; ++j) c.Value(t, 0, j) = c.Value(t, 1, j) = kNan;
    }
    const Result result = RunCase(c, Base());
    for (int64_t row = 0; row < m; ++row) {
      EXPECT_TRUE(
          SameBits(StateBits(c, result.checkpoints, row), StateBits(c, clean.checkpoints, row)));
    }
    EXPECT_TRUE(SameBits(RowBits(c, result.o, 0, m), RowBits(c, clean.o, 0, m)));
  }
}

// Two windows in one call, accepted to different lengths, and one that is skipped.
TEST_P(CaseC13, DifferentLengthsAndSkippedRows) {
  Case c = AsDecode(Standard(Std(13, 15, 2).Packed({0, 5, 10, 15})));
  c.pool = 3;
  c.slots = {2, -1, 0};
  c.checkpoint_every = 1;
  c.in_place = true;
  const Result window = RunCase(c, Base());
  EXPECT_EQ(window.info.checkpoints_skipped, 5);
  const int64_t accepted[] = {1, 0, 3};
  for (int64_t n : {0, 2}) {
    Case alone = Slice(c, 5 * n, 5 * n + accepted[n], c.slots[static_cast<size_t>(n)]);
    alone.slots.clear();
    alone.checkpoint_every = 0;
    alone.in_place = false;
    const Result calls = RunInParts(alone, OneByOne(accepted[n], KDA_DECODE), Base());
    EXPECT_TRUE(SameBits(StateBits(c, window.checkpoints, 5 * n + accepted[n] - 1), calls.S.bits));
  }
}

}  // namespace
}  // namespace kda::test
