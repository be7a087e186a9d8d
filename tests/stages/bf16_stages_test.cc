// The stages with bf16 products against their fp64 oracles, on every instruction set of this
// machine that has them: bf16 inputs, all row counts that matter.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "core/isa.h"
#include "cpu/mma/tile.h"
#include "stages/stage_case.h"
#include "support/isas.h"

namespace kda::cpu {
namespace {

constexpr Shape kShapes[] = {{2, 128, 128},  {15, 128, 128}, {16, 128, 128}, {17, 64, 32},
                             {31, 96, 48},   {33, 128, 60},  {48, 128, 128}, {63, 256, 17},
                             {64, 128, 128}, {64, 32, 256},  {64, 64, 1}};

// Operands rounded to bf16 are off by half a unit in the last place, 2^-9, each; the errors of a
// sum's terms average. v_new passes once through the solve.
constexpr double kOneRounding = 0x1p-9, kTwoRoundings = 0x1p-8;
// The state's update takes fp32 operands or split ones, 17 bits each: what
// it adds to v_new's error.
constexpr double kUpdate = 1e-4;

class Bf16StageTest : public testing::TestWithParam<std::tuple<kda_isa, Regime>> {
 protected:
  void SetUp() override {
    const std::string why_not = test::WhyNot(std::get<0>(GetParam()));
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
  const Kernels& kernels() const {
    return *core::Isas().Find(std::get<0>(GetParam()))->bf16_kernels;
  }
  Regime regime() const { return std::get<1>(GetParam()); }
};

TEST_P(Bf16StageTest, EveryStage) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.dim_k << "x" << shape.dim_v);
    StageCase stage(shape, regime(), kernels().buffers);
    const HeadChunk view = stage.chunk();
    const ChunkBuffers& b = stage.buffers();
    const State next = stage.next();
    {
      const KernelSession session(kernels());
      kernels().gate_cumsum(view, b);
      kernels().intra_chunk_products(view, b);
      kernels().delta_rule(view, b, stage.state(), Solver::kBlock);
      kernels().output(view, b, stage.state());
      kernels().decay_to_end(view, b, shape.rows);
      kernels().advance_state(view, b, shape.rows, stage.state(), next);
    }
    for (int i = 0; i < shape.rows; ++i) {
      for (int c = 0; c < shape.dim_k; ++c) {
        const int64_t at = int64_t{c / kPanel} * kChunkRows * kPanel + i * kPanel + c % kPanel;
        const double decay = reference::DecayOver(stage.oracle(), i, i, c);
        ASSERT_NEAR(b.decay[at], decay, 1e-5 * decay + 1e-37);
      }
    }
    const reference::IntraChunk intra = reference::ComputeIntraChunk(stage.oracle());
    std::vector<float> aqk, l;  // the triangles; the rest is never read
    const int n = shape.rows;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        aqk.push_back(j <= i ? b.aqk[i * kChunkRows + j] : 0);
        l.push_back(j < i ? b.l[i * kChunkRows + j] : 0);
      }
    }
    EXPECT_LT(StageCase::Error(aqk.data(), n, intra.Aqk, n, n), kOneRounding);  // the query's
    EXPECT_LT(StageCase::Error(l.data(), n, intra.L, n, n), kTwoRoundings);
    const reference::InterChunk want =
        reference::ComputeInterChunk(stage.oracle(), intra, stage.oracle_state());
    const reference::Matrix o =
        reference::Output(stage.oracle(), intra, want.v_new, stage.oracle_state());
    EXPECT_LT(StageCase::Error(b.v_new, b.ldv, want.v_new, n, shape.dim_v), kOneRounding);
    EXPECT_LT(StageCase::Error(stage.o().data(), shape.dim_v, o, n, shape.dim_v), kTwoRoundings);
    EXPECT_LT(StageCase::Error(next.data, next.ld, want.state, shape.dim_k, shape.dim_v),
              kOneRounding + kUpdate);
  }
}

// |A B - what a kernel made of fp32 A and B| <= error * |A| |B| + floor, element by element, by
// what the sums over tokens promise. A split operand is high + low to 2^-17 (StoreSplit), and low
// times low, at most 2^-8 of either, is left out: 2^-17 + 2^-17 + 2^-16 = 2^-15 of each term.
// Adding up at most 64 terms (those with a low part are smaller by 2^8) and what surrounds the sum
// is below 80 roundings in fp32. Were one of the low parts lost, terms would be off by up to 2^-8.
constexpr double kSplitTerm = 0x1p-15, kSums = 80 * 0x1p-24;
constexpr double kFlushed = 0x1p-100;  // subnormal low parts of operands up to 2^20

// One element of A B, and what it may be off by.
struct Sum {
  double value = 0, bound = kFlushed;

  void Add(double a, double b, double error) {
    value += a * b;
    bound += std::abs(a * b) * (error + kSums);
  }
};

// The sums over tokens alone: each against fp64 sums of the operands that the kernels themselves
// have made, from a state of zeros, so that the results hold nothing else.
class Bf16SumsTest : public Bf16StageTest {
 protected:
  static constexpr int64_t Element(int64_t i, int64_t ld, int j) { return i * ld + j; }

