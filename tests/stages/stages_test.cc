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
#include "support/isas.h"

namespace kda::cpu {
namespace {

enum class Regime { kMixed, kSaturated, kSlow, kWipe, kUnbounded };

struct Shape {
  int rows, dim_k, dim_v;
};

// One chunk of one head in fp32, its oracle, and buffers full of NaN.
class StageCase {
 public:
  StageCase(const Shape& shape, Regime regime) : shape_(shape) {
    std::mt19937 random(static_cast<unsigned>(shape.rows * 1000 + shape.dim_k));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* x, int width, float mean, float spread) {
      x->resize(static_cast<size_t>(shape.rows * width));
      for (float& value : *x) value = mean + spread * normal(random);
    };
    // A common part: correlated keys, and no product of rows that cancels to nothing.
    fill(&q_, shape.dim_k, 0.05f, 0.1f);
    fill(&k_, shape.dim_k, 0.05f, 0.1f);
    fill(&v_, shape.dim_v, 0, 1);
    fill(&g_, shape.dim_k, 0, 1);
    beta_.resize(static_cast<size_t>(shape.rows));
    for (float& b : beta_) b = 1 / (1 + std::exp(-normal(random)));
    for (size_t i = 0; i < g_.size(); ++i) g_[i] = GateOf(regime, i, g_[i]);
    state_.resize(static_cast<size_t>(shape.dim_k * PaddedDim(shape.dim_v)));
    for (int c = 0; c < shape.dim_k; ++c) {
      for (int j = 0; j < shape.dim_v; ++j) {
        state_[static_cast<size_t>(c * PaddedDim(shape.dim_v) + j)] = 0.1f * normal(random);
      }
    }
    SetUpKernelSide();
    SetUpOracle();
  }

  const HeadChunk& chunk() const { return view_; }
  const ChunkBuffers& buffers() const { return buffers_; }
  ConstState state() const { return {state_.data(), PaddedDim(shape_.dim_v)}; }
  State next() { return {next_.data(), PaddedDim(shape_.dim_v)}; }
  const std::vector<float>& o() const { return o_; }
  const reference::Chunk& oracle() const { return oracle_; }
  const reference::Matrix& oracle_state() const { return oracle_state_; }

  // || got - want || / || want || of a [rows, cols] buffer with rows `ld` apart.
  static double Error(const float* got, int64_t ld, const reference::Matrix& want, int rows,
                      int cols) {
    double off = 0, norm = 0;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < cols; ++j) {
        const double w = want[static_cast<size_t>(i * cols + j)];
        off += (got[i * ld + j] - w) * (got[i * ld + j] - w);
        norm += w * w;
      }
    }
    return norm == 0 ? std::sqrt(off) : std::sqrt(off / norm);
  }

 private:
  static float GateOf(Regime regime, size_t i, float normal) {
    switch (regime) {
      case Regime::kSaturated:
        return -5.0f;
      case Regime::kSlow:
        return -0.01f * std::abs(normal);
      case Regime::kWipe:  // channels and tokens that forget everything
        return i % 7 == 0 ? -std::numeric_limits<float>::infinity() : -0.001f;
      case Regime::kUnbounded:
        return -std::exp(3 * normal);
      default:
        return -5.0f / (1 + std::exp(3 - normal - static_cast<float>(i % 128) / 32));
    }
  }

  void SetUpKernelSide() {
    const auto rows = [](const std::vector<float>& x, int width) {
      return Rows{reinterpret_cast<const char*>(x.data()), width * int64_t{4}, DType::kF32};
    };
    o_.assign(v_.size(), std::numeric_limits<float>::quiet_NaN());
    view_ = {};
    view_.rows = shape_.rows;
    view_.dim_k = shape_.dim_k;
    view_.dim_v = shape_.dim_v;
    view_.q = rows(q_, shape_.dim_k);
    view_.k = rows(k_, shape_.dim_k);
    view_.v = rows(v_, shape_.dim_v);
    view_.g = rows(g_, shape_.dim_k);
    view_.beta = rows(beta_, 1);
    view_.gate = {Gate::kLog, 1, 0, {1, 1}, 0, nullptr};
    view_.scale = 0.125f;
    view_.o = reinterpret_cast<char*>(o_.data());
    view_.o_stride = shape_.dim_v * int64_t{4};
    view_.o_dtype = DType::kF32;
    const ChunkDims dims = {PaddedDim(shape_.dim_k), PaddedDim(shape_.dim_v), kChunkRows};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    storage_.assign(static_cast<size_t>(FloatsOf(Which::kStagedAll, dims)), nan);
    LayOut(Which::kStagedAll, dims, storage_.data(), &buffers_);
    next_.assign(static_cast<size_t>(dims.ldk * dims.ldv), nan);
  }

  void SetUpOracle() {
    oracle_.dims = {shape_.dim_k, shape_.dim_v};
    oracle_.rows = shape_.rows;
    oracle_.scale = 0.125;
    oracle_.q.assign(q_.begin(), q_.end());
    oracle_.k.assign(k_.begin(), k_.end());
    oracle_.v.assign(v_.begin(), v_.end());
    oracle_.beta.assign(beta_.begin(), beta_.end());
    oracle_.g2.assign(g_.begin(), g_.end());
    for (double& g2 : oracle_.g2) g2 /= M_LN2;
    for (int c = 0; c < shape_.dim_k; ++c) {
      for (int j = 0; j < shape_.dim_v; ++j) {
        oracle_state_.push_back(state_[static_cast<size_t>(c * PaddedDim(shape_.dim_v) + j)]);
      }
    }
  }

  Shape shape_;
  std::vector<float> q_, k_, v_, g_, beta_, o_, state_, next_, storage_;
  HeadChunk view_;
  ChunkBuffers buffers_;
  reference::Chunk oracle_;
  reference::Matrix oracle_state_;
};

class StageTest : public testing::TestWithParam<std::tuple<kda_isa, Regime>> {
 protected:
  void SetUp() override {
    const kda_isa isa = std::get<0>(GetParam());
    if (!core::IsaAvailable(isa)) {
      GTEST_SKIP() << "this machine (or KDA_MAX_ISA) has no " << kda_isa_name(isa);
    }
  }
  const Kernels& kernels() const { return KernelsFor(std::get<0>(GetParam())); }
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
      const FloatMode mode;
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
        const FloatMode mode;
        kernels().gate_cumsum(stage.chunk(), buffers);
        (products ? kernels().intra_chunk_products : kernels().intra_chunk_elementwise)(
            stage.chunk(), buffers);
      }
      const reference::IntraChunk want = reference::ComputeIntraChunk(stage.oracle());
      std::vector<float> aqk, l;  // the triangles; the rest is not written
      for (int i = 0; i < shape.rows; ++i) {
        for (int j = 0; j < shape.rows; ++j) {
          aqk.push_back(j <= i ? 0.125f * buffers.aqk[i * kChunkRows + j] : 0);
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
        const FloatMode mode;
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
        const FloatMode mode;
        kernels().gate_cumsum(stage.chunk(), b);
        kernels().intra_chunk_products(stage.chunk(), b);
        if (fused) {
          kernels().delta_rule(stage.chunk(), b, stage.state(), Solver::kBlock);
        } else {
          kernels().solve_uw(stage.chunk(), b, Solver::kBlock);
          kernels().delta_rule_uw(stage.chunk(), b, stage.state());
        }
        kernels().output(stage.chunk(), b, stage.state());
        kernels().advance_state(b, shape.dim_k, shape.rows, stage.state(), next);
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
      const FloatMode mode;
      kernels().decode_token(stage.chunk(), 0, stage.state(), next);
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
