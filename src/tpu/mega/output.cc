// Stage output of the mega kernel, and the state's update, which comes out of the same product.
//
//   o = scale (q 2^G) S + Aqk v_new        fp32 sums, rounded to bf16 once
//   S = 2^G[last] S + kg^T v_new           fp32
//
// In, per pair of heads: [scale (q 2^G) S; ..] [128, 128] fp32 of each head (`read`) and the
// product [Aqk; kg^T] v_new [192, 256] fp32, both heads side by side (`update`), from
// inter_chunk; 2^G[last] [heads, 128] fp32; S [128, 128] fp32 of each head. Out: o
// [64, heads, 128] bf16, S in place.
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

// 2^G[last] along every row of the states: each 8 rows of a head are a lane broadcast, a slow
// operation of a unit that has little to do early in a step and much at its end.
void Kernel::WidenDecay(int head) {
  if (decay_widened[static_cast<size_t>(head)]) return;
  decay_widened[static_cast<size_t>(head)] = true;
  const Builder::Label label(b, "output", head);
  Store(decay_wide.At(head), BroadcastTo(Cols(decay_columns, head, 1), {kDim, kDim}));
}

std::vector<Stage> Kernel::Output() {
  return {[this](int item) {
    const auto p = static_cast<size_t>(item);
    const Builder::Label label(b, "output", 2 * item);
    const Value r = update[p];
    const auto part = [&](int64_t row, int64_t rows, int e) {
      return Cols(Rows(r, row, rows), e * kDim, kDim);
    };
    StorePair(item, Rows(read[p].head[0], 0, kChunk) + part(0, kChunk, 0),
              Rows(read[p].head[1], 0, kChunk) + part(0, kChunk, 1));
    for (int e = 0; e < 2; ++e) {
      WidenDecay(2 * item + e);  // where its track has not come to it yet
      const Ref s = StateOf(item, e);
      Store(s, Load(s) * Load(decay_wide.At(2 * item + e)) + part(kChunk, kDim, e));
    }
    state_done[p] = true;
  }};
}

}  // namespace kda::tpu::mega
