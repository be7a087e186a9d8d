// What must not change a bit of the mega kernel's results: packing, padding, the order of copies,
// what other sequences and heads hold; and its states: pools, checkpoints, empty sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/generator.h"
#include "support/goldens.h"
#include "tpu/mega_cases.h"

namespace kda::test {
namespace {

using Copies = tpu::ir::EvaluateOptions::Copies;

// Sequence n of `packed` has the bits that `alone` has.
void ExpectSameSequence(const Case& c, int64_t n, const MegaResult& packed,
                        const MegaResult& alone) {
  EXPECT_TRUE(SameRows(packed.o, c.First(n), c.Length(n), alone.o, 0)) << "o of " << n;
  EXPECT_TRUE(SameRows(packed.S, n, 1, alone.S, 0)) << "S of " << n;
}

Case AloneInMega(const Case& c, int64_t n) {
  Case alone = Alone(c, n);
  alone.cu = {0, alone.T};
  return alone;
}

TEST(MegaBits, AloneAndPacked) {
  const std::vector<int64_t> lengths = {1, 15, 64, 17, 33, 63, 65, 31, 2, 48, 130};
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    SCOPED_TRACE(Name(gate));
    const Case c = MegaStandard(1, 8, lengths, gate);
    const MegaResult packed = RunMega(c);
    for (int64_t n = 0; n < c.Sequences(); ++n) {
      if (gate != MegaGate::kBounded && n % 3 != 1) continue;
      ExpectSameSequence(c, n, packed, RunMega(AloneInMega(c, n)));
    }
  }
}

// Sequences that meet inside a tile.
TEST(MegaBits, BoundaryInsideATile) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{61, 67}, {1, 63, 64}, {31, 2, 95}, {127, 1}}) {
    const Case c = MegaStandard(3, 8, lengths, MegaGate::kBounded, Regime::kSat);
    const MegaResult packed = CheckMega(c);
    for (int64_t n = 0; n < c.Sequences(); ++n) {
      ExpectSameSequence(c, n, packed, RunMega(AloneInMega(c, n)));
    }
  }
}

// The same sequence behind others of any length.
TEST(MegaBits, ShiftedStarts) {
  const Case c = MegaStandard(5, 8, {70}, MegaGate::kBounded);
  const MegaResult alone = RunMega(c);
  for (int64_t shift : {1, 17, 63, 64, 191}) {
    SCOPED_TRACE(shift);
    for (Regime regime : {shift % 2 == 0 ? Regime::kMix : Regime::kSat}) {
      Case before = MegaStandard(6, 8, {shift}, MegaGate::kBounded, regime);
      before.A_log = c.A_log;
      before.dt_bias = c.dt_bias;
      const Case packed = Pack({before, c});
      ExpectSameSequence(packed, 1, RunMega(packed), alone);
    }
  }
}

TEST(MegaBits, OrderOfCopies) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kLog}) {
    Case c = MegaStandard(7, 8, {66, 0, 0, 5, 64, 1, 9, 3}, gate);
    c.slots = {5, 0, -1, 2, 9, -1, 3, 1};
    c.pool = 10;
    c.S0.resize(static_cast<size_t>(10 * 8 * 128 * 128), 0.25);
    MegaRun at_start;
    at_start.copies = Copies::kAtStart;
    EXPECT_TRUE(SameBits(CheckMega(c), RunMega(c, at_start)));
    c.checkpoint_every = 30;
    EXPECT_TRUE(SameBits(RunMega(c), RunMega(c, at_start)));
    Case heads = MegaStandard(7, 40, {5}, gate);
    EXPECT_TRUE(SameBits(RunMega(heads), RunMega(heads, at_start)));
  }
}

// Chunks side by side in a step, or one after the other. There may be no tokens at all.
TEST(MegaBits, ChunksOfAStep) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{66, 0, 64, 1, 70, 3}, {0}, {0, 0, 1, 0, 5}, {129}}) {
    const int64_t heads = lengths.back() == 0 ? 24 : 8;
    Case c = MegaStandard(8, heads, lengths, MegaGate::kBounded);
    MegaRun one, two;
    one.unroll = 1;
    two.unroll = 2;
    one.capacity = two.capacity = c.T + 1;
    EXPECT_TRUE(SameBits(RunMega(c, one), RunMega(c, two)));
    for (size_t n = 0; n < lengths.size(); ++n) c.slots.push_back(n % 3 == 1 ? -1 : int64_t(n));
    c.pool = static_cast<int64_t>(lengths.size());
    EXPECT_TRUE(SameBits(RunMega(c, one), CheckMega(c, kTpuLimit, two)));
    c.S0.clear();
    c.slots.clear();
    EXPECT_TRUE(SameBits(RunMega(c, one), RunMega(c, two)));
  }
}

