// Every CPU stage against its fp64 oracle, on every instruction set of this machine: all gates, all
// row counts that matter, dimensions that are not a multiple of anything.
#include "reference/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/isa.h"
#include "cpu/forward.h"
#include "stages/stage_case.h"
#include "support/isas.h"

namespace kda::cpu {
namespace {

class StageTest : public testing::TestWithParam<std::tuple<kda_isa, Regime>> {
 protected:
  void SetUp() override {
    const std::string why_not = test::WhyNotWithoutTiles(std::get<0>(GetParam()));
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
  const Kernels& kernels() const { return *core::Isas().Find(std::get<0>(GetParam()))->kernels; }
  Regime regime() const { return std::get<1>(GetParam()); }
};

constexpr Shape kShapes[] = {{1, 128, 128}, {2, 128, 128},  {15, 128, 128}, {16, 128, 128},
                             {17, 64, 32},  {31, 128, 128}, {33, 100, 60},  {48, 128, 128},
                             {63, 256, 17}, {64, 128, 128}, {64, 3, 256},   {64, 1, 1}};

// fp32 sums of at most 256 + 64 terms, gates of up to 64 tokens: a few hundred roundings.
constexpr double kTolerance = 1e-5;

TEST_P(StageTest, GateCumsum) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.dim_k);
    StageCase stage(shape, regime());
    {
      const KernelSession session(kernels());
      kernels().gate_cumsum(stage.chunk(), stage.buffers());
    }
    for (int i = 0; i < shape.rows; ++i) {
      for (int c = 0; c < shape.dim_k; ++c) {
        const int64_t at = i * stage.buffers().ldk + c;
        const int64_t first = i / kBlockRows * kBlockRows;
        const double decay = reference::DecayOver(stage.oracle(), i, i, c);
        const double prefix = reference::DecayOver(stage.oracle(), first, i, c);
        ASSERT_NEAR(stage.buffers().decay[at], decay, 1e-5 * decay + 1e-37);
        ASSERT_NEAR(stage.buffers().prefix[at], prefix, 1e-5 * prefix + 1e-37);
      }
    }
  }
}

TEST_P(StageTest, IntraChunk) {
  for (const Shape& shape : kShapes) {
    for (const bool products : {true, false}) {
      SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.dim_k << "x" << shape.dim_v
                                      << " products " << products);
      StageCase stage(shape, regime());
      const ChunkBuffers& buffers = stage.buffers();
      {
        const KernelSession session(kernels());
        kernels().gate_cumsum(stage.chunk(), buffers);
        (products ? kernels().intra_chunk_products : kernels().intra_chunk_elementwise)(
            stage.chunk(), buffers);
      }
      const reference::IntraChunk want = reference::ComputeIntraChunk(stage.oracle());
      std::vector<float> aqk, l;  // the triangles; the rest is not written
      for (int i = 0; i < shape.rows; ++i) {
        for (int j = 0; j < shape.rows; ++j) {
          aqk.push_back(j <= i ? buffers.aqk[i * kChunkRows + j] : 0);
          l.push_back(j < i ? buffers.l[i * kChunkRows + j] : 0);
        }
      }
      const int n = shape.rows;
      EXPECT_LT(StageCase::Error(aqk.data(), n, want.Aqk, n, n), kTolerance);
      EXPECT_LT(StageCase::Error(l.data(), n, want.L, n, n), kTolerance);
    }
  }
}

TEST_P(StageTest, SolveUW) {
  for (const Shape& shape : kShapes) {
    for (const Solver solver : {Solver::kSubstitution, Solver::kBlock}) {
      SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.dim_k << "x" << shape.dim_v);
      StageCase stage(shape, regime());
      {
        const KernelSession session(kernels());
        kernels().gate_cumsum(stage.chunk(), stage.buffers());
        kernels().intra_chunk_products(stage.chunk(), stage.buffers());
        kernels().solve_uw(stage.chunk(), stage.buffers(), solver);
      }
      const reference::IntraChunk want = reference::ComputeIntraChunk(stage.oracle());
      const ChunkBuffers& b = stage.buffers();
      EXPECT_LT(StageCase::Error(b.u, b.ldv, want.u, shape.rows, shape.dim_v), kTolerance);
      EXPECT_LT(StageCase::Error(b.w, b.ldk, want.w, shape.rows, shape.dim_k), kTolerance);
    }
  }
}

