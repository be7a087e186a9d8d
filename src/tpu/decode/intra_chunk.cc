// Stage intra_chunk of the decode kernel: what an item needs of its token's vectors. A chunk of one
// row: Aqk is the one product q . k, and L is empty.
//
//   kV = beta v / |k|,   kK = beta / |k|^2,   kQ = scale / |q|,   kQK = scale (q . k) / |q|
//
// |q| and |k| are 1 unless the kernel normalises (qk_l2norm); k is not scaled itself.
//
// In, per item: q, k, v [8, 128] bf16; beta [N, H] or [H, N] bf16 or fp32, of the grid step's
// tokens; e^g [8, 128] fp32 from gate_cumsum. Out: `rows` [4, 8, 128] fp32, those four, a head each
// row, and `columns` [128, 16] of words, e^g (fp32) and k, q (two bf16), a head each column.
//
// Made while the item before is computed: beside the arithmetic on its states, in the
// same straight piece of code.
#include "tpu/activation.h"
#include "tpu/decode/kernel.h"

namespace kda::tpu::decode {

// beta of the grid step's tokens, as fp32. Lanes past the last token are never looked at.
void Kernel::PrepareBeta() {
  Value x = Cast(Load(beta), DType::kF32);
  if (DecodeBetaByToken(problem)) x = ir::Transpose(x);
  if (problem.beta_logits) x = Sigmoid(x);
  Store(betas, x);
}

namespace {

// One number per row, along its lanes.
Value Widen(Value column) { return BroadcastTo(column, {kHeads, kDim}); }
Value SumOfLanes(Value x) { return Widen(ReduceSum(x, 1)); }

}  // namespace

void Kernel::IntraChunk(Value i) {
  const Shape shape = {kHeads, kDim};
  const Value group = Load(group_of.At(Index(place)));
  const Value n = Load(sequence_of.At(Index(place)));
  const auto load = [&](const Ref& window) { return Cast(Load(window.At(Index(i))), DType::kF32); };
  const Value decay = GateCumsum(group, load(g));
  Value queries = load(q), keys = load(k);

  // beta of the item's heads, along the lanes of their rows.
  const Value near = Load(betas.Rows(Index(AssumeMultiple(group * 8.0, 8)), kHeads));
  const Shape& tokens = near.shape();
  const Value lane = BroadcastTo(n & static_cast<uint32_t>(kDim - 1), tokens);
  const Value mine = Select(b->Iota(tokens, 1) == lane, near, 0.0);
  const Value gain = SumOfLanes(mine);

  Value per_k = gain, per_k2 = gain, per_q = b->Constant(DType::kF32, problem.scale, shape);
  if (problem.qk_l2norm) {
    const Value inverse = Widen(InverseNormOfAny(&keys));
    per_k = gain * inverse;
    per_k2 = per_k * inverse;
    per_q = Widen(InverseNormOfAny(&queries)) * problem.scale;
  }
  const auto set = [&](Row row, Value value) { Store(rows.At({Index(turn), Index(row)}), value); };
  set(kV, per_k * load(v));
  set(kK, per_k2);
  set(kQ, per_q);
  set(kQK, per_q * SumOfLanes(queries * keys));
  Store(columns.At(Index(turn)),
        ir::Transpose(ir::Concat({Bits(decay, DType::kI32), PackPair(keys, queries)}, 0)));
}

void Kernel::IntraChunkOfNext() {
  const Builder::Label label(b, "vectors");
  const Value here = place, this_turn = turn;
  const Value next = item + 1.0;
  place = next & static_cast<uint32_t>(kRing - 1);
  turn = next & 1u;
  IntraChunk(Min(local + 1.0, count - 1.0));
  place = here;
  turn = this_turn;
}

}  // namespace kda::tpu::decode