// An order of emission gives the same bits or is refused when it is built.
TEST(MegaBits, AnyOrder) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> place(-0.3, 1.3);
  std::uniform_int_distribution<int> lag(0, 6);
  int built = 0, refused = 0;
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kLog}) {
    const Case c = MegaStandard(4, 8, {70, 3}, gate);
    const MegaResult want = RunMega(c);
    const tpu::MegaOptions usual = tpu::MegaDefaults(MegaProblem(c));
    for (int i = 0; i < 16; ++i) {
      tpu::MegaOptions o = usual;
      o.unroll = 1 + i % 2;
      // Anything, or something near what is known to be in order.
      const double share = i < 8 ? 1 : 0.2;
      for (double* x : {&o.start_a, &o.end_a, &o.start_b, &o.end_b, &o.start_c, &o.end_c,
                        &o.start_d, &o.end_d, &o.beta, &o.copies}) {
        *x += share * (place(random) - *x);
      }
      for (int* x : {&o.lag_a, &o.lag_b, &o.lag_c}) *x = lag(random);
      MegaRun run;
      run.order = &o;
      try {
        EXPECT_TRUE(SameBits(RunMega(c, run), want)) << Name(gate) << ", order " << i;
        ++built;
      } catch (const tpu::ir::BuildError& error) {
        ++refused;
      }
    }
  }
  EXPECT_GE(built, 4);
  EXPECT_GE(refused, 4);
}

TEST(MegaBits, StageByStage) {
  const Case c = MegaStandard(4, 16, {70, 3}, MegaGate::kBounded);
  tpu::MegaOptions o = tpu::MegaDefaults(MegaProblem(c));
  o.lag_a = o.lag_b = o.lag_c = 0;
  o.start_c = o.start_b = -1;  // what the other stages read, before they write
  o.end_c = -0.5;
  MegaRun run;
  run.order = &o;
  EXPECT_TRUE(SameBits(RunMega(c, run), RunMega(c)));
  o.beta = 2;
  EXPECT_THROW(RunMega(c, run), tpu::ir::BuildError);
}

// Rows beyond the last sequence, and beta's padding, may hold anything; o is zero there.
TEST(MegaBits, Padding) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{5}, {66, 3}}) {
      if (gate != MegaGate::kBounded && lengths.size() > 1) continue;
      const Case c = MegaStandard(9, 8, lengths, gate);
      const MegaResult plain = RunMega(c);
      for (int64_t capacity : {0, 1, 123}) {
        for (double poison : {kNan, 3e38}) {
          SCOPED_TRACE(std::to_string(capacity) + " tokens more, of " + std::to_string(poison));
          MegaRun run;
          run.capacity = c.T + capacity;
          run.poison = poison;
          const MegaResult padded = RunMega(c, run);
          EXPECT_TRUE(padded.S == plain.S);
          EXPECT_TRUE(SameRows(padded.o, 0, c.T, plain.o, 0));
          EXPECT_TRUE(AllZero(BitsOf(padded.o, c.T, capacity)));
        }
      }
    }
  }
}

// A sequence of NaNs, infinities or huge numbers reaches no other.
TEST(MegaBits, SequencesDoNotReachEachOther) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    const Case clean = MegaStandard(1, 8, {0, 5, 70, 2}, gate);
    const MegaResult want = RunMega(clean);
    for (double poison : {kNan, 1e30, kInf}) {
      if (gate != MegaGate::kBounded && poison == kInf) continue;
      SCOPED_TRACE(Name(gate) + " " + std::to_string(poison));
      for (int64_t bad : {1, 2}) {
        Case c = clean;
        const int64_t first = c.First(bad), last = first + c.Length(bad);
        for (auto* x : {&c.q, &c.k, &c.v, &c.g}) {
          std::fill(x->begin() + first * 8 * 128, x->begin() + last * 8 * 128, poison);
        }
        std::fill(c.beta.begin() + first * 8, c.beta.begin() + last * 8, poison);
        const int64_t size = 8 * 128 * 128;
        std::fill(c.S0.begin() + bad * size, c.S0.begin() + (bad + 1) * size, poison);
        const MegaResult got = RunMega(c);
        for (int64_t n = 0; n < c.Sequences(); ++n) {
          if (n == bad) continue;
          EXPECT_TRUE(SameRows(got.o, c.First(n), c.Length(n), want.o, c.First(n)));
          EXPECT_TRUE(SameRows(got.S, n, 1, want.S, n));
        }
      }
    }
  }
}

