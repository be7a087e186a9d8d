// The mega kernel in the evaluator against the fp64 recurrence: gates, keys, heads, lengths.
#include <gtest/gtest.h>

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

// A state that only decays, in fp32 all the way. A bounded gate is c (1 + tanh x): near zero it is good
// to 2^-24 of c, 3.6, not of itself. Any other is as good as the 8 roundings of a chunk of 64 tokens.
TEST(Mega, SlowDecay) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kLog}) {
    Case c = MegaStandard(8, 8, {512}, gate, Regime::kSlow);
    c.A_log.assign(c.A_log.size(), 0);
    c.dt_bias.assign(c.dt_bias.size(), 0);
    for (int64_t h = 0; h < 8; ++h) {
      SetGateOfHead(&c, h, gate == MegaGate::kBounded ? -11 : -8e-5);
    }
    SetBeta(&c, 0);
    const MegaResult result = CheckMega(c);
    const double G = gate == MegaGate::kBounded ? -5 / (1 + std::exp(11.0)) : Bf16(-8e-5);
    const double limit = DecayError(512, gate == MegaGate::kBounded ? 3.6 : 0.125);
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
