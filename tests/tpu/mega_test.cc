// The mega kernel in the evaluator against the fp64 recurrence: gates, keys, heads, lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/generator.h"
#include "support/goldens.h"
#include "tpu/mega_cases.h"

namespace kda::test {
namespace {

constexpr MegaGate kGates[] = {MegaGate::kBounded, MegaGate::kSoftplus, MegaGate::kLog};

TEST(Mega, EveryGateInEveryRegime) {
  for (MegaGate gate : kGates) {
    for (Regime regime : {Regime::kMix, Regime::kSat, Regime::kSlow, Regime::kZero}) {
      SCOPED_TRACE(Name(gate) + " " + Name(regime));
      CheckMega(MegaStandard(1, 8, {70, 0, 5, 64}, gate, regime));
    }
  }
}

// Every gate at the bound, whichever way it takes.
TEST(Mega, LowerBounds) {
  for (double bound : {0.0, -0.25, -1.0, -2.75, -2.8, -4.0, -5.0, -5.02, -5.03, -5.3, -5.45, -5.9,
                       -11.2, -88.0, -1000.0}) {
    SCOPED_TRACE(bound);
    Case c = MegaStandard(3, 8, {64}, MegaGate::kBounded, Regime::kSat);
    c.lower_bound = bound;
    CheckMega(c);
  }
  CheckMega(StdD());
}

// Identical keys, then alternating ones, without decay: o is v, S is what the last token left.
TEST(Mega, IdenticalAndAlternatingKeys) {
  for (MegaGate gate : {MegaGate::kLog, MegaGate::kBounded}) {
    SCOPED_TRACE(Name(gate));
    Case c = MegaStandard(1, 8, {16, 17, 32, 48, 64, 128}, gate, Regime::kZero);
    c.S0.clear();
    c.scale = 1;
    c.A_log.assign(c.A_log.size(), 0);
    c.dt_bias.assign(c.dt_bias.size(), 0);
    for (int64_t n = 0; n < c.Sequences(); ++n) {
      for (int64_t i = 0; i < c.Length(n) * 8; ++i) {
        const int64_t t = i / 8, h = i % 8, at = c.First(n) + t;
        const double sign = h % 2 == 1 && t % 2 == 1 ? -1 : 1;
        for (int64_t d = 0; d < 128; ++d) {
          c.Q(at, h, d) = c.Key(at, h, d) = d < 64 ? 0.125 * sign : 0;
          c.Value(at, h, d) = static_cast<double>((7 * t + d + h) % 17 - 8);
          if (gate == MegaGate::kBounded) c.G(at, h, d) = -14;
        }
        c.Beta(at, h) = gate == MegaGate::kBounded ? 9 : 1;
      }
    }
    c.beta_logits = gate == MegaGate::kBounded;
    CheckMega(c, kTpuCancelling);
  }
}

TEST(Mega, CorrelatedKeys) {
  std::vector<Case> heads;
  for (double common : {3.0, 1.0}) {
    for (double G : {-0.01, -0.001}) {
      for (double beta : {0.95, 0.9997}) heads.push_back(CorrelatedKeys(common, G, beta));
    }
  }
  CheckMega(InBf16(SideBySide(heads)), kTpuCancelling);
}

MegaRun Precise() {
  MegaRun run;
  run.precise = true;
  return run;
}

// One head each: beside others a small state would be measured against theirs.
TEST(Mega, StronglyCorrelatedKeys) {
  for (double common : {3.0, 10.0, 30.0}) {
    for (double G : {-0.01, -0.001}) {
      for (double beta : {0.95, 0.9997}) {
        SCOPED_TRACE(std::to_string(common) + " " + std::to_string(G) + " " + std::to_string(beta));
        const Case c = InBf16(WithHeads(CorrelatedKeys(common, G, beta), 8));
        CheckMega(c, common > 3 ? kTpuAlike : kTpuCancelling);
        CheckMega(c, kTpuCancelling, Precise());
      }
    }
  }
}

// Keys alike, one rounding of each token's v_new; it does not grow with the length.
TEST(Mega, KeysAlike) {
  const Alike rows[] = {{1e4, -1e-3, 0.05, 0.95}, {1e4, -1e-3, 0.9, 0.99}, {10, -1e-3, 0.05, 0.95},
                        {1e4, -1e-2, 0.9, 0.99},  {1e4, 0, 0.05, 0.95},    {1e4, -1e-4, 0.4, 0.6}};
  for (const Alike& alike : rows) {
    for (int64_t tokens : {64, 1000}) {
      SCOPED_TRACE(std::to_string(alike.common) + " " + std::to_string(alike.G) + " " +
                   std::to_string(alike.most_beta) + ", " + std::to_string(tokens) + " tokens");
      const Case c = KeysAlike(12, tokens, MegaGate::kLog, alike);
      CheckMega(c, kTpuAlike);
      CheckMega(c, kTpuCancelling, Precise());
    }
  }
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    const Case c = KeysAlike(12, 300, gate, {});
    CheckMega(c, kTpuAlike);
    CheckMega(c, kTpuCancelling, Precise());
  }
}

// Every gate, regime and shape with the other products.
TEST(Mega, Precise) {
  for (MegaGate gate : kGates) {
    for (Regime regime : {Regime::kMix, Regime::kSat, Regime::kSlow, Regime::kZero}) {
      SCOPED_TRACE(Name(gate) + " " + Name(regime));
      CheckMega(MegaStandard(1, 8, {70, 0, 5, 64}, gate, regime), kTpuLimit, Precise());
    }
  }
  CheckMega(MegaStandard(2, 24, {35, 3}, MegaGate::kBounded), kTpuLimit, Precise());
  Case c = MegaStandard(2, 16, {35, 130}, MegaGate::kSoftplus);
  c.checkpoint_every = 40;
  c.qk_l2norm = true;
  CheckMega(c, kTpuLimit, Precise());
}

TEST(Mega, TotalWipe) {
  for (const Case& c : TotalWipes()) CheckMega(c);
}

TEST(Mega, SigmoidTails) {
  Case c = MegaStandard(1, 8, {20}, MegaGate::kBounded, Regime::kSat);
  const double x[] = {-1e30, -104, -88, 0, 88, 1e30, kInf, -kInf};
  for (int64_t h = 0; h < 8; ++h) SetGateOfHead(&c, h, x[h]);
  CheckMega(c);
}

TEST(Mega, SoftplusTails) { CheckMega(SoftplusTails()); }
TEST(Mega, GateParameters) { CheckMega(GateParameters()); }

TEST(Mega, ExtremeGates) {
  for (const ExtremeGates& gates : AllExtremeGates()) {
    for (double bound : {-5.0, -20.0}) {
      if (gates.gate != MegaGate::kBounded && bound != -5) continue;
      SCOPED_TRACE(Name(gates.gate) + " " + std::to_string(gates.a_log[0]));
      Case c = MegaStandard(1, 8, {20}, gates.gate, Regime::kSat);
      c.lower_bound = bound;
      SetGates(&c, gates);
      CheckMega(c);
    }
  }
}

TEST(Mega, LowestBound) {
  Case c = MegaStandard(1, 8, {20}, MegaGate::kBounded, Regime::kSlow);
  c.lower_bound = -1e38;  // the least there is (core/limits.cc)
  c.A_log.clear();
  c.dt_bias.clear();
  const double x[] = {-200, -1e30, -kInf, -80, 0, 60, 1e30, kInf};
  for (int64_t h = 0; h < 8; ++h) SetGateOfHead(&c, h, x[h]);
  CheckMega(c);
}

// One token's value, read back through every lag by gates of 64 speeds.
TEST(Mega, ImpulseResponse) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kLog}) {
    Case c = InBf16(Zeros(130, 8));
    c.scale = 1;
    if (gate == MegaGate::kBounded) {
      c.gate = KDA_GATE_BOUNDED;
      c.lower_bound = -1;
    }
    for (int64_t i = 0; i < 130 * 8; ++i) {
      const int64_t t = i / 8, h = i % 8;
      for (int64_t d = 0; d < 128; ++d) {
        const double G = -static_cast<double>(d % 64 + 1) / 64;
        // G = -sigmoid(x); the last speeds are 0.98 instead of 1.
        const double y = std::min(-G, 63.0 / 64);
        c.G(t, h, d) = gate == MegaGate::kLog ? G : Bf16(std::log(y / (1 - y)));
        if (t == 0) c.Value(t, h, d) = static_cast<double>(d + 1);
      }
      c.Q(t, h, (t + 8 * h) % 64) = 1;
      for (int64_t d = 0; d < 64 && t == 0; ++d) c.Key(t, h, d) = 0.125;
      c.Beta(t, h) = t == 0 ? 1 : 0;
    }
    const MegaResult result = CheckMega(c);
    const Oracle oracle = Solve(c);
    // Five numbers rounded to bf16: q 2^G twice, k 2^G, the state, o.
    for (size_t i = 0; i < oracle.o.size(); ++i) {
      const double got = result.o.Get(static_cast<int64_t>(i));
      EXPECT_LE(std::fabs(got - oracle.o[i]), Bf16Roundings(5) * std::fabs(oracle.o[i]) + 1e-30)
          << i;
    }
  }
}