// Heads 2 p and 2 p + 1 share matrix tiles, where a NaN times a zero is a NaN. One NaN of a head at
// token t reaches, at most, that head and its partner from the start of t's chunk on; in v or the
// initial state, where the tiles are apart, that head alone.
TEST(MegaBits, NanStaysInItsPairOfHeads) {
  const int64_t head = 3, sequence = 1, token = 5 + 70;
  struct Place {
    const char* name;
    std::function<void(Case*)> edit;
    bool alone;
    bool from_start;  // of the sequence
  };
  const std::vector<Place> places = {
      {"q", [&](Case* c) { c->Q(token, head, 7) = kNan; }, false, false},
      {"k", [&](Case* c) { c->Key(token, head, 7) = kNan; }, false, false},
      {"g", [&](Case* c) { c->G(token, head, 7) = kNan; }, false, false},
      {"beta", [&](Case* c) { c->Beta(token, head) = kNan; }, false, false},
      {"v", [&](Case* c) { c->Value(token, head, 7) = kNan; }, true, false},
      {"initial state", [&](Case* c) { c->State(sequence, head, 7, 9) = kNan; }, true, true},
  };
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    const Case clean = MegaStandard(2, 8, {5, 100, 30}, gate);
    const MegaResult want = RunMega(clean);
    for (const Place& place : places) {
      Case c = clean;
      place.edit(&c);
      const MegaResult got = RunMega(c);
      for (int64_t h = 0; h < 8; ++h) {
        SCOPED_TRACE(Name(gate) + " " + place.name + " head " + std::to_string(h));
        const bool seen = place.alone ? h == head : h / 2 == head / 2;
        for (int64_t n = 0; n < 3; ++n) {
          int64_t rows = c.Length(n);
          if (seen && n == sequence) rows = place.from_start ? 0 : 64;
          EXPECT_TRUE(SameRows(got.o, c.First(n), rows, want.o, c.First(n), h)) << n;
          EXPECT_TRUE((seen && n == sequence) || SameRows(got.S, n, 1, want.S, n, h)) << n;
        }
      }
      // And it is not lost.
      EXPECT_TRUE(
          std::isnan(got.o.At({5 + 99, head, place.alone ? (place.from_start ? 9 : 7) : 3})) ||
          std::string(place.name) == "q");
    }
  }
}

// --- Causality ---

std::string Describe(int64_t T, int64_t changed, int what) {
  return std::to_string(T) + " tokens, token " + std::to_string(changed) + ", change " +
         std::to_string(what);
}

// Changes what = 0: g to 20, 1: g to -20, 2: k, 3: v, 4: beta, 5: all.
Case Changed(Case c, int64_t t, int what) {
  for (int64_t h = 0; h < c.H; ++h) {
    for (int64_t d = 0; d < 128; ++d) {
      if (what == 0 || what == 5) c.G(t, h, d) = c.gate == KDA_GATE_LOG ? -20 : 20;
      if (what == 1) c.G(t, h, d) = c.gate == KDA_GATE_LOG ? 0 : -20;
      if (what == 2 || what == 5) c.Key(t, h, d) = Bf16(-c.Key(t, h, (d + 1) % 128));
      if (what == 3 || what == 5) c.Value(t, h, d) += 1;
    }
    if (what == 4 || what == 5) c.Beta(t, h) = 2;
  }
  return c;
}

