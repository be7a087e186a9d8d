// The stages inter_chunk and output of the decode kernel: the states of one item, in place.
//
//   Sd = e^g S,   r = kV - kK (Sd^T k),   o = kQ (Sd^T q) + kQK r,   S = Sd + k r^T
//
// The compiler mixes the heads' code by itself. What bounds it is the broadcasts along the lanes, 32 a
// head at 4 cycles on either of two units. (v6e: 107 cycles a head, 64 of them those.)
#include "tpu/decode/kernel.h"

namespace kda::tpu::decode {

namespace {

Value LowHalf(Value words) { return Bits(words << 16, DType::kF32); }
Value HighHalf(Value words) { return Bits(words & 0xffff0000u, DType::kF32); }

}  // namespace

void Kernel::UpdateStates() {
  const Shape square = {kDim, kDim};
  const Value column = Load(columns.At(Index(turn)));
  const auto row = [&](Row r, int64_t h) {
    return Load(rows.At({Index(turn), Index(r)}).Rows(h, 1));
  };
  for (int64_t h = 0; h < kHeads; ++h) {
    const Builder::Label label(b, "state", static_cast<int>(h));
    const Ref state = states.At({Index(place), Index(h)});
    const Value decay = Bits(BroadcastTo(Cols(column, h, 1), square), DType::kF32);
    const Value kq = BroadcastTo(Cols(column, kHeads + h, 1), square);
    const Value k_rows = LowHalf(kq), q_rows = HighHalf(kq);
    const Value decayed =
        problem.initial_state ? Load(state) * decay : b->Constant(DType::kF32, 0, square);
    const Value r = row(kV, h) - row(kK, h) * ReduceSum(k_rows * decayed, 0);
    Store(o_rows.Rows(h, 1), row(kQ, h) * ReduceSum(q_rows * decayed, 0) + row(kQK, h) * r);
    Store(state, decayed + k_rows * r);
  }
  const Builder::Label label(b, "output");
  Value out = Load(o_rows);
  if (problem.slots > 0) {
    const Ref& slots = problem.initial_state ? initial_slots : final_slots;
    const Value slot = SlotOf(slots, Load(sequence_of.At(Index(place))));
    out = Select(BroadcastTo(slot, {kHeads, kDim}) >= 0, out, 0.0);
  }
  Store(o.At(Index(local)), Cast(out, DType::kBF16));
}

}  // namespace kda::tpu::decode
