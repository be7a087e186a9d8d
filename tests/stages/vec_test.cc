// The vector layer against libm in double precision, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/isa.h"
#include "cpu/forward.h"
#include "cpu/prefetch.h"
#include "stages/primitives.h"
#include "support/isas.h"

namespace kda::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class VecTest : public testing::TestWithParam<kda_isa> {
 protected:
  void SetUp() override {
    const std::string why_not = test::WhyNotWithoutTiles(GetParam());
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    const char* const name = kda_isa_name(GetParam());
    if (PrimitivesFor(name) == nullptr) GTEST_SKIP() << name << " has another's vector layer";
  }
  const Primitives& Table() const { return *PrimitivesFor(kda_isa_name(GetParam())); }
  std::vector<float> Exp(std::vector<float> x) const {
    x.resize((x.size() + 15) / 16 * 16, 0.0f);
    std::vector<float> y(x.size());
    const FloatMode mode;  // as the kernels run
    Table().exp(x.data(), y.data(), static_cast<int>(x.size()));
    return y;
  }
  std::vector<float> Softplus(std::vector<float> x, float exponent) const {
    x.resize((x.size() + 15) / 16 * 16, 0.0f);
    std::vector<float> y(x.size());
    const FloatMode mode;
    Table().softplus_times_pow2(x.data(), exponent, y.data(), static_cast<int>(x.size()));
    return y;
  }
};

double RelativeError(double got, double want) { return std::abs(got - want) / std::abs(want); }

TEST_P(VecTest, ExpInEveryBinadeOfItsArgument) {
  // 4096 points a binade, both ends of the reduced range among them.
  std::vector<float> x;
  for (int e = -30; e <= 6; ++e) {
    for (int i = 0; i < 4096; ++i) {
      const float magnitude = std::ldexp(1.0f + static_cast<float>(i) / 4096.0f, e);
      x.push_back(-magnitude);
      if (magnitude <= 87.0f) x.push_back(magnitude);
    }
  }
  const std::vector<float> y = Exp(x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    // 2 ulp; below 2^-126 it may be flushed to zero.
    const double allowed = 2 * std::ldexp(want, -23) + std::numeric_limits<float>::min();
    ASSERT_NEAR(y[i], want, allowed) << x[i];
  }
}

TEST_P(VecTest, ExpAtTheEnds) {
  const std::vector<float> y = Exp({-12600.0f, -200.0f, -88.0f, -87.0f, 0.0f, -0.0f, 88.0f, kNaN});
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_LE(y[2], std::numeric_limits<float>::min());
  EXPECT_LT(RelativeError(y[3], std::exp(-87.0)), 3e-7);
  EXPECT_EQ(y[4], 1.0f);
  EXPECT_EQ(y[5], 1.0f);
  EXPECT_LT(RelativeError(y[6], std::exp(88.0)), 3e-7);
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST_P(VecTest, ExpSplitKeepsTheDistanceFromOne) {
  std::vector<float> x;
  for (int e = -40; e <= 6; ++e) {
    for (int i = 0; i < 64; ++i) x.push_back(-std::ldexp(1.0f + static_cast<float>(i) / 64.0f, e));
  }
  x.resize((x.size() + 15) / 16 * 16, -kInf);
  std::vector<float> hi(x.size()), lo(x.size());
  {
    const FloatMode mode;
    Table().exp_split(x.data(), hi.data(), lo.data(), static_cast<int>(x.size()));
  }
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(hi[i] == 0.0f || hi[i] == 1.0f);
    const double part =
        hi[i] == 1.0f ? std::expm1(static_cast<double>(x[i])) : std::exp(static_cast<double>(x[i]));
    if (std::abs(part) < std::numeric_limits<float>::min() * 1.001) {
      EXPECT_LT(std::abs(lo[i]), std::numeric_limits<float>::min() * 1.01) << x[i];
    } else {
      EXPECT_LT(RelativeError(lo[i], part), 4 * std::ldexp(1.0, -23)) << x[i];
    }
  }
}

