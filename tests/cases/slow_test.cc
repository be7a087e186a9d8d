// Long sequences and costs: what takes seconds.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "support/engine_test.h"
#include "support/generator.h"
#include "support/goldens.h"
#include "support/parts.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

KDA_CASE(CaseB11);
KDA_CASE(CaseB15);
KDA_CASE(CaseB16);
KDA_CASE(PublishedLengths);

// How many times as long `x` takes as `y`: the fastest runs of each, taken in turn. What else runs
// on the machine only ever adds to a time, and not to both alike: while the ratio is not below
// `limit` there are more runs, up to 100 of each.
double RatioOfTimes(const Runner& x, const Runner& y, double limit) {
  const auto seconds = [](const Runner& runner) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(runner.RunOnly().ok());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return took.count();
  };
  double best_x = 1e9, best_y = 1e9;
  for (int i = 0; i < 7 || (i < 100 && best_x >= limit * best_y); ++i) {
    best_x = std::min(best_x, seconds(x));
    best_y = std::min(best_y, seconds(y));
  }
  return best_x / best_y;
}

Case OfLengths(const std::vector<int64_t>& lengths, int64_t heads) {
  const std::vector<int64_t> cu = Offsets(lengths);
  return Standard(Std(97, cu.back(), heads).Packed(cu).NoState());
}

// 512 sequences of 1 to 7 tokens against one of as many tokens.
TEST_P(CaseB11, CostOfShortSequences) {
  if (!IsCpu() || FastTests()) GTEST_SKIP() << "ratios of times: CPU backend, full builds";
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 512; ++i) lengths.push_back(1 + i % 7);
  const int64_t total = Offsets(lengths).back();
  Case many = OfLengths(lengths, 16), one = OfLengths({total}, 16);
  many.want_state = one.want_state = false;
  const double limit = 4;  // 1.1 to 1.6 on a quiet machine
  const double ratio = RatioOfTimes(Runner(many, Base()), Runner(one, Base()), limit);
  RecordProperty("ratio", std::to_string(ratio));
  EXPECT_LT(ratio, limit);
}

TEST_P(CaseB11, SingleTokensAreNearlyDecode) {
  if (!IsCpu() || FastTests()) GTEST_SKIP() << "ratios of times: CPU backend, full builds";
  const Case prefill = OfLengths(std::vector<int64_t>(256, 1), 8);
  const Case decode = AsDecode(prefill);
  const double limit = 1.5;  // 1.0 on a quiet machine
  const double ratio = RatioOfTimes(Runner(prefill, Base()), Runner(decode, Base()), limit);
  RecordProperty("ratio", std::to_string(ratio));
  EXPECT_LT(ratio, limit);
}

// Finding a chunk's sequence must not take longer the more sequences there are.
TEST_P(CaseB11, ManySequencesCostNoMoreEach) {
  if (!IsCpu() || FastTests()) GTEST_SKIP() << "ratios of times: CPU backend, full builds";
  const auto sequences = [](int64_t count) {
    const std::vector<int64_t> cu = Offsets(std::vector<int64_t>(static_cast<size_t>(count), 2));
    // Small heads, no states: both problems fit the cache.
    Case c = Standard(Std(97, cu.back(), 1).Dims(8, 8).Packed(cu).NoState());
    c.want_state = false;
    return c;
  };
  const Case few = sequences(64), many = sequences(4096);
  const double limit = 2;  // 1.0 on a quiet machine
  const double each = RatioOfTimes(Runner(many, Base()), Runner(few, Base()), 64 * limit) / 64;
  RecordProperty("ratio", std::to_string(each));
  EXPECT_LT(each, limit);
}

TEST_P(CaseB15, LongSequences) {
  std::vector<int64_t> lengths = {16384};
  if (FastTests()) {
    lengths = {2048};
  } else if (IsCpu()) {
    lengths = {16384, 32768};
  }
  for (int64_t T : lengths) {
    SCOPED_TRACE(T);
    const Case c = Standard(Std(98, T, 1).In(Regime::kSlow));
    ExpectRight(c, {Base()});
  }
}

