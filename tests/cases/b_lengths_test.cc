// Group B: lengths and packing.
#include <gtest/gtest.h>

#include <cmath>

#include "support/engine_test.h"
#include "support/generator.h"
#include "support/goldens.h"

namespace kda::test {
namespace {

KDA_CASE(CaseB01);
KDA_CASE(CaseB02);
KDA_CASE(CaseB03);
KDA_CASE(CaseB04);
KDA_CASE(CaseB05);
KDA_CASE(CaseB08);
KDA_CASE(CaseB09);
KDA_CASE(CaseB13);
KDA_CASE(Lengths);

// Numbers that arithmetic would change: a copy must be a copy.
void AddAwkwardStates(Case* c, int64_t n) {
  c->State(n, 0, 0, 0) = -0.0;
  c->State(n, 0, 1, 0) = 0x1p-140;  // subnormal in fp32 and bf16
  c->State(n, 1, 2, 3) = kInf;
  c->State(n, 1, 5, 7) = 3e38;
}

TEST_P(CaseB01, EmptySequencesHandTheirStateOn) {
  for (const std::vector<int64_t>& cu :
       {std::vector<int64_t>{0, 0, 5, 21, 70}, {0, 0, 0, 5, 5, 70, 70}}) {
    for (kda_dtype dtype : {KDA_F32, KDA_BF16}) {
      for (kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
        Case c = Standard(Std(1, 70, 2).Packed(cu));
        c.dtypes.initial = c.dtypes.final = dtype;
        c.order = order;
        for (double& x : c.S0) x = reference::Round(dtype, x);
        for (int64_t n = 0; n < c.Sequences(); ++n) {
          if (c.Length(n) == 0) AddAwkwardStates(&c, n);
        }
        TensorBuffer initial(dtype, {c.Sequences(), 2, 128, 128}, Layout(), KDA_STATE_KV, 0);
        initial.Write(c.S0);
        const Array expected = initial.Read();
        for (const Config& config : Configs()) {
          SCOPED_TRACE(config.Name());
          const Result result = RunCase(c, config);
          for (int64_t n = 0; n < c.Sequences(); ++n) {
            if (c.Length(n) != 0) continue;
            EXPECT_TRUE(SameBits(StateBits(c, result.S, n), StateBits(c, expected, n))) << n;
          }
        }
      }
    }
  }
}

TEST_P(CaseB01, EmptySequencesAmongOthers) {
  for (int64_t heads : {1, 3, 8}) {
    Case c = Standard(Std(1, 70, heads).Packed({0, 0, 0, 5, 5, 70, 70}));
    ExpectRight(c);
    c.S0.clear();
    ExpectRight(c);
    for (const Config& config : Configs()) {
      const Result result = RunCase(c, config);
      for (int64_t n : {0, 1, 3, 5}) {
        for (uint32_t bits : StateBits(c, result.S, n)) ASSERT_EQ(bits, 0u) << config.Name();
      }
    }
  }
}

TEST_P(CaseB01, EmptySequencesAreConvertedBetweenStateDtypes) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case c = Standard(Std(1, 9, 2).Packed({0, 0, 9, 9}));
    c.mode = mode;
    c.dtypes.initial = KDA_F32;
    c.dtypes.final = KDA_BF16;
    const Result narrow = RunCase(c, Base());
    const size_t state = 2 * 128 * 128;
    for (size_t i = 0; i < state; ++i) {
      ASSERT_EQ(narrow.S.values[i], Bf16(c.S0[i]));
      ASSERT_EQ(narrow.S.values[2 * state + i], Bf16(c.S0[2 * state + i]));
    }
  }
}

TEST_P(CaseB01, Repeats) {
  const Case c = StdB();
  Runner runner(c, Base().Threads(2));
  const Result first = runner.Run(kPoisonNan);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(SameBits(first, runner.Run(kPoisonNan)));
}