TEST_P(VecTest, SigmoidIncludingItsTails) {
  std::vector<float> x = {-kInf, -1e30f, -104.0f, -88.0f, -20.0f, -5.0f, -1e-3f, 0.0f,
                          1e-3f, 5.0f,   20.0f,   88.0f,  104.0f, 1e30f, kInf,   kNaN};
  std::vector<float> y(16);
  {
    const FloatMode mode;
    Table().sigmoid(x.data(), y.data(), 16);
  }
  for (size_t i = 0; i < 15; ++i) {
    const double want = std::isinf(std::exp(-static_cast<double>(x[i])))
                            ? 0
                            : 1 / (1 + std::exp(-static_cast<double>(x[i])));
    EXPECT_NEAR(y[i], want, 3e-7 * want + 1e-37) << x[i];  // below 2^-126 there is nothing
  }
  EXPECT_EQ(y[14], 1.0f);
  EXPECT_TRUE(std::isnan(y[15]));
}

TEST_P(VecTest, SoftplusIncludingItsTails) {  // CaseA10
  const std::vector<float> x = {-200.0f, -87.0f, -20.1f, -16.01f, -15.99f, -2.0f, -1e-8f,  0.0f,
                                1e-8f,   0.5f,   2.0f,   19.9f,   20.1f,   88.0f, 1000.0f, 3e38f};
  // The power of two brings each result into the range of fp32.
  for (float exponent : {0.0f, 100.0f, -100.0f}) {
    const std::vector<float> y = Softplus(x, exponent);
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i];
      const double softplus = v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v));
      const double want = std::ldexp(softplus, static_cast<int>(exponent));
      if (want > std::numeric_limits<float>::max()) {
        EXPECT_EQ(y[i], kInf) << x[i];
      } else if (want < std::numeric_limits<float>::min()) {
        EXPECT_EQ(y[i], 0.0f) << x[i];
      } else {
        EXPECT_LT(RelativeError(y[i], want), 1e-6) << x[i] << " times 2^" << exponent;
      }
    }
  }
  const std::vector<float> ends = Softplus({-kInf, kInf, -1e30f, kNaN}, 0.0f);
  EXPECT_EQ(ends[0], 0.0f);
  EXPECT_EQ(ends[1], kInf);
  EXPECT_EQ(ends[2], 0.0f);
  EXPECT_TRUE(std::isnan(ends[3]));
}

TEST_P(VecTest, L2NormalizeAtEveryAmplitude) {  // CaseD09
  for (double amplitude :
       {0.0, 1e-20, 1e-5, 1e-3, 1.0, 1e5, 1e11, 1.2e12, 1e13, 1e15, 1e19, 1e37}) {
    std::vector<float> x(128);
    double sum = 1e-6;
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(amplitude * std::sin(static_cast<double>(i) + 1));
      sum += static_cast<double>(x[i]) * x[i];
    }
    std::vector<float> y = x;
    {
      const FloatMode mode;
      Table().l2_normalize(y.data(), 128);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = x[i] / std::sqrt(sum);
      ASSERT_NEAR(y[i], want, 1e-6 * std::abs(want)) << amplitude;
    }
  }
}

TEST_P(VecTest, EveryHalfGoesThroughARowUnchanged) {
  for (int dtype : {KDA_BF16, KDA_F16}) {
    std::vector<uint16_t> half(1 << 16), back(1 << 16);
    for (size_t i = 0; i < half.size(); ++i) half[i] = static_cast<uint16_t>(i);
    std::vector<float> value(half.size());
    {
      const FloatMode mode;
      Table().load_row(dtype, reinterpret_cast<const char*>(half.data()), 1 << 16, value.data());
      Table().store_row(dtype, value.data(), 1 << 16, reinterpret_cast<char*>(back.data()));
    }
    const int mantissa = dtype == KDA_BF16 ? 7 : 10;
    for (size_t i = 0; i < half.size(); ++i) {
      const int exponent_bits = 15 - mantissa;
      const uint32_t exponent = (half[i] & 0x7fffu) >> mantissa;
      const double fraction = half[i] & ((1u << mantissa) - 1);
      const bool special = exponent == (1u << exponent_bits) - 1;
      if (special && fraction != 0) {
        ASSERT_TRUE(std::isnan(value[i])) << i;
        ASSERT_EQ(back[i] & ~(1u << (mantissa - 1)), half[i] & ~(1u << (mantissa - 1))) << i;
        continue;
      }
      const int bias = (1 << (exponent_bits - 1)) - 1;
      const double magnitude = special         ? static_cast<double>(kInf)
                               : exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                                               : std::ldexp(1 + std::ldexp(fraction, -mantissa),
                                                            static_cast<int>(exponent) - bias);
      ASSERT_EQ(static_cast<double>(value[i]), half[i] & 0x8000 ? -magnitude : magnitude) << i;
      ASSERT_EQ(back[i], half[i]) << i;
    }
  }
}