// The largest difference of rows [first, last), relative to what a row is a sum of: scale |q| times
// the largest column of the initial state and the largest |v| up to the row. (A row itself may be
// what little is left of these.)
double DifferenceOfRows(const Case& c, const tpu::ir::Array& a, const tpu::ir::Array& b,
                        int64_t first, int64_t last) {
  double worst = 0;
  for (int64_t h = 0; h < c.H; ++h) {
    double state = 0, largest_v = 0;
    for (int64_t j = 0; j < 128 && !c.S0.empty(); ++j) {
      double squares = 0;
      for (int64_t d = 0; d < 128; ++d) {
        const double x = c.S0[static_cast<size_t>((h * 128 + d) * 128 + j)];
        squares += x * x;
      }
      state = std::max(state, std::sqrt(squares));
    }
    for (int64_t t = 0; t < last; ++t) {
      double squares = 0, difference = 0;
      for (int64_t d = 0; d < 128; ++d) {
        largest_v =
            std::max(largest_v, std::fabs(c.v[static_cast<size_t>((t * c.H + h) * 128 + d)]));
        const double q = c.q[static_cast<size_t>((t * c.H + h) * 128 + d)];
        squares += q * q;
        difference = std::max(difference, std::fabs(a.At({t, h, d}) - b.At({t, h, d})));
      }
      if (t < first || difference == 0) continue;
      const double terms = std::sqrt(squares / 128) * (state + largest_v);
      worst = std::max(worst, difference / terms);
    }
  }
  return worst;
}

TEST(MegaBits, NoLookAheadWithoutABound) {
  for (MegaGate gate : {MegaGate::kSoftplus, MegaGate::kLog}) {
    for (int64_t T : {2, 33, 66}) {
      if (gate == MegaGate::kLog && T != 33) continue;
      const Case c = MegaStandard(15, 8, {T}, gate);
      const MegaResult want = RunMega(c);
      for (int64_t t : {T - 1, (T + 1) / 2}) {
        for (int what = 0; what < 6; ++what) {
          if (what != 5 && (T != 33 || gate == MegaGate::kLog)) continue;
          SCOPED_TRACE(Name(gate) + " " + Describe(T, t, what));
          const MegaResult got = RunMega(Changed(c, t, what));
          EXPECT_TRUE(SameRows(got.o, 0, t, want.o, 0));
        }
      }
    }
  }
}

// A bounded gate's exponents are taken from the middle of a block of 32 rows: a gate up to there
// moves the exponents of its block's earlier rows, whose operands are then rounded to bf16
// elsewhere. It changes them by half a unit in the last place, as bf16, of what they are sums of,
// and nothing in earlier blocks; gates after the middle and all else change no earlier row.
constexpr double kLookAhead = 0x1p-8;

TEST(MegaBits, LookAheadOfABlock) {
  double worst = 0;
  MegaRun run;
  run.unroll = 1;
  for (Regime regime : {Regime::kMix, Regime::kSlow}) {
    for (int64_t T : {2, 17, 25, 50}) {
      const Case c = MegaStandard(15, 8, {T}, MegaGate::kBounded, regime);
      const MegaResult want = RunMega(c, run);
      for (int64_t t : {T - 1, (T + 1) / 2}) {
        for (int what = 0; what < 6; ++what) {
          if (what != 5 && (T != 25 || regime == Regime::kSlow)) continue;
          SCOPED_TRACE(Name(regime) + " " + Describe(T, t, what));
          const MegaResult got = RunMega(Changed(c, t, what), run);
          const int64_t block = t / 32 * 32;
          EXPECT_TRUE(SameRows(got.o, 0, block, want.o, 0));
          const double difference = DifferenceOfRows(c, got.o, want.o, block, t);
          const bool may_differ = (what < 2 || what == 5) && t % 32 < 16;
          EXPECT_LE(difference, may_differ ? kLookAhead : 0);
          worst = std::max(worst, difference);
        }
      }
    }
  }
  RecordProperty("difference", std::to_string(worst));
}

