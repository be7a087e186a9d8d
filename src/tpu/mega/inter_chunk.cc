// Stage inter_chunk of the mega kernel: the recurrence over chunks, S [128, 128] fp32 per head.
//
//   [q 2^G; k 2^G] S                one product per head, S rounded to bf16
//   v_new = T (v - (k 2^G) S)       both heads of a pair in one product
//   S    <- 2^G[last] S + (beta kg)^T v_new
//
// beta has been folded into L, Aqk and kg: v_new here is what the equations call v_new / beta.
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

// Two heads' [64, 128] as the right side for a pair's [*, 128] lanes [h0 c0 | h1 c0 | h0 c1 | h1 c1].
Value PairWeights(Value a, Value b) {
  const Value zero = a.builder()->Constant(a.dtype(), 0, {kBlock, kDim});
  return Concat({Concat({Rows(a, 0, 32), zero}, 1), Concat({zero, Rows(b, 0, 32)}, 1),
                 Concat({Rows(a, 32, 32), zero}, 1), Concat({zero, Rows(b, 32, 32)}, 1)},
                0);
}

}  // namespace

std::vector<Stage> Kernel::InterChunk() {
  const auto read_state = [this](int item) {
    const Builder::Label label(b, "inter_chunk", 2 * item);
    Require(ChunkOf(item) == 0 || state_done[static_cast<size_t>(item - pairs)],
            "a chunk's state is read before the chunk in front of it is done");
    const Value beta_row = BroadcastTo(Load(beta_now.Rows(item, 1)), {kDim, kDim});
    kg_columns[static_cast<size_t>(item)] = Transpose(kg.Get(item)) * Cast(beta_row, DType::kBF16);
    for (int e = 0; e < 2; ++e) {
      const Value s = Load(StateOf(item, e));
      read[static_cast<size_t>(item)].head[e] = Dot(qk.Get(2 * item + e), Cast(s, DType::kBF16));
    }
  };
  const auto solve = [this](int item) {
    const Builder::Label label(b, "inter_chunk", 2 * item);
    const auto p = static_cast<size_t>(item);
    const Pair vv = LoadPair(v_in, item);
    Value z[2];
    for (int e = 0; e < 2; ++e) {
      z[e] = Cast(vv.head[e] - Rows(read[p].head[e], kChunk, kChunk), DType::kBF16);
    }
    v_new[p] = Dot(t_done.Get(item), PairWeights(z[0], z[1]));  // [64, 256] fp32
    t_read[p] = true;
  };
  const auto apply = [this](int item) {
    const Builder::Label label(b, "output", 2 * item);
    const auto p = static_cast<size_t>(item);
    // v_new as two bf16 halves, one above the other: with keys alike, o and S are sums of many v_new that
    // all but cancel, and one rounding of each shows (identical keys: 1.4e-2, with halves 2e-3). The
    // matrix unit is 256 deep: the second half costs a push, no pass.
    const Value high = Cast(v_new[p], DType::kBF16);
    const Value low = Cast(v_new[p] - Cast(high, DType::kF32), DType::kBF16);
    const auto weights = [](Value x) { return PairWeights(Cols(x, 0, kDim), Cols(x, kDim, kDim)); };
    const Value left = Concat({aqk.Get(item), kg_columns[p]}, 0);
    update[p] =
        Dot(Concat({left, left}, 1), Concat({weights(high), weights(low)}, 0));  // [192, 256]
    aqk.SetWords(item, aqk_next.Words(item));
    for (int e = 0; e < 2; ++e) qk.SetWords(2 * item + e, qk_next.Words(2 * item + e));
    kg.SetWords(item, kg_next.Words(item));
    Store(beta_now.Rows(item, 1), Load(beta_next.Rows(item, 1)));
    qk_read[p] = true;
  };
  return {read_state, solve, apply};
}

}  // namespace kda::tpu::mega