TEST_P(CaseB02, NothingAtAll) {
  for (const std::vector<int64_t>& cu : {std::vector<int64_t>{0}, {0, 0}, {0, 0, 0}}) {
    for (bool state : {false, true}) {
      for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
        Case c = Standard(Std(1, 0, 2).Packed(cu));
        c.mode = mode;
        if (!state) c.S0.clear();
        std::vector<Config> configs = {Base(), Base().Threads(4)};
        if (mode == KDA_PREFILL) configs = Configs();
        for (const Config& config : configs) {
          const Result result = RunCase(c, config);
          EXPECT_TRUE(result.o.bits.empty());
          ASSERT_EQ(result.S.values.size(), (cu.size() - 1) * 2 * 128 * 128);
          for (size_t i = 0; i < result.S.values.size(); ++i) {
            ASSERT_EQ(result.S.values[i], state ? c.S0[i] : 0);
          }
        }
      }
    }
  }
}

TEST_P(CaseB02, NoBatchRowsOrNoTokens) {
  Case c = Standard(Std(1, 0, 2));
  EXPECT_TRUE(Matches(c, RunCase(c, Base()), Solve(c)));
  c.B = 0;
  c.T = 7;
  c.S0.clear();
  EXPECT_TRUE(RunCase(c, Base()).status.ok());
}

const std::vector<int64_t>& TileLengths() {
  static const auto* const lengths =
      new std::vector<int64_t>{1,  2,  3,  7,  8,  9,  15,  16,  17,  31,  32,  33,
                               47, 48, 49, 63, 64, 65, 127, 128, 129, 191, 192, 193};
  return *lengths;
}

TEST_P(CaseB03, EveryLengthAlone) {
  for (int64_t T : TileLengths()) {
    SCOPED_TRACE(T);
    ExpectRight(Standard(Std(2, T, 2)));
  }
}

TEST_P(CaseB03, EveryLengthPacked) {
  const std::vector<int64_t> cu = Offsets(TileLengths());
  for (Regime regime : kRegimes) {
    ExpectRight(Standard(Std(2, cu.back(), 2).Packed(cu).In(regime)));
  }
}

// Rows after the last token, in the same allocation.
TEST_P(CaseB04, WhatLiesBehindTheTensorsNeverMatters) {
  for (int64_t T : TileLengths()) {
    Case c = Standard(Std(2, T, 2));
    const std::vector<Config> configs =
        FastTests() ? std::vector<Config>{Base()}
                    : std::vector<Config>{Base(), Base().Off(KDA_SWITCH_UNIFIED_LAYOUT),
                                          Base().Off(KDA_SWITCHES_ALL)};
    for (const Config& config : configs) {
      c.input_band = kBandNan;
      const Result nan = RunCase(c, config);
      c.input_band = kBandHuge;
      EXPECT_TRUE(SameBits(nan, RunCase(c, config))) << config.Name() << " T " << T;
    }
  }
}

// StdA in tensors of 128 rows; rows 70 and later hold `dead`.
Case WithCapacity(double dead) {
  const Case a = StdA();
  Case c = a;
  c.T = 128;
  const auto grow = [&](std::vector<double>* x, size_t width) { x->resize(128 * width, dead); };
  grow(&c.q, 2 * 128);
  grow(&c.k, 2 * 128);
  grow(&c.v, 2 * 128);
  grow(&c.g, 2 * 128);
  grow(&c.beta, 2);
  return c;
}

TEST_P(CaseB05, RowsPastTheLastOffset) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case clean = WithCapacity(0.5);
    clean.mode = mode;
    const Oracle oracle = Solve(clean);
    const auto configs = ConfigsFor(mode);
    for (const Config& config : configs) {
      SCOPED_TRACE(config.Name());
      const Result valid_looking = RunCase(clean, config);
      EXPECT_TRUE(Matches(clean, valid_looking, oracle));
      for (double dead : {kNan, 3e38, -kInf}) {
        Case c = WithCapacity(dead);
        c.mode = mode;
        EXPECT_TRUE(SameBits(valid_looking, RunCase(c, config))) << dead;
      }
      // Rows of no sequence are +0.
      for (uint32_t bits : RowBits(clean, valid_looking.o, 70, 128)) ASSERT_EQ(bits, 0u);
    }
  }
}