// A state that only decays, in fp32 all the way. A bounded gate is c (1 + tanh x) down to a bound
// of -5: near zero it is good to 2^-24 of c, 3.6, not of itself. Any other is as good as the 8
// roundings of a chunk of 64 tokens.
TEST(Mega, SlowDecay) {
  const struct {
    MegaGate gate;
    double bound, x, binades;
  } rows[] = {{MegaGate::kBounded, -5, -11, 3.6},     {MegaGate::kBounded, -20, -11, 0.125},
              {MegaGate::kBounded, -88, -13, 0.125},  {MegaGate::kBounded, -1000, -15, 0.125},
              {MegaGate::kBounded, -1e6, -22, 0.125}, {MegaGate::kLog, 0, -8e-5, 0.125}};
  for (const auto& row : rows) {
    SCOPED_TRACE(Name(row.gate) + " " + std::to_string(row.bound));
    Case c = MegaStandard(8, 8, {512}, row.gate, Regime::kSlow);
    c.lower_bound = row.bound;
    c.A_log.assign(c.A_log.size(), 0);
    c.dt_bias.assign(c.dt_bias.size(), 0);
    for (int64_t h = 0; h < 8; ++h) SetGateOfHead(&c, h, row.x);
    SetBeta(&c, 0);
    const MegaResult result = CheckMega(c);
    const double G =
        row.gate == MegaGate::kBounded ? row.bound / (1 + std::exp(-row.x)) : Bf16(row.x);
    const double limit = DecayError(512, row.binades);
    for (int64_t i = 0; i < result.S.size(); ++i) {
      const double want = c.S0[static_cast<size_t>(i)] * std::exp(512 * G);
      ASSERT_NEAR(result.S.Get(i), want, limit * std::fabs(want)) << i;
    }
  }
}

