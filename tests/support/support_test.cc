// The tests' own ground: generator, oracle and the golden numbers it must give.
#include <gtest/gtest.h>

#include <cmath>

#include "support/compare.h"
#include "support/generator.h"
#include "support/goldens.h"

namespace kda::test {
namespace {

TEST(Generator, CheckValues) {
  EXPECT_EQ(Uniform(1, 1, 0), 0.56141475754245307);
  EXPECT_EQ(Uniform(1, 2, 0), 0.45302902180423299);
  EXPECT_EQ(Normal(1, 1, 0), -1.5692423022283277);
  EXPECT_EQ(Normal(1, 3, 0), 0.99163352479104994);
}

TEST(Generator, RoundsToNearestEven) {
  EXPECT_EQ(Bf16(1 + 0x1p-8), 1);                      // a tie, down to even
  EXPECT_EQ(Bf16(1 + 3 * 0x1p-8), 1 + 2 * 0x1p-7);     // a tie, up to even
  EXPECT_EQ(reference::Round(KDA_F16, 1 + 0x1p-11), 1);
  EXPECT_EQ(reference::Round(KDA_F16, 1 + 3 * 0x1p-11), 1 + 0x1p-9);
  EXPECT_EQ(reference::Round(KDA_F16, 65519), 65504);
  EXPECT_TRUE(std::isinf(reference::Round(KDA_F16, 65520)));
  EXPECT_EQ(reference::Round(KDA_F16, 0x1p-25), 0);
  EXPECT_EQ(reference::Round(KDA_F16, 3 * 0x1p-25), 0x1p-23);
  EXPECT_EQ(reference::Round(KDA_F16, 0x1p-14 - 0x1p-26), 0x1p-14);
  EXPECT_TRUE(std::isnan(Bf16(NAN)));
}

// Twelve digits were written down.
void ExpectDigits(double value, double golden) {
  EXPECT_NEAR(value, golden, 2e-11 * std::fabs(golden));
}

class GoldenTest : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenTest, OracleReproducesIt) {
  const Golden& golden = GetParam();
  const Case c = golden.make();
  const Oracle oracle = Solve(c);
  if (golden.norm_o != 0) {
    ExpectDigits(Norm(oracle.o), golden.norm_o);
    // The probe cancels: its digits are those of the sum's terms.
    EXPECT_NEAR(Probe(oracle.o), golden.probe_o, 1e-10);
  }
  if (golden.norm_S != 0) {
    ExpectDigits(Norm(oracle.S), golden.norm_S);
    EXPECT_NEAR(Probe(oracle.S), golden.probe_S, 1e-9);
  }
  for (size_t i = 0; i < golden.last_o.size(); ++i) {
    const size_t row = static_cast<size_t>((c.T - 1) * c.HV * c.V);
    ExpectDigits(oracle.o[row + i], golden.last_o[i]);
  }
  for (size_t i = 0; i < golden.first_S.size(); ++i) ExpectDigits(oracle.S[i], golden.first_S[i]);
}

INSTANTIATE_TEST_SUITE_P(, GoldenTest, ::testing::ValuesIn(Goldens()),
                         [](const auto& info) { return info.param.name; });

// The comparison must refuse what a wrong kernel would hand out.
TEST(Compare, RefusesWrongResults) {
  const Case c = StdB();
  const Oracle oracle = Solve(c);
  Result right;
  right.o.values = oracle.o;
  right.S.values = oracle.S;
  ASSERT_TRUE(Matches(c, right, oracle));

  Result wrong = right;
  wrong.o.values[77] = NAN;
  EXPECT_FALSE(Matches(c, wrong, oracle));
  wrong = right;
  for (double& x : wrong.o.values) x *= 1.00003;
  EXPECT_FALSE(Matches(c, wrong, oracle));
  wrong = right;
  wrong.S.values[5 * 128] += 1e-3;
  EXPECT_FALSE(Matches(c, wrong, oracle));
  Case original = c, transposed = c;
  for (int64_t n = 0; n < c.Sequences(); ++n) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 128; ++i) {
        for (int64_t j = 0; j < 128; ++j) {
          transposed.State(n, h, i, j) = original.State(n, h, j, i);
        }
      }
    }
    break;  // one sequence is enough: the comparison looks at each
  }
  wrong.o.values = Solve(transposed).o;
  wrong.S.values = Solve(transposed).S;
  EXPECT_FALSE(Matches(c, wrong, oracle));
}

}  // namespace
}  // namespace kda::test
