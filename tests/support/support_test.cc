// The tests' own ground: generator, oracle and the golden numbers it must give.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/stages.h"
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
  EXPECT_EQ(Bf16(1 + 0x1p-8), 1);                   // a tie, down to even
  EXPECT_EQ(Bf16(1 + 3 * 0x1p-8), 1 + 2 * 0x1p-7);  // a tie, up to even
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

// A chunk of head 0 of `c`, ready for the stages.
reference::Chunk ChunkOf(const Case& c, int64_t first, int64_t rows) {
  reference::Chunk chunk;
  chunk.dims = {c.K, c.V};
  chunk.rows = rows;
  chunk.scale = c.Scale();
  Case from = c;
  for (int64_t t = first; t < first + rows; ++t) {
    for (int64_t d = 0; d < c.K; ++d) {
      chunk.q.push_back(from.Q(t, 0, d));
      chunk.k.push_back(from.Key(t, 0, d));
      const double x =
          from.G(t, 0, d) + (c.dt_bias.empty() ? 0 : c.dt_bias[static_cast<size_t>(d)]);
      const double A_log = c.A_log.empty() ? 0 : c.A_log[0];
      chunk.g.push_back(reference::LogDecay({c.gate, c.lower_bound}, x, A_log));
    }
    for (int64_t j = 0; j < c.V; ++j) chunk.v.push_back(from.Value(t, 0, j));
    const double beta = from.Beta(t, 0);
    chunk.beta.push_back(c.beta_logits ? reference::Sigmoid(beta) : beta);
  }
  return chunk;
}

// The four stage oracles, one after the other, are the recurrence: gates of -inf included.
TEST(StageOracles, GiveTheRecurrence) {
  Case wiped = Standard(Std(12, 150, 1).Dims(32, 24));
  SetLogGate(&wiped, -0.05);
  for (size_t i = 0; i < wiped.g.size(); i += 37) wiped.g[i] = -kInf;
  for (const Case& c : {Standard(Std(12, 150, 1).Dims(32, 24)), wiped, StdE()}) {
    const Oracle oracle = Solve(c);
    std::vector<double> o, state = c.S0;
    if (state.empty()) state.resize(static_cast<size_t>(c.K * c.V));
    for (int64_t first = 0; first < c.T; first += 64) {
      const int64_t rows = std::min<int64_t>(64, c.T - first);
      const reference::Chunk chunk = ChunkOf(c, first, rows);
      const reference::IntraChunk intra = reference::ComputeIntraChunk(chunk);
      const reference::InterChunk inter = reference::ComputeInterChunk(chunk, intra, state);
      const reference::Matrix part = reference::Output(chunk, intra, inter.v_new, state);
      o.insert(o.end(), part.begin(), part.end());
      state = inter.state;
      const reference::Matrix G = reference::GateCumsum(chunk);
      const size_t last = static_cast<size_t>((rows - 1) * c.K);
      EXPECT_NEAR(std::exp(G[last + 1]), reference::DecayOver(chunk, 0, rows - 1, 1), 1e-12);
    }
    const Error error = ErrorOf(o, oracle.o);
    EXPECT_TRUE(error.finite);
    EXPECT_LE(error.rel_f, 1e-12);
    EXPECT_LE(ErrorOf(state, oracle.S).rel_f, 1e-12);
  }
}

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

// One head of one sequence that is wrong, a size that is: seen, wherever they are.
TEST(Compare, ByParts) {
  const Case c = Standard(Std(3, 12, 2).Dims(8, 4).Packed({0, 3, 3, 12}));
  const Oracle oracle = Solve(c);
  const std::vector<Share> o = OutputParts(c), S = StateParts(c, oracle.S_written);
  ASSERT_EQ(o.size(), 6U);
  ASSERT_EQ(S.size(), 6U);
  EXPECT_EQ(ErrorsOf(oracle.o, oracle.o, o).part, 0);
  EXPECT_TRUE(Near(oracle.S, oracle.S, S, 0));
  std::vector<double> wrong = oracle.S;
  const auto head = static_cast<std::ptrdiff_t>(3 * 8 * 4);
  for (auto x = wrong.begin() + head; x != wrong.begin() + head + 8 * 4; ++x) *x *= 1.01;
  const PartErrors errors = ErrorsOf(wrong, oracle.S, S);
  EXPECT_EQ(errors.worst, "row 1 head 1");
  EXPECT_LT(errors.whole.rel_f, 0.6 * errors.part);
  EXPECT_TRUE(Near(wrong, oracle.S, S, 0.011));
  EXPECT_FALSE(Near(wrong, oracle.S, S, 0.9 * errors.part));
  wrong = oracle.o;
  wrong[5] = kNan;
  EXPECT_FALSE(ErrorsOf(wrong, oracle.o, o).whole.finite);
  EXPECT_FALSE(Near(wrong, oracle.o, o, kInf));
  EXPECT_TRUE(ZeroElsewhere(c, oracle.o));
  wrong = oracle.o;
  wrong.push_back(1);
  EXPECT_FALSE(ZeroElsewhere(c, wrong));
}

TEST(Compare, OfDifferentSizes) {
  const std::vector<double> two = {1, 2};
  Error error;
  PartErrors errors;
  for (const std::vector<double>& x : {std::vector<double>(), {1, 2, 3}}) {
    EXPECT_NONFATAL_FAILURE(error = ErrorOf(x, two), "size");
    EXPECT_EQ(error.rel_f, kInf);
    EXPECT_NONFATAL_FAILURE(errors = ErrorsOf(x, two, {{"all", 0, 1, 2, 2}}), "size");
    EXPECT_EQ(errors.part, kInf);
  }
}

}  // namespace
}  // namespace kda::test