  double TermError() const { return kernels().buffers == Which::kFusedSplit ? kSplitTerm : 0; }
  // Of what token j means to token i: within a 16-row block operands are fp32.
  double TermError(int i, int j) const {
    return i / kBlockRows == j / kBlockRows ? 0 : TermError();
  }

  // beta v = (I + L) v_new, by the L that was used; substitution is in fp32 throughout.
  void ExpectSolved(const StageCase& stage, Solver solver, const Shape& shape) const {
    const ChunkBuffers& b = stage.buffers();
    for (int i = 0; i < shape.rows; ++i) {
      for (int c = 0; c < shape.dim_v; ++c) {
        Sum sum;
        for (int j = 0; j < i; ++j) {
          sum.Add(b.l[i * kChunkRows + j], b.v_new[Element(j, b.ldv, c)],
                  solver == Solver::kBlock ? TermError(i, j) : 0);
        }
        sum.Add(1, b.v_new[Element(i, b.ldv, c)], 0);
        const double right = stage.oracle().beta[static_cast<size_t>(i)] *
                             stage.oracle().v[static_cast<size_t>(i * shape.dim_v + c)];
        ASSERT_NEAR(sum.value, right, sum.bound) << "v_new " << i << ", " << c;
      }
    }
  }

  // o = scale Aqk v_new
  void ExpectOutput(const StageCase& stage, const Shape& shape) const {
    const ChunkBuffers& b = stage.buffers();
    for (int i = 0; i < shape.rows; ++i) {
      for (int c = 0; c < shape.dim_v; ++c) {
        Sum sum;
        for (int j = 0; j <= i; ++j) {
          sum.Add(0.125 * b.aqk[i * kChunkRows + j], b.v_new[Element(j, b.ldv, c)],
                  TermError(i, j));
        }
        ASSERT_NEAR(stage.o()[static_cast<size_t>(i * shape.dim_v + c)], sum.value, sum.bound)
            << "o " << i << ", " << c;
      }
    }
  }

  // S = kg^T v_new of the first `rows` tokens.
  void ExpectState(const StageCase& stage, const Shape& shape, int rows, State state) const {
    const ChunkBuffers& b = stage.buffers();
    for (int k = 0; k < shape.dim_k; ++k) {
      for (int c = 0; c < shape.dim_v; ++c) {
        Sum sum;
        for (int j = 0; j < rows; ++j) {
          sum.Add(b.kg[Element(j, b.ldk, k)], b.v_new[Element(j, b.ldv, c)], TermError());
        }
        ASSERT_NEAR(state.data[Element(k, state.ld, c)], sum.value, sum.bound)
            << "state after " << rows << " rows, " << k << ", " << c;
      }
    }
  }
};

TEST_P(Bf16SumsTest, KeepTheirLowParts) {
  for (const Shape& shape : kShapes) {
    for (const Solver solver : {Solver::kBlock, Solver::kSubstitution}) {
      SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.dim_k << "x" << shape.dim_v
                                      << " solver " << static_cast<int>(solver));
      StageCase stage(shape, regime(), kernels().buffers);
      const HeadChunk view = stage.chunk();
      const ChunkBuffers& b = stage.buffers();
      const std::vector<float> zeros(static_cast<size_t>(b.ldk * b.ldv));
      const ConstState none = {zeros.data(), b.ldv};
      const State next = stage.next();
      const KernelSession session(kernels());
      kernels().gate_cumsum(view, b);
      kernels().intra_chunk_products(view, b);
      kernels().delta_rule(view, b, none, solver);
      kernels().output(view, b, none);
      ExpectSolved(stage, solver, shape);
      ExpectOutput(stage, shape);
      // Checkpoints at, before and after the ends of blocks, the chunk's own end last.
      for (const int rows : {1, 5, 15, 16, 17, 32, 47, 63, shape.rows}) {
        if (rows > shape.rows) continue;
        kernels().decay_to_end(view, b, rows);
        kernels().advance_state(view, b, rows, none, next);
        ExpectState(stage, shape, rows, next);
      }
      if (HasFatalFailure()) return;
    }
  }
}

std::vector<kda_isa> IsasWithBf16() {
  std::vector<kda_isa> isas;
  for (const kda_isa isa : test::IsasOfBuild()) {
    if (core::Isas().Find(isa)->bf16_kernels != nullptr) isas.push_back(isa);
  }
  return isas;
}

template <class Info>
std::string Name(const Info& info) {
  static const char* const kRegimes[] = {"mixed", "saturated", "slow", "wipe", "unbounded"};
  return std::string(kda_isa_name(std::get<0>(info.param))) + "_" +
         kRegimes[static_cast<int>(std::get<1>(info.param))];
}
const auto kEvery =
    testing::Combine(testing::ValuesIn(IsasWithBf16()),
                     testing::Values(Regime::kMixed, Regime::kSaturated, Regime::kSlow,
                                     Regime::kWipe, Regime::kUnbounded));
INSTANTIATE_TEST_SUITE_P(Isa, Bf16StageTest, kEvery, [](const auto& info) { return Name(info); });
INSTANTIATE_TEST_SUITE_P(Isa, Bf16SumsTest, kEvery, [](const auto& info) { return Name(info); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Bf16StageTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Bf16SumsTest);

}  // namespace
}  // namespace kda::cpu