TEST_P(VecTest, HalvesRoundToNearestEven) {
  for (int dtype : {KDA_BF16, KDA_F16}) {
    for (uint32_t h = 0; h < 0x7f00; h += 3) {
      // The two neighbours h and h + 1 (finite), and points around their middle.
      const uint16_t pair[2] = {static_cast<uint16_t>(h), static_cast<uint16_t>(h + 1)};
      float ends[16];
      if (dtype == KDA_F16 && h + 1 >= 0x7c00) break;
      Table().load_row(dtype, reinterpret_cast<const char*>(pair), 2, ends);
      const float middle =
          static_cast<float>((static_cast<double>(ends[0]) + static_cast<double>(ends[1])) / 2);
      if (middle < std::numeric_limits<float>::min()) continue;
      const float x[16] = {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInf),
                           -middle};
      uint16_t got[4];
      Table().store_row(dtype, x, 4, reinterpret_cast<char*>(got));
      const uint16_t even = h % 2 == 0 ? pair[0] : pair[1];
      ASSERT_EQ(got[0], pair[0]) << h;
      ASSERT_EQ(got[1], even) << h;
      ASSERT_EQ(got[2], pair[1]) << h;
      ASSERT_EQ(got[3], even | 0x8000) << h;
    }
  }
}

TEST_P(VecTest, RowsOfEveryLengthStayInside) {
  for (int dtype : {KDA_F32, KDA_BF16, KDA_F16}) {
    const int size = dtype == KDA_F32 ? 4 : 2;
    for (int n = 1; n <= 256; ++n) {
      const int padded = (n + 15) / 16 * 16;
      // Exactly n elements: a sanitizer sees any read past them.
      std::vector<char> src(static_cast<size_t>(n * size), 0), dst(src.size() + 8, 0x55);
      for (int i = 0; i < n; ++i) {
        const float one = 1.0f;
        const uint16_t half = dtype == KDA_BF16 ? 0x3f80 : 0x3c00;
        std::memcpy(&src[static_cast<size_t>(i * size)],
                    dtype == KDA_F32 ? static_cast<const void*>(&one) : &half,
                    static_cast<size_t>(size));
      }
      std::vector<float> row(static_cast<size_t>(padded) + 1, 7.0f);
      Table().load_row(dtype, src.data(), n, row.data());
      for (int i = 0; i < padded; ++i) ASSERT_EQ(row[static_cast<size_t>(i)], i < n ? 1.0f : 0.0f);
      ASSERT_EQ(row[static_cast<size_t>(padded)], 7.0f);
      Table().store_row(dtype, row.data(), n, dst.data());
      ASSERT_EQ(std::memcmp(dst.data(), src.data(), src.size()), 0);
      for (size_t i = src.size(); i < dst.size(); ++i) ASSERT_EQ(dst[i], 0x55);
    }
  }
}

TEST_P(VecTest, TransposeMovesEveryElement) {
  const int n = Table().lanes;
  std::vector<float> src(static_cast<size_t>(n * 20)), dst(static_cast<size_t>(n * 24), -1.0f);
  for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i);
  Table().transpose(src.data(), 20, dst.data(), 24);
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) {
      ASSERT_EQ(dst[static_cast<size_t>(c * 24 + r)], src[static_cast<size_t>(r * 20 + c)]);
    }
  }
}

// Rows of one token are worked out with either (decode and the diagonal), and have the same bits.
TEST_P(VecTest, SumEachIsTheSumOfEachRow) {
  const int n = Table().lanes;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 100; ++round) {
    alignas(64) float tile[16 * 16], sums[16];
    for (float& x : tile) x = normal(random);
    Table().sum_each(tile, sums);
    for (int r = 0; r < n; ++r) {
      double want = 0;
      for (int c = 0; c < n; ++c) want += tile[r * n + c];
      ASSERT_NEAR(sums[r], want, 1e-5);
      ASSERT_EQ(sums[r], Table().sum(tile + r * n));
    }
  }
}

// Not inlined, where g++ 12 follows paths that are none.
[[gnu::noinline]] std::vector<const char*> LinesOf(Ahead<int>* ahead, int64_t steps) {
  std::vector<const char*> lines;
  for (int64_t i = 0; i < steps; ++i) {
    if (const char* const line = ahead->Due()) lines.push_back(line);
  }
  return lines;
}

