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

// Two heads' [64, 128] as the right side for a pair's [*, 128] lanes
// [h0 c0 | h1 c0 | h0 c1 | h1 c1].
Value PairWeights(Value a, Value b) {
  const Value zero = a.builder()->Constant(a.dtype(), 0, {kBlock, kDim});
  return Concat({Concat({Rows(a, 0, 32), zero}, 1), Concat({zero, Rows(b, 0, 32)}, 1),
                 Concat({Rows(a, 32, 32), zero}, 1), Concat({zero, Rows(b, 32, 32)}, 1)},
                0);
}

}  // namespace

void Kernel::KeepLn(int item, Value of) {
  const Halves halves = InHalves(of);
  ln_next.Set(item, halves.high);
  ln_low_next.Set(item, halves.low);
}

// v_new += T (z - v_new + Ln v_new): what the roundings of T, Ln and z to bf16 left. In two stages,
// since a product that waits for the one before it holds up all others.
std::vector<Stage> Kernel::Refine() {
  const auto weights = [](Value x) { return PairWeights(Cols(x, 0, kDim), Cols(x, kDim, kDim)); };
  const auto left_over = [this, weights](int item) {
    const Builder::Label label(b, "inter_chunk", 2 * item);
    const auto p = static_cast<size_t>(item);
    const Halves v = InHalves(v_new[p]);
    const Value high = weights(v.high), left = ln.Get(item);
    const Value known = Dot(Concat({left, ln_low.Get(item)}, 1), Concat({high, high}, 0)) +
                        Dot(left, weights(v.low));
    const Value z = Concat({rest[p].head[0], rest[p].head[1]}, 1);
    left_over_of[p] = ToBF16(z - v_new[p] + known);
    ln.SetWords(item, ln_next.Words(item));
    ln_low.SetWords(item, ln_low_next.Words(item));
  };
  const auto correct = [this, weights](int item) {
    const Builder::Label label(b, "inter_chunk", 2 * item);
    const auto p = static_cast<size_t>(item);
    v_new[p] = v_new[p] + Dot(t_done.Get(item), weights(left_over_of[p]));
    t_read[p] = true;
  };
  return {left_over, correct};
}

std::vector<Stage> Kernel::InterChunk() {
  const auto read_state = [this](int item) {
    const Builder::Label label(b, "inter_chunk", 2 * item);
    Require(ChunkOf(item) == 0 || state_done[static_cast<size_t>(item - pairs)],
            "a chunk's state is read before the chunk in front of it is done");
    const Value beta_row = BroadcastTo(Load(beta_now.Rows(item, 1)), {kDim, kDim});
    kg_columns[static_cast<size_t>(item)] = InHalves(Transpose(Load(kg.At(item))) * beta_row);
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
      rest[p].head[e] = vv.head[e] - Rows(read[p].head[e], kChunk, kChunk);
      z[e] = ToBF16(rest[p].head[e]);
    }
    v_new[p] = Dot(t_done.Get(item), PairWeights(z[0], z[1]));  // [64, 256] fp32
    t_read[p] = !problem.precise;
  };
  const auto apply = [this](int item) {
    const Builder::Label label(b, "output", 2 * item);
    const auto p = static_cast<size_t>(item);
    // With keys alike, o and S are sums of many products that all but cancel. What rounding kg to
    // bf16 adds to S is in all directions, and stays there as long as slow gates let it: kg and Aqk
    // go in as two halves, side by side. The matrix unit is 256 deep, so that the second one costs
    // a push and no pass. What rounding v_new adds is along the keys, where the next chunks correct
    // it: its second half has a pass of its own where the problem asks for it.
    const Value high = Cast(v_new[p], DType::kBF16);
    const auto weights = [](Value x) { return PairWeights(Cols(x, 0, kDim), Cols(x, kDim, kDim)); };
    const Value left = Concat({aqk.Get(item), kg_columns[p].high}, 0);
    const Value left_low = Concat({aqk_low.Get(item), kg_columns[p].low}, 0);
    update[p] =
        Dot(Concat({left, left_low}, 1), Concat({weights(high), weights(high)}, 0));  // [192, 256]
    if (problem.precise) {
      const Value low = Cast(v_new[p] - Cast(high, DType::kF32), DType::kBF16);
      update[p] = update[p] + Dot(left, weights(low));
    }
    aqk.SetWords(item, aqk_next.Words(item));
    aqk_low.SetWords(item, aqk_low_next.Words(item));
    for (int e = 0; e < 2; ++e) qk.SetWords(2 * item + e, qk_next.Words(2 * item + e));
    Store(kg.At(item), Load(kg_next.At(item)));
    Store(beta_now.Rows(item, 1), Load(beta_next.Rows(item, 1)));
    qk_read[p] = true;
  };
  if (!problem.precise) return {read_state, solve, apply};
  const std::vector<Stage> refine = Refine();
  return {read_state, solve, refine[0], refine[1], apply};
}

}  // namespace kda::tpu::mega
