// Group D: heads, dimensions, dtypes, scale, beta and gate parameters.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/dtypes.h"
#include "support/engine_test.h"
#include "support/generator.h"
#include "support/goldens.h"

namespace kda::test {
namespace {

KDA_CASE(CaseD05);
KDA_CASE(CaseD06);
KDA_CASE(CaseD08);
KDA_CASE(CaseD09);
KDA_CASE(CaseD11);
KDA_CASE(CaseD12);
KDA_CASE(CaseD14);
KDA_CASE(CaseD16);

TEST_P(CaseD05, HeadCounts) {
  for (int64_t heads : {1, 2, 3, 5, 6, 7, 8, 12, 16, 20, 24, 32, 40, 63, 96}) {
    if (FastTests() && heads > 24) continue;
    SCOPED_TRACE(heads);
    const Case c = Standard(Std(61, 70, heads));
    ExpectRight(c, {Base(), Base().Threads(5), Base().Off(KDA_SWITCHES_ALL).Threads(3)});
    ExpectRight(AsDecode(Slice(c, 0, 1, 0)), {Base().Threads(7)});
  }
}

TEST_P(CaseD06, GroupedValueHeads) {
  ExpectRight(StdG(), AllSwitches());
  for (int64_t group : {2, 3, 8}) {
    Case c = Standard(Std(62, 70, 2).ValueHeads(2 * group).Packed({0, 30, 70}));
    ExpectRight(c);
    c.mode = KDA_DECODE;
    ExpectRight(c, {Base()});
  }
}

// Value head hv reads head hv / (HV / H), not hv % H.
TEST_P(CaseD06, TileOrderIsFarOff) {
  Case c = StdG();
  const Result result = RunCase(c, Base());
  Case tiled = c;  // query head of value head hv: hv % 2, by giving each value head its own
  tiled.H = 4;
  tiled.q.clear();
  tiled.k.clear();
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t hv = 0; hv < 4; ++hv) {
      for (int64_t d = 0; d < 128; ++d) {
        tiled.q.push_back(c.Q(t, hv % 2, d));
        tiled.k.push_back(c.Key(t, hv % 2, d));
      }
    }
  }
  EXPECT_GT(ErrorOf(result.o.values, Solve(tiled).o).rel_f, 0.5);
}

TEST_P(CaseD08, HeadDimensions) {
  const std::pair<int64_t, int64_t> dims[] = {
      {64, 64}, {60, 60}, {100, 100}, {192, 192}, {256, 256}, {1, 1},     {1, 128},
      {128, 1}, {17, 31}, {128, 256}, {256, 64},  {8, 200},   {127, 129}, {3, 5}};
  for (const auto& [dim_k, dim_v] : dims) {
    SCOPED_TRACE(std::to_string(dim_k) + " x " + std::to_string(dim_v));
    for (kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
      Case c = Standard(Std(63, 70, 2).Dims(dim_k, dim_v).Packed({0, 0, 20, 70}));
      c.order = order;
      ExpectRight(c);
      c.mode = KDA_DECODE;
      ExpectRight(c, {Base()});
    }
  }
}

// The elements right behind each row of K or V must never count. (Gaps hold the band's byte.)
TEST_P(CaseD08, WhatFollowsEachRowNeverMatters) {
  for (const auto& [dim_k, dim_v] : {std::pair<int64_t, int64_t>{60, 100}, {17, 31}, {100, 60}}) {
    Case c = Standard(Std(63, 70, 2).Dims(dim_k, dim_v));
    const auto spread = [](int64_t dim) {
      Layout layout;
      layout.stride = {70 * 2 * (dim + 24), 2 * (dim + 24), dim + 24, 1};
      return layout;
    };
    c.layouts.q = c.layouts.k = c.layouts.g = spread(dim_k);
    c.layouts.v = spread(dim_v);
    for (const Config& config : Configs()) {
      c.input_band = kBandNan;
      const Result nan = RunCase(c, config);
      c.input_band = kBandHuge;
      EXPECT_TRUE(SameBits(nan, RunCase(c, config))) << config.Name();
    }
    ExpectRight(c);
  }
}

TEST_P(CaseD09, L2NormEpsilon) {
  ExpectRight(StdH());
  ExpectRight(AsDecode(StdH()), {Base()});
}

TEST_P(CaseD09, Amplitudes) {
  for (double amplitude : {1.0, 1e-2, 1e-5, 1e-20, 1e19}) {
    SCOPED_TRACE(amplitude);
    Case c = StdH();
    c.dtypes.qk = KDA_F32;
    for (size_t i = 0; i < c.q.size(); ++i) {
      c.q[i] = F32(amplitude * Normal(6, kTagQ, i));
      c.k[i] = F32(amplitude * Normal(6, kTagK, i));
    }
    ExpectRight(c);
    ExpectRight(AsDecode(c), {Base()});
    c.dtypes.qk = KDA_BF16;
    for (double& x : c.q) x = Bf16(x);
    for (double& x : c.k) x = Bf16(x);
    ExpectRight(c);
  }
}

TEST_P(CaseD09, ZeroRows) {
  Case c = StdH();
  for (int64_t d = 0; d < 128; ++d) c.Q(20, 0, d) = c.Key(20, 0, d) = c.Key(33, 0, d) = 0;
  ExpectRight(c);
  for (const Config& config : Configs()) {
    const Result result = RunCase(c, config);
    for (size_t j = 0; j < 128; ++j) ASSERT_EQ(result.o.values[20 * 128 + j], 0);
  }
}

