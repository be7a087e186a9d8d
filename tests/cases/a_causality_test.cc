// Group A: what must not change an output by a bit - later tokens, NaNs elsewhere, other sequences.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/engine_test.h"
#include "support/goldens.h"

namespace kda::test {
namespace {

KDA_CASE(CaseA12);
KDA_CASE(CaseA18);
KDA_CASE(CaseA20);

// One value of a case spoilt at token 10 (of sequence 2), head 1.
using Spoil = std::function<void(Case*, double)>;
struct Spoiler {
  const char* name;
  Spoil spoil;
};
std::vector<Spoiler> Spoilers() {
  return {{"g", [](Case* c, double x) { c->G(10, 1, 5) = x; }},
          {"q", [](Case* c, double x) { c->Q(10, 1, 5) = x; }},
          {"k", [](Case* c, double x) { c->Key(10, 1, 5) = x; }},
          {"v", [](Case* c, double x) { c->Value(10, 1, 5) = x; }},
          {"beta", [](Case* c, double x) { c->Beta(10, 1) = x; }}};
}

// Everything but head 1 of sequence 2 (tokens 5..20) from token `first` on.
void ExpectOthersUnchanged(const Case& c, const Result& clean, const Result& spoilt,
                           int64_t first) {
  EXPECT_TRUE(SameBits(RowBits(c, clean.o, 0, 70, 0), RowBits(c, spoilt.o, 0, 70, 0)));
  EXPECT_TRUE(SameBits(RowBits(c, clean.o, 0, first, 1), RowBits(c, spoilt.o, 0, first, 1)));
  EXPECT_TRUE(SameBits(RowBits(c, clean.o, 21, 70, 1), RowBits(c, spoilt.o, 21, 70, 1)));
  for (int64_t n = 0; n < 4; ++n) {
    EXPECT_TRUE(SameBits(StateBits(c, clean.S, n, 0), StateBits(c, spoilt.S, n, 0)));
    if (n == 2) continue;
    EXPECT_TRUE(SameBits(StateBits(c, clean.S, n, 1), StateBits(c, spoilt.S, n, 1)));
  }
}

TEST_P(CaseA12, NanStaysInItsHeadAndFuture) {
  const Case c = StdB();
  for (const Config& config : FastTests() ? Configs() : AllSwitches()) {
    SCOPED_TRACE(config.Name());
    const Result clean = RunCase(c, config);
    for (const Spoiler& s : Spoilers()) {
      SCOPED_TRACE(s.name);
      Case dirty = c;
      s.spoil(&dirty, kNan);
      const Result spoilt = RunCase(dirty, config);
      ExpectOthersUnchanged(c, clean, spoilt, 10);
      // And a NaN that should be seen is seen.
      const std::vector<double>& o = spoilt.o.values;
      bool nan = false;
      for (size_t j = 0; j < 128; ++j) nan = nan || std::isnan(o[(10 * 2 + 1) * 128 + j]);
      EXPECT_TRUE(nan) << "the NaN vanished";
    }
    Case dirty = c;
    dirty.State(2, 1, 3, 4) = kNan;
    ExpectOthersUnchanged(c, clean, RunCase(dirty, config), 5);
  }
}

// Tokens up to P - 1 must not notice what token P and later hold.
void ExpectCausal(const Case& c, int64_t first, const Config& config, const Result& clean,
                  bool strange = false) {
  const auto changed = [&](const Spoil& spoil, double x) {
    Case other = c;
    spoil(&other, x);
    return SameBits(RowBits(c, clean.o, 0, first), RowBits(c, RunCase(other, config).o, 0, first));
  };
  const auto all = [&](std::vector<double> Case::*tensor, int64_t width) {
    return [=](Case* other, double x) {
      std::vector<double>& values = other->*tensor;
      for (size_t i = static_cast<size_t>(first * width); i < values.size(); ++i) values[i] = x;
    };
  };
  const int64_t heads = c.HV;
  const Spoil g = all(&Case::g, heads * 128), k = all(&Case::k, heads * 128),
              v = all(&Case::v, heads * 128), beta = all(&Case::beta, heads);
  EXPECT_TRUE(changed(g, 20)) << "g +20";
  EXPECT_TRUE(changed(g, -20)) << "g -20";
  EXPECT_TRUE(changed(k, 0.5)) << "k";
  EXPECT_TRUE(changed(v, -3)) << "v";
  EXPECT_TRUE(changed(beta, 2)) << "beta";
  if (strange) {
    for (double x : {std::nan(""), kInf}) {
      EXPECT_TRUE(changed(g, x)) << "g " << x;
      EXPECT_TRUE(changed(k, x)) << "k " << x;
      EXPECT_TRUE(changed(v, x)) << "v " << x;
      EXPECT_TRUE(changed(beta, x)) << "beta " << x;
    }
  }
  EXPECT_TRUE(changed(
      [&](Case* other, double) {
        g(other, 20);
        k(other, 0.25);
        v(other, 7);
        beta(other, -2);
      },
      0))
      << "all";
}

TEST_P(CaseA18, TheLastTokenChangesNoEarlierOutput) {
  for (Regime regime : {Regime::kMix, Regime::kSlow}) {
    const Case c = Standard(Std(15, 25, 3).In(regime));
    for (const Config& config : Configs()) {
      SCOPED_TRACE(config.Name());
      ExpectCausal(c, 24, config, RunCase(c, config));
    }
  }
}

// A last chunk of one token takes the decode step: with fp32 products the bits of a longer one's.
TEST_P(CaseA18, OneTokenMore) {
  for (Regime regime : {Regime::kMix, Regime::kSlow}) {
    Case longer = Standard(Std(15, 66, 3).In(regime));
    StoreAsF32(&longer);
    Case shorter = Standard(Std(15, 66, 3).Packed({0, 65}).In(regime));
    StoreAsF32(&shorter);
    ASSERT_EQ(longer.q, shorter.q);
    EXPECT_TRUE(SameBits(RowBits(longer, RunCase(longer, Base()).o, 0, 65),
                         RowBits(shorter, RunCase(shorter, Base()).o, 0, 65)));
  }
}

TEST_P(CaseA18, EveryShortLength) {
  for (Regime regime : {Regime::kMix, Regime::kSlow}) {
    for (int64_t T = 2; T <= 33; T += FastTests() ? 5 : 1) {
      const Case c = Standard(Std(15, T, 3).In(regime));
      for (const Config& config : {Base(), Base().Off(KDA_SWITCHES_ALL)}) {
        SCOPED_TRACE(config.Name() + " T " + std::to_string(T));
        const Result clean = RunCase(c, config);
        ExpectCausal(c, T - 1, config, clean);
        ExpectCausal(c, (T + 1) / 2, config, clean);
      }
    }
  }
}

TEST_P(CaseA18, AcrossBlocksAndChunks) {
  const Case c = Standard(Std(15, 140, 2));
  for (const Config& config : Configs()) {
    SCOPED_TRACE(config.Name());
    const Result clean = RunCase(c, config);
    for (int64_t first : {16, 33, 63, 64, 65, 100, 129})
      ExpectCausal(c, first, config, clean, true);
  }
}

TEST_P(CaseA18, UnboundedGates) {
  Case c = Standard(Std(15, 100, 2));
  SetLogGate(&c, -0.3);
  for (const Config& config : Configs()) {
    const Result clean = RunCase(c, config);
    for (double G : {-kInf, -1e4, 0.0}) {
      Case other = c;
      for (size_t i = 50 * 2 * 128; i < other.g.size(); ++i) other.g[i] = G;
      EXPECT_TRUE(SameBits(RowBits(c, clean.o, 0, 50), RowBits(c, RunCase(other, config).o, 0, 50)))
          << config.Name() << " G " << G;
    }
  }
}

TEST_P(CaseA18, ALaterSequenceChangesNothing) {
  const Case c = Standard(Std(15, 75, 3).Packed({0, 25, 50, 75}));
  for (const Config& config : Configs()) {
    SCOPED_TRACE(config.Name());
    ExpectCausal(c, 50, config, RunCase(c, config));
  }
}

TEST_P(CaseA20, SequenceBoundariesInsideATile) {
  for (int64_t heads : {1, FastTests() ? 4 : 16}) {
    for (const std::vector<int64_t>& cu :
         {std::vector<int64_t>{0, 31, 33, 128}, {0, 61, 128}, {0, 1, 64, 128}, {0, 127, 128}}) {
      const Case c = Standard(Std(3, 128, heads).Packed(cu).In(Regime::kSat));
      const Oracle oracle = Solve(c);
      const auto configs = heads == 1
                               ? Configs()
                               : std::vector<Config>{Base(), Base().Off(KDA_SWITCH_HEAD_BLOCK),
                                                     Base().Off(KDA_SWITCHES_ALL)};
      for (const Config& config : configs) {
        SCOPED_TRACE(config.Name());
        const Result packed = RunCase(c, config);
        EXPECT_TRUE(Matches(c, packed, oracle));
        for (int64_t n = 0; n < c.Sequences(); ++n) {
          const Case alone = Alone(c, n);
          const Result result = RunCase(alone, config);
          EXPECT_TRUE(
              SameBits(result.o.bits, RowBits(c, packed.o, c.First(n), c.First(n) + c.Length(n))));
          EXPECT_TRUE(SameBits(result.S.bits, StateBits(c, packed.S, n)));
        }
      }
      if (FastTests() && heads > 1) break;
    }
  }
}

}  // namespace
}  // namespace kda::test