TEST_P(CaseB08, KindsOfOffsets) {
  const Case c = StdB();
  const Result expected = RunCase(c, Base());
  const std::vector<int32_t> narrow(c.cu.begin(), c.cu.end());
  const auto run = [&](const kda_index& index) {
    Runner runner(c, Base(), [&](Problem* p) { p->cu_seqlens = index; });
    EXPECT_TRUE(runner.status().ok()) << runner.status().message();
    return runner.Run(kPoisonHuge);
  };
  EXPECT_TRUE(SameBits(expected, run(kda::Index(narrow))));
  std::vector<int64_t> spread;
  std::vector<int32_t> narrow_spread;
  for (int64_t offset : c.cu) {
    spread.insert(spread.end(), {offset, -12345});
    narrow_spread.insert(narrow_spread.end(), {static_cast<int32_t>(offset), 9999999});
  }
  kda_index index = kda::Index(spread);
  index.count = 5;
  index.stride = 2;
  EXPECT_TRUE(SameBits(expected, run(index)));
  index = kda::Index(narrow_spread);
  index.count = 5;
  index.stride = 2;
  EXPECT_TRUE(SameBits(expected, run(index)));
}

// [0, 3, 5] read as int32 would be [0, 0, 3]: an empty sequence.
TEST_P(CaseB08, Int64IsNotReadAsInt32) {
  Case c = Standard(Std(1, 5, 2).Packed({0, 3, 5}));
  ExpectRight(c);
}

TEST_P(CaseB09, BatchEqualsPacked) {
  Case packed = Standard(Std(4, 150, 3).Packed({0, 50, 100, 150}));
  Case batch = packed;
  batch.B = 3;
  batch.T = 50;
  batch.cu.clear();
  for (const Config& config : Configs()) {
    EXPECT_TRUE(SameBits(RunCase(packed, config), RunCase(batch, config))) << config.Name();
  }
  packed.mode = batch.mode = KDA_DECODE;
  EXPECT_TRUE(SameBits(RunCase(packed, Base()), RunCase(batch, Base())));
  ExpectRight(batch, {Base()});
}

TEST_P(CaseB13, ASequenceOfNansTouchesNoOther) {
  const Case c = StdB();
  for (const Config& config : AllSwitches()) {
    SCOPED_TRACE(config.Name());
    const Result clean = RunCase(c, config);
    for (double x : {kNan, 1e30}) {
      Case dirty = c;  // sequence 1: tokens 0 to 4
      const auto spoil = [&](std::vector<double>* values, int64_t width) {
        std::fill_n(values->begin(), 5 * width, x);
      };
      spoil(&dirty.q, 256);
      spoil(&dirty.k, 256);
      spoil(&dirty.v, 256);
      spoil(&dirty.g, 256);
      spoil(&dirty.beta, 2);
      std::fill_n(dirty.S0.begin() + 2 * 128 * 128, 2 * 128 * 128, x);
      const Result result = RunCase(dirty, config);
      EXPECT_TRUE(SameBits(RowBits(c, clean.o, 5, 70), RowBits(c, result.o, 5, 70)));
      for (int64_t n : {0, 2, 3}) {
        EXPECT_TRUE(SameBits(StateBits(c, clean.S, n), StateBits(c, result.S, n))) << n;
      }
    }
  }
}

TEST_P(Lengths, MixedBatches) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{130, 64, 210},
                                              {53, 14, 13, 33, 16, 480, 512, 77},
                                              {1, 15, 16, 17, 63, 64, 65},
                                              {0, 64, 0, 1, 0}}) {
    const std::vector<int64_t> cu = Offsets(lengths);
    for (bool state : {true, false}) {
      Std std(17, cu.back(), 2);
      if (!state) std.NoState();
      ExpectRight(Standard(std.Packed(cu)));
    }
  }
}

}  // namespace
}  // namespace kda::test