TEST_P(CaseD11, Scale) {
  Case c = StdA();
  for (const Config& config : Configs()) {
    SCOPED_TRACE(config.Name());
    const Result by_default = RunCase(c, config);
    for (double scale : {1 / std::sqrt(128.0), 1.0, 0.0, -1.0, 1e-30}) {
      Case scaled = c;
      scaled.scale = scale;
      const Result result = RunCase(scaled, config);
      EXPECT_TRUE(Matches(scaled, result, Solve(scaled))) << scale;
      EXPECT_TRUE(SameBits(result.S.bits, by_default.S.bits)) << scale;
    }
  }
}

TEST_P(CaseD12, BetaLogits) {
  for (int64_t T : {70, 1024, 1025}) {
    if (FastTests() && T > 70) continue;
    Case logits = Standard(Std(1, T, 2).Packed({0, T}));
    const auto configs = T == 70 ? Configs() : std::vector<Config>{Base()};
    ExpectRight(logits, configs);
    ExpectRight(AsDecode(logits), {Base()});
    Case activated = logits;  // the same numbers taken as they are
    activated.beta_logits = false;
    ExpectRight(activated, {Base()});
    ExpectRight(AsDecode(activated), {Base()});
  }
}

TEST_P(CaseD12, BetaTails) {
  const double logits[] = {-kInf, -100, 0, 8, 100, kInf};
  const double betas[] = {0, 0, 0.5, 0.99966464986953363, 1, 1};
  // S = beta k v^T with k = v = e_0.
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    for (size_t i = 0; i < 6; ++i) {
      Case c = Zeros(1, 1);
      c.mode = mode;
      c.beta_logits = true;
      c.dtypes.beta = KDA_F32;
      c.Key(0, 0, 0) = c.Value(0, 0, 0) = 1;
      c.Beta(0, 0) = logits[i];
      for (const Config& config : ConfigsFor(mode)) {
        EXPECT_NEAR(RunCase(c, config).S.values[0], betas[i], 1e-6 * betas[i] + 1e-30);
      }
    }
  }
  Case c = StdB();
  c.dtypes.beta = KDA_F32;
  for (size_t i = 0; i < c.beta.size(); ++i) c.beta[i] = logits[i % 6];
  ExpectRight(c);
  ExpectRight(AsDecode(c), {Base()});
}

TEST_P(CaseD12, ActivatedBetasOfZeroAndOne) {
  Case c = StdB();
  c.beta_logits = false;
  for (size_t i = 0; i < c.beta.size(); ++i) c.beta[i] = static_cast<double>(i % 2);
  ExpectRight(c);
  for (double& beta : c.beta) beta = 1;
  ExpectRight(c);
}

TEST_P(CaseD14, OptionalGateParameters) {
  for (Case c : {StdA1(), StdA2()}) {
    ExpectRight(c);
    ExpectRight(AsDecode(c), {Base()});
    c.A_log.clear();
    c.dt_bias.clear();
    ExpectRight(c);
  }
  Case c = StdC();
  c.dt_bias.clear();
  ExpectRight(c);
}

TEST_P(CaseD14, FlatDtBias) {
  const Case c = StdG();
  const Result expected = RunCase(c, Base());
  Runner runner(c, Base(), [](Problem* p) { p->dt_bias = Dense(KDA_F32, {4 * 128}); });
  ASSERT_TRUE(runner.status().ok()) << runner.status().message();
  EXPECT_TRUE(SameBits(expected, runner.Run(kPoisonNan)));
}

TEST_P(CaseD16, EveryMixtureOfDtypes) {
  const kda_dtype dtypes[] = {KDA_F32, KDA_BF16, KDA_F16};
  const Case base = Standard(Std(64, 70, 2).Packed({0, 33, 70}).As(KDA_F32));
  const auto rounded = [](std::vector<double> x, kda_dtype dtype) {
    for (double& value : x) value = reference::Round(dtype, value);
    return x;
  };
  for (kda_dtype qk : dtypes) {
    for (kda_dtype v : dtypes) {
      for (kda_dtype g : dtypes) {
        for (kda_dtype beta : dtypes) {
          Case c = base;
          c.dtypes.qk = qk;
          c.dtypes.v = v;
          c.dtypes.g = g;
          c.dtypes.beta = beta;
          c.dtypes.o = qk == KDA_F32 ? KDA_F32 : v;
          c.q = rounded(base.q, qk);
          c.k = rounded(base.k, qk);
          c.v = rounded(base.v, v);
          c.g = rounded(base.g, g);
          c.beta = rounded(base.beta, beta);
          ExpectRight(c, {Base(), Base().Off(KDA_SWITCH_UNIFIED_LAYOUT)});
          c.mode = KDA_DECODE;
          ExpectRight(c, {Base()});
        }
      }
    }
  }
}

// Nothing made for one dtype is used for another.
TEST_P(CaseD16, DtypesInTurn) {
  Case narrow = StdA();
  Case wide = narrow;
  wide.dtypes.g = KDA_F32;
  const Result first = RunCase(wide, Base());
  const Result other = RunCase(narrow, Base());
  EXPECT_TRUE(SameBits(first, RunCase(wide, Base())));
  EXPECT_TRUE(SameBits(first, other));  // the values are the same, so is the answer
}

}  // namespace
}  // namespace kda::test