// Every line of every row once, and then nothing, whatever the number of steps for each.
TEST(Ahead, EveryLineOnce) {
  for (int64_t steps : {23, 24, 48, 100}) {
    const std::vector<char> rows(10000);
    const char* const first = rows.data();
    Ahead<int> ahead;
    ahead.Add(first, 1000, 130, 5);      // 3 lines each
    ahead.Add(nullptr, 1000, 64, 5);     // not known
    ahead.Add(first + 6000, 64, 64, 0);  // no rows
    ahead.Add(first + 6000, 1000, 64 * 3, 3);
    ahead.Spread(steps);
    std::vector<const char*> want;
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t b = 0; b < 3; ++b) want.push_back(first + 1000 * r + 64 * b);
    }
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t b = 0; b < 3; ++b) want.push_back(first + 6000 + 1000 * r + 64 * b);
    }
    const size_t count = std::min(want.size(), static_cast<size_t>(steps));
    const std::vector<const char*> rest(want.begin() + static_cast<int64_t>(count), want.end());
    want.resize(count);
    EXPECT_EQ(LinesOf(&ahead, steps), want) << steps;
    EXPECT_EQ(LinesOf(&ahead, 200), rest) << steps;
  }
  Ahead<int> none;
  none.Spread(10);
  EXPECT_TRUE(LinesOf(&none, 20).empty());
}

// bf16 operands in fp32 products, on the instruction sets that have them.
class Bf16VecTest : public VecTest {
 protected:
  void SetUp() override {
    VecTest::SetUp();
    if (!IsSkipped() && Table().bf16 == nullptr) GTEST_SKIP() << "its products are of fp32";
  }
  const Bf16Primitives& Bf16() const { return *Table().bf16; }
};

uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
float FromBf16(uint32_t half) { return FromBits(half << 16); }
float Pair(uint32_t low, uint32_t high) { return FromBits(high << 16 | low); }