TEST_P(CaseB15, LongSequencesPacked) {
  const int64_t T = FastTests() ? 1024 : 8192;
  const Case c =
      Standard(Std(98, T, 2).In(Regime::kSlow).Packed({0, T / 2 - 1, T / 2 - 1, T / 2 + 2, T}));
  ExpectRight(c, {Base().Threads(2), Base().Off(KDA_SWITCHES_ALL).Threads(2)});
}

// Longer than the oracle can follow: the end of one run equals a run from a checkpoint on the way.
TEST_P(CaseB15, VeryLongByTheState) {
  if (!IsCpu() || FastTests()) GTEST_SKIP() << "CPU backend, full builds";
  const int64_t T = 131072, tail = 4096;
  Case c = Standard(Std(98, tail, 1).In(Regime::kSlow));
  // The same 4096 tokens over and over.
  const auto repeat = [&](std::vector<double>* x) {
    const std::vector<double> once = *x;
    x->clear();
    for (int64_t i = 0; i < T / tail; ++i) x->insert(x->end(), once.begin(), once.end());
  };
  for (auto* x : {&c.q, &c.k, &c.v, &c.g, &c.beta}) repeat(x);
  c.T = T;
  c.checkpoint_every = T - tail;
  const Result whole = RunCase(c, Base());
  Case rest = Slice(c, T - tail, T, -1);
  rest.checkpoint_every = 0;
  rest.S0 = whole.checkpoints.values;
  const Result end = RunCase(rest, Base());
  EXPECT_TRUE(SameBits(RowBits(c, whole.o, T - tail, T), end.o.bits));
  EXPECT_TRUE(SameBits(whole.S.bits, end.S.bits));
  ExpectRight(rest, {Base()});
}

// Errors do not grow faster than the number of tokens.
TEST_P(CaseB16, ErrorGrowth) {
  if (!IsCpu()) GTEST_SKIP() << "the oracle against itself";
  const int64_t T = FastTests() ? 8192 : 65536, step = T / 8;
  Case c = Standard(Std(99, step, 1));
  SetLogGate(&c, 0);
  for (size_t i = 0; i < c.g.size(); ++i) {
    c.g[i] = F32(-std::exp(-12 + 10 * static_cast<double>(i % 128) / 127));
  }
  Case exact = c, stored = c;
  double first = 0;
  for (int64_t i = 0; i < 8; ++i) {
    const Oracle oracle = Solve(exact);
    const Result result = RunCase(stored, Base());
    const double error = ErrorOf(result.S.values, oracle.S).rel_f;
    if (i == 0) first = error;
    // 1e-3 of fp32 products over all this length; of bf16 ones no more than of a single chunk.
    EXPECT_LE(error, std::max(1e-3, ProductsError(result.info.products)));
    EXPECT_LE(error, 2 * first * static_cast<double>(i + 1)) << "after " << (i + 1) * step;
    exact.S0 = oracle.S;
    stored.S0 = result.S.values;
  }
}

// The lengths and head counts of the published tests, and 32k tokens x 4.
TEST_P(PublishedLengths, MixedLengthsManyHeads) {
  for (int64_t heads : {8, 16, 24, 32, 96}) {
    if (FastTests() && heads > 8) continue;
    const std::vector<int64_t> cu = Offsets({130, 64, 210});
    ExpectRight(Standard(Std(100, cu.back(), heads).Packed(cu)),
                {Base().Threads(2), Base().Off(KDA_SWITCHES_ALL).Threads(2)});
  }
  const std::vector<int64_t> cu = Offsets({53, 14, 13, 33, 16, 480, 512, 77});
  for (Regime regime : kRegimes) {
    if (FastTests() && regime != Regime::kMix) continue;
    ExpectRight(Standard(Std(101, cu.back(), 8).Packed(cu).In(regime)),
                {Base().Threads(2), Base().Off(KDA_SWITCHES_ALL).Threads(2)});
  }
}

}  // namespace
}  // namespace kda::test