// One token of the first 16, or all from there on, in any regime, with a state and without.
TEST(MegaBits, LookAheadAtRandom) {
  const Regime regimes[] = {Regime::kMix, Regime::kSlow, Regime::kSat, Regime::kZero};
  double worst = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    Case c = MegaStandard(seed, 8, {32}, MegaGate::kBounded, regimes[random() % 4]);
    if (random() % 2 == 0) c.S0.clear();
    const auto t = static_cast<int64_t>(1 + random() % 15);
    const int64_t last = random() % 3 == 0 ? t + 1 : 32;
    const int what = static_cast<int>(random() % 2);
    Case changed = c;
    for (int64_t at = t; at < last; ++at) changed = Changed(changed, at, what);
    const double difference = DifferenceOfRows(c, RunMega(changed).o, RunMega(c).o, 0, t);
    EXPECT_LE(difference, kLookAhead) << seed;
    worst = std::max(worst, difference);
  }
  RecordProperty("difference", std::to_string(worst));
}

// A number that is none, or a huge one, of a later token can reach any row of its chunk of 64
// tokens, by zero times it. It reaches no chunk before.
TEST(MegaBits, BadTokenReachesNoEarlierChunk) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kLog}) {
    const Case c = MegaStandard(1, 8, {130}, gate, Regime::kSlow);
    const MegaResult want = RunMega(c);
    for (double bad : {kNan, kInf, Bf16(3.3e38)}) {
      Case changed = c;
      for (int64_t i = 100 * 1024; i < 101 * 1024; ++i) {
        const auto at = static_cast<size_t>(i);
        changed.q[at] = changed.k[at] = changed.v[at] = changed.g[at] = bad;
      }
      EXPECT_TRUE(SameRows(RunMega(changed).o, 0, 64, want.o, 0)) << Name(gate) << " " << bad;
    }
  }
}

// --- States ---

TEST(MegaBits, EmptySequences) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kLog}) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{0, 5, 16, 49}, {0, 0, 5, 0, 65, 0}, {0, 0, 0, 0, 0, 0, 0, 7}}) {
      for (bool state : {true, false}) {
        if (!state && lengths.size() != 4) continue;
        Case c = MegaStandard(1, 8, lengths, gate);
        const std::vector<double> S0 = c.S0;
        if (!state) c.S0.clear();
        const MegaResult result = CheckMega(c);
        for (int64_t n = 0; n < c.Sequences(); ++n) {
          if (c.Length(n) > 0) continue;
          for (int64_t i = n * 8 * 16384; i < (n + 1) * 8 * 16384; ++i) {
            const double want = state ? S0[static_cast<size_t>(i)] : 0;
            ASSERT_EQ(result.S.Get(i), want) << n;
          }
        }
      }
    }
  }
}

// Tokens before the first sequence are nobody's: they are not read, nor
// are their rows of o written.
TEST(MegaBits, FirstOffset) {
  Case c = MegaStandard(1, 8, {70}, MegaGate::kBounded);
  Case alone = Slice(c, 58, 70, 0);
  alone.cu = {0, 12};
  c.cu = {58, 70};
  for (auto* x : {&c.q, &c.k, &c.v, &c.g}) std::fill(x->begin(), x->begin() + 58 * 1024, kNan);
  const MegaResult got = RunMega(c);
  ExpectSameSequence(c, 0, got, RunMega(alone));
  EXPECT_TRUE(std::isnan(got.o.At({57, 7, 127})));
}

// Every sequence is empty: there are rows, but nobody's.
TEST(MegaBits, NothingButEmptySequences) {
  Case c = MegaStandard(1, 8, {0, 0, 0}, MegaGate::kBounded);
  for (int64_t capacity : {1, 64, 100}) {
    MegaRun run;
    run.capacity = capacity;
    const MegaResult result = RunMega(c, run);
    EXPECT_TRUE(AllZero(BitsOf(result.o, 0, capacity)));
    EXPECT_TRUE(result.S == MegaArguments(c, run).back());
  }
}

TEST(MegaBits, NoInitialStateIsZeros) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    Case zeros = MegaStandard(3, 8, {70, 0, 3}, gate), none = zeros;
    std::fill(zeros.S0.begin(), zeros.S0.end(), 0);
    none.S0.clear();
    EXPECT_TRUE(SameBits(RunMega(zeros), CheckMega(none)));
    zeros.want_state = none.want_state = false;
    EXPECT_TRUE(SameBits(RunMega(zeros), CheckMega(none)));
    Case some = MegaStandard(3, 8, {70, 0, 3}, gate);
    const MegaResult with_final_state = RunMega(some);
    some.want_state = false;
    EXPECT_TRUE(RunMega(some).o == with_final_state.o);
  }
}

}  // namespace
}  // namespace kda::test