// The instructions take subnormal operands for zeros of their sign; a NaN keeps its upper bits and
// becomes quiet.
uint16_t NearestEven(float x) {
  const uint32_t bits = Bits(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  if ((bits & 0x7f800000) == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Of both signs and a length that is a multiple of 16: around the middle between two bf16 (odd and
// even ones, some that carry into the exponent), in all binades and the subnormals; Inf and NaN.
std::vector<float> ToRound() {
  std::vector<float> x;
  for (uint32_t exponent = 0; exponent <= 255; ++exponent) {
    for (uint32_t top : {0u, 1u, 2u, 63u, 64u, 126u, 127u}) {
      for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const uint32_t bits = exponent << 23 | top << 16 | low;
        x.push_back(FromBits(bits));
        x.push_back(FromBits(bits | 0x80000000));
      }
    }
  }
  x.resize((x.size() + 15) / 16 * 16, 0.0f);
  return x;
}

TEST_P(Bf16VecTest, PairsRowAndStoreRoundToNearestEven) {
  const std::vector<float> x = ToRound();
  const FloatMode mode;  // as the kernels run
  for (size_t i = 0; i < x.size(); i += 16) {
    const float* const first = &x[i];
    const float* const second = &x[x.size() - 16 - i];
    float pairs[16], row[16];
    uint16_t interleaved[32], in_a_row[32], stored[17];
    stored[16] = 0x5555;
    Bf16().pairs(first, second, pairs);
    Bf16().row(first, second, row);
    Bf16().store_rounded(first, stored);
    std::memcpy(interleaved, pairs, sizeof(pairs));
    std::memcpy(in_a_row, row, sizeof(row));
    for (size_t lane = 0; lane < 16; ++lane) {
      const uint16_t a = NearestEven(first[lane]), b = NearestEven(second[lane]);
      ASSERT_EQ(interleaved[2 * lane], a) << std::hex << Bits(first[lane]);
      ASSERT_EQ(interleaved[2 * lane + 1], b) << std::hex << Bits(second[lane]);
      ASSERT_EQ(in_a_row[lane], a) << std::hex << Bits(first[lane]);
      ASSERT_EQ(in_a_row[16 + lane], b) << std::hex << Bits(second[lane]);
      ASSERT_EQ(stored[lane], a) << std::hex << Bits(first[lane]);
    }
    ASSERT_EQ(stored[16], 0x5555);
  }
}

TEST_P(Bf16VecTest, TopRoundsHalfAwayFromZero) {
  const std::vector<float> x = ToRound();
  const FloatMode mode;
  for (size_t i = 0; i < x.size(); i += 16) {
    float top[16];
    Bf16().top(&x[i], top);
    for (size_t lane = 0; lane < 16; ++lane) {
      const uint32_t bits = Bits(x[i + lane]), low = bits & 0xffff;
      if (std::isnan(x[i + lane])) continue;  // what is left of one is the other part's
      const uint32_t down = bits - low;
      ASSERT_EQ(Bits(top[lane]), low < 0x8000 ? down : down + 0x10000) << std::hex << bits;
      if (!std::isfinite(top[lane]) || (bits & 0x7f800000) == 0) continue;
      const double rest = static_cast<double>(x[i + lane]) - static_cast<double>(top[lane]);
      ASSERT_LE(std::abs(rest), std::ldexp(std::abs(static_cast<double>(x[i + lane])), -8));
    }
  }
}

TEST_P(Bf16VecTest, SetPairIsInEveryLane) {
  const FloatMode mode;
  // As bits: a pair may look like a subnormal or a signalling NaN.
  for (uint32_t pair : {0x40003f80u, 0x00000001u, 0x80000000u, 0x7f810001u, 0xffffffffu}) {
    // Not aligned to more than a pair, and nothing after it.
    const std::vector<uint32_t> source(1, pair);
    float y[16];
    Bf16().set_pair(reinterpret_cast<const float*>(source.data()), y);
    for (float lane : y) ASSERT_EQ(Bits(lane), pair);
  }
}

TEST_P(Bf16VecTest, DotAddsBothProductsOfALane) {
  const uint32_t one = 0x3f80, two = 0x4000, three = 0x4040, minus = 0x8000, inf = 0x7f80,
                 nan = 0x7fc0, tiny = 0x0001, least = 0x0080, large = 0x7f00;
  const struct {
    uint32_t a_low, a_high, b_low, b_high;
    float c, want;
  } rows[] = {{one, 0, two, 0, 0, 2},
              {0, one, 0, three, 0, 3},
              {one, two, two, three, 1, 9},
              {one, two, 0, three, 0, 6},
              {one | minus, two, two, three | minus, 0.5f, -7.5f},
              {one, one, one, one | minus, 0, 0},
              {one, 0, one, 0, std::ldexp(1.0f, -23), 1 + std::ldexp(1.0f, -23)},
              {0x3f81, 0, 0x3f81, 0, 0, FromBf16(0x3f81) * FromBf16(0x3f81)},  // exact in fp32
              {tiny, 0, large, 0, 0, 0},                                       // subnormal operands
              {0, tiny | minus, 0, large, 3, 3},
              {least, 0, least, 0, 1, 1},
              {inf, 0, one, 0, 1, kInf},
              {0, inf | minus, 0, one, 1, -kInf},
              {inf, 0, 0, 0, 1, kNaN},
              {inf, inf | minus, one, one, 1, kNaN},
              {one, nan, one, 0, 1, kNaN}};
  const FloatMode mode;
  for (const auto& row : rows) {
    // In one lane of 16, among others that stay as they are.
    for (size_t lane = 0; lane < 16; ++lane) {
      float a[16] = {}, b[16] = {}, c[16], y[16];
      for (size_t i = 0; i < 16; ++i) c[i] = static_cast<float>(i);
      a[lane] = Pair(row.a_low, row.a_high);
      b[lane] = Pair(row.b_low, row.b_high);
      c[lane] = row.c;
      Bf16().dot(a, b, c, y);
      for (size_t i = 0; i < 16; ++i) {
        const float want = i == lane ? row.want : static_cast<float>(i);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(y[i])) << y[i];
        } else {
          ASSERT_EQ(y[i], want) << std::hex << Bits(a[lane]) << " " << Bits(b[lane]);
        }
      }
    }
  }
}

std::string IsaName(const testing::TestParamInfo<kda_isa>& info) {
  return kda_isa_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(Isa, VecTest, testing::ValuesIn(test::IsasOfBuild()), IsaName);
INSTANTIATE_TEST_SUITE_P(Isa, Bf16VecTest, testing::ValuesIn(test::IsasOfBuild()), IsaName);

}  // namespace
}  // namespace kda::cpu