TEST_P(StageTest, InterChunkAndOutput) {
  for (const Shape& shape : kShapes) {
    for (const bool fused : {true, false}) {
      SCOPED_TRACE(testing::Message()
                   << shape.rows << "x" << shape.dim_k << "x" << shape.dim_v << " fused " << fused);
      StageCase stage(shape, regime());
      const ChunkBuffers& b = stage.buffers();
      const State next = stage.next();
      {
        const KernelSession session(kernels());
        kernels().gate_cumsum(stage.chunk(), b);
        kernels().intra_chunk_products(stage.chunk(), b);
        if (fused) {
          kernels().delta_rule(stage.chunk(), b, stage.state(), Solver::kBlock);
        } else {
          kernels().solve_uw(stage.chunk(), b, Solver::kBlock);
          kernels().delta_rule_uw(stage.chunk(), b, stage.state());
        }
        kernels().output(stage.chunk(), b, stage.state());
        kernels().decay_to_end(stage.chunk(), b, shape.rows);
        kernels().advance_state(stage.chunk(), b, shape.rows, stage.state(), next);
      }
      const reference::IntraChunk intra = reference::ComputeIntraChunk(stage.oracle());
      const reference::InterChunk want =
          reference::ComputeInterChunk(stage.oracle(), intra, stage.oracle_state());
      const reference::Matrix o =
          reference::Output(stage.oracle(), intra, want.v_new, stage.oracle_state());
      EXPECT_LT(StageCase::Error(b.v_new, b.ldv, want.v_new, shape.rows, shape.dim_v), kTolerance);
      EXPECT_LT(StageCase::Error(stage.o().data(), shape.dim_v, o, shape.rows, shape.dim_v),
                kTolerance);
      EXPECT_LT(StageCase::Error(next.data, next.ld, want.state, shape.dim_k, shape.dim_v),
                kTolerance);
    }
  }
}

TEST_P(StageTest, DecodeTokenIsTheRecurrence) {
  for (const Shape& shape : {Shape{1, 128, 128}, Shape{1, 100, 60}, Shape{1, 3, 256}}) {
    StageCase stage(shape, regime());
    const State next = stage.next();
    {
      const KernelSession session(kernels());
      TokenVectors vectors;
      const DecodeHead head = {stage.chunk(), stage.state(), next, &vectors};
      kernels().decode_token(&head, 1);
    }
    const reference::IntraChunk intra = reference::ComputeIntraChunk(stage.oracle());
    const reference::InterChunk want =
        reference::ComputeInterChunk(stage.oracle(), intra, stage.oracle_state());
    const reference::Matrix o =
        reference::Output(stage.oracle(), intra, want.v_new, stage.oracle_state());
    EXPECT_LT(StageCase::Error(stage.o().data(), shape.dim_v, o, 1, shape.dim_v), kTolerance);
    EXPECT_LT(StageCase::Error(next.data, next.ld, want.state, shape.dim_k, shape.dim_v),
              kTolerance);
  }
}

std::string Name(const testing::TestParamInfo<std::tuple<kda_isa, Regime>>& info) {
  static const char* const kRegimes[] = {"mixed", "saturated", "slow", "wipe", "unbounded"};
  return std::string(kda_isa_name(std::get<0>(info.param))) + "_" +
         kRegimes[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(Isa, StageTest,
                         testing::Combine(testing::ValuesIn(test::IsasOfBuild()),
                                          testing::Values(Regime::kMixed, Regime::kSaturated,
                                                          Regime::kSlow, Regime::kWipe,
                                                          Regime::kUnbounded)),
                         Name);

}  // namespace
}  // namespace kda::cpu