TEST(Mega, HeadCounts) {
  for (int64_t heads : {16, 24, 40, 48}) {
    SCOPED_TRACE(heads);
    CheckMega(MegaStandard(2, heads, {35, 3}, MegaGate::kBounded));
  }
  CheckMega(MegaStandard(2, 24, {35, 3}, MegaGate::kSoftplus));
  CheckMega(MegaStandard(2, 32, {65}, MegaGate::kLog));
}

// Around every tile, packed; alone in MegaBits.
TEST(Mega, Lengths) {
  const std::vector<int64_t> lengths = {1,  2,  3,  7,  8,  9,  15, 16, 17,  31,  32,
                                        33, 47, 48, 49, 63, 64, 65, 96, 127, 128, 129};
  CheckMega(MegaStandard(4, 8, lengths, MegaGate::kBounded));
  CheckMega(MegaStandard(4, 8, {1, 15, 17, 33, 63, 65, 129}, MegaGate::kSoftplus));
}

TEST(Mega, BetaLogits) {
  Case c = MegaStandard(5, 8, {20}, MegaGate::kBounded);
  const double logits[] = {-kInf, -100, 0, 8, 100, kInf, 3e38, -3e38};
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t h = 0; h < 8; ++h) c.Beta(t, h) = Bf16(logits[(t + h) % 8]);
  }
  CheckMega(c);
  c.dtypes.beta = KDA_F32;
  CheckMega(c);
}

// A small beta is right relative to itself: without an initial state it scales everything.
TEST(Mega, SmallBetas) {
  for (double logit : {-30.0, -22.0, -18.0, -16.0, -14.0, -8.0, 0.0, 8.0, 30.0}) {
    SCOPED_TRACE(logit);
    Case c = MegaStandard(1, 8, {70}, MegaGate::kBounded, Regime::kSlow);
    c.S0.clear();
    c.beta_logits = true;
    std::fill(c.beta.begin(), c.beta.end(), logit);
    CheckMega(c);
    c.dtypes.beta = KDA_F32;
    std::fill(c.beta.begin(), c.beta.end(), F32(logit + 0.01));
    CheckMega(c);
  }
}

