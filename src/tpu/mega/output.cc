// Stage output of the mega kernel, and the state's update, which comes out of the same product.
//
//   o = scale (q 2^G) S + Aqk v_new        fp32 sums, rounded to bf16 once
//   S = 2^G[last] S + kg^T v_new           fp32
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

std::vector<Stage> Kernel::Output() {
  return {[this](int pair) {
    const Builder::Label label(b, "output", 2 * pair);
    const auto p = static_cast<size_t>(pair);
    const Value r = update[p];
    const auto part = [&](int64_t row, int64_t rows, int e) {
      return Cols(Rows(r, row, rows), e * kDim, kDim);
    };
    StorePair(pair, Rows(read[p].head[0], 0, kChunk) + part(0, kChunk, 0),
              Rows(read[p].head[1], 0, kChunk) + part(0, kChunk, 1));
    for (int e = 0; e < 2; ++e) {
      const Ref s = state.At({Index(state_c), Index(2 * pair + e)});
      const Value column = Cols(decay_columns, 2 * pair + e, 1);
      Store(s, Load(s) * BroadcastTo(column, {kDim, kDim}) + part(kChunk, kDim, e));
    }
  }};
}

}  // namespace kda::tpu::mega
