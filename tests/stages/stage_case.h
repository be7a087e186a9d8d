// One chunk of one head, its oracle, and buffers full of NaN.
#ifndef KDA_TESTS_STAGES_STAGE_CASE_H_
#define KDA_TESTS_STAGES_STAGE_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/forward.h"
#include "reference/stages.h"

namespace kda::cpu {

enum class Regime { kMixed, kSaturated, kSlow, kWipe, kUnbounded };

struct Shape {
  int rows, dim_k, dim_v;
};

// The gates are the inputs (log).
class StageCase {
 public:
  // `which`: the buffers. Those of bf16 operands get inputs that are exact in bf16.
  StageCase(const Shape& shape, Regime regime, Which which = Which::kStagedAll)
      : shape_(shape), which_(which) {
    std::mt19937 random(static_cast<unsigned>(shape.rows * 1000 + shape.dim_k));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* x, int width, float mean, float spread) {
      x->resize(static_cast<size_t>(shape.rows * width));
      for (float& value : *x) value = Rounded(mean + spread * normal(random));
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
  float Rounded(float x) const {
    if (which_ == Which::kStagedAll) return x;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    bits &= 0xffff0000u;
    std::memcpy(&x, &bits, sizeof(bits));
    return x;
  }

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
    const auto halves = [](const std::vector<float>& x, int width, std::vector<uint16_t>* half) {
      for (float value : x) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        half->push_back(static_cast<uint16_t>(bits >> 16));
      }
      return Rows{reinterpret_cast<const char*>(half->data()), width * int64_t{2}, DType::kBF16};
    };
    o_.assign(v_.size(), std::numeric_limits<float>::quiet_NaN());
    view_ = {};
    view_.rows = shape_.rows;
    view_.dim_k = shape_.dim_k;
    view_.dim_v = shape_.dim_v;
    view_.q = rows(q_, shape_.dim_k);
    view_.k = rows(k_, shape_.dim_k);
    view_.v = rows(v_, shape_.dim_v);
    if (which_ != Which::kStagedAll) {
      view_.q = halves(q_, shape_.dim_k, &q_half_);
      view_.k = halves(k_, shape_.dim_k, &k_half_);
      view_.v = halves(v_, shape_.dim_v, &v_half_);
    }
    view_.g = rows(g_, shape_.dim_k);
    view_.beta = rows(beta_, 1);
    view_.gate = {Gate::kLog, 1, 0, {1, 1}, 0, nullptr};
    view_.scale = 0.125f;
    view_.o = reinterpret_cast<char*>(o_.data());
    view_.o_stride = shape_.dim_v * int64_t{4};
    view_.o_dtype = DType::kF32;
    const ChunkDims dims = {PaddedDim(shape_.dim_k), PaddedDim(shape_.dim_v), kChunkRows};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    storage_.assign(static_cast<size_t>(FloatsOf(which_, dims)), nan);
    LayOut(which_, dims, storage_.data(), &buffers_);
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
    oracle_.g.assign(g_.begin(), g_.end());
    for (int c = 0; c < shape_.dim_k; ++c) {
      for (int j = 0; j < shape_.dim_v; ++j) {
        oracle_state_.push_back(state_[static_cast<size_t>(c * PaddedDim(shape_.dim_v) + j)]);
      }
    }
  }

  Shape shape_;
  Which which_;
  std::vector<uint16_t> q_half_, k_half_, v_half_;
  std::vector<float> q_, k_, v_, g_, beta_, o_, state_, next_, storage_;
  HeadChunk view_;
  ChunkBuffers buffers_;
  reference::Chunk oracle_;
  reference::Matrix oracle_state_;
};

}  // namespace kda::cpu

#endif  // KDA_TESTS_STAGES_STAGE_CASE_H_