TEST(Mega, ActivatedBeta) {
  Case c = MegaStandard(5, 8, {70}, MegaGate::kBounded);
  c.beta_logits = false;
  for (size_t i = 0; i < c.beta.size(); ++i) {
    c.beta[i] = i % 7 == 0 ? 1 : i % 7 == 1 ? 0 : Bf16(Uniform(5, kTagBeta, i));
  }
  CheckMega(c);
  c.dtypes.beta = KDA_F32;
  for (size_t i = 0; i < c.beta.size(); ++i) c.beta[i] = F32(Uniform(5, kTagBeta, i));
  CheckMega(c);
}

TEST(Mega, GateParametersAbsent) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    for (int absent = 1; absent < 4; ++absent) {
      SCOPED_TRACE(Name(gate) + " without " + std::to_string(absent));
      Case c = MegaStandard(6, 8, {70}, gate);
      if ((absent & 1) != 0) c.A_log.clear();
      if ((absent & 2) != 0) c.dt_bias.clear();
      CheckMega(c);
    }
  }
}

TEST(Mega, Scale) {
  Case c = MegaStandard(7, 8, {70}, MegaGate::kBounded);
  const MegaResult by_default = CheckMega(c);
  for (double scale : {1.0, 0.0, -1.0, 0x1p-80}) {
    SCOPED_TRACE(scale);
    c.scale = scale;
    const MegaResult result = CheckMega(c);
    EXPECT_EQ(result.S, by_default.S);
  }
}

// At the end of a block of gates at their bound decays are 2^-116: a small scale must not meet them
// before the query does. What is read of the initial state is all there is: v is 0.
TEST(Mega, SmallScaleAtStrongGates) {
  // Either side of where the scale is multiplied in later, each bound and way, and far below.
  const std::pair<double, double> bounds_and_scales[] = {
      {-5.0, 0.05},  {-5.0, 0x1p-5}, {-5.0, 1e-10},  {-5.02, -1e-25},
      {-5.02, 1e-3}, {-5.02, 1e-10}, {-5.0, -1e-25}, {-6.0, -1e-25}};
  for (const auto& [bound, scale] : bounds_and_scales) {
    SCOPED_TRACE(std::to_string(bound) + ", 2^" + std::to_string(std::log2(std::fabs(scale))));
    Case c = MegaStandard(7, 8, {3, 6}, MegaGate::kBounded, Regime::kSat);
    c.lower_bound = bound;
    for (double& v : c.v) v = 0;
    c.scale = scale;
    CheckMega(c);
  }
}

// Unnormalised rows of every size that the recurrence itself survives: beta |k|^2 < 2.
TEST(Mega, SizesOfQueriesAndKeys) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus}) {
    for (Regime regime : {Regime::kMix, Regime::kSat}) {
      SCOPED_TRACE(Name(gate) + " " + Name(regime));
      Case c = MegaStandard(8, 8, {70}, gate, regime);
      SetBeta(&c, 1);
      const double q_size[] = {1024, 32, 1, 1, 1, 1, 32, 0.125};
      const double k_size[] = {1, 1, 8, 32, 1024, 0.125, 8, 8};
      for (int64_t t = 0; t < c.T; ++t) {
        for (int64_t h = 0; h < 8; ++h) {
          c.Beta(t, h) = 0.9 / std::max(1.0, k_size[h] * k_size[h]);
          for (int64_t d = 0; d < 128; ++d) {
            c.Q(t, h, d) *= q_size[h];
            c.Key(t, h, d) *= k_size[h];
          }
        }
      }
      CheckMega(c);
    }
  }
}

TEST(Mega, NormalisedInTheKernel) {
  for (MegaGate gate : kGates) {
    SCOPED_TRACE(Name(gate));
    Case c = MegaStandard(9, 8, {70}, gate);
    c.qk_l2norm = true;
    const double sizes[] = {1, 1e-2, 1e-3, 1e-5, 1e-20, 1e3, 1e15, 0};
    for (int64_t t = 0; t < c.T; ++t) {
      for (int64_t h = 0; h < 8; ++h) {
        for (int64_t d = 0; d < 128; ++d) {
          c.Q(t, h, d) = Bf16(c.Q(t, h, d) * sizes[h]);
          c.Key(t, h, d) = Bf16(c.Key(t, h, d) * sizes[h]);
        }
      }
    }
    CheckMega(c);
  }
}

}  // namespace
}  // namespace kda::test
