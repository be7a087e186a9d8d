// Stage inter_chunk of the decode kernel: the states of one item, in place.
//
//   Sd = e^g S,   r = kV - kK (Sd^T k),   S = Sd + k r^T
//
// In, per item: `columns` [128, 16] and `rows` [4, 8, 128] from intra_chunk; S [8, 128, 128] fp32.
// Out: S in place, and for output of each head Sd [128, 128] and r [1, 128], fp32.
//
// The compiler mixes the heads' code by itself. What bounds it is the broadcasts along
// the lanes, 32 a head at 4 cycles on either of two units. (v6e, predicted: 107 cycles
// a head, 64 of them those.)
#include "tpu/decode/kernel.h"

namespace kda::tpu::decode {

namespace {

Value LowHalf(Value words) { return Bits(words << 16, DType::kF32); }
Value HighHalf(Value words) { return Bits(words & 0xffff0000u, DType::kF32); }

}  // namespace

Value Kernel::RowOf(Row row, int64_t head) const {
  return Load(rows.At({Index(turn), Index(row)}).Rows(head, 1));
}

void Kernel::InterChunk() {
  const Shape square = {kDim, kDim};
  const Value column = Load(columns.At(Index(turn)));
  for (int64_t h = 0; h < kHeads; ++h) {
    const Builder::Label label(b, "state", static_cast<int>(h));
    const Ref state = states.At({Index(place), Index(h)});
    const Value decay = Bits(BroadcastTo(Cols(column, h, 1), square), DType::kF32);
    const Value kq = BroadcastTo(Cols(column, kHeads + h, 1), square);
    const Value k_rows = LowHalf(kq), q_rows = HighHalf(kq);
    const Value decayed =
        problem.initial_state ? Load(state) * decay : b->Constant(DType::kF32, 0, square);
    const Value r = RowOf(kV, h) - RowOf(kK, h) * ReduceSum(k_rows * decayed, 0);
    Output(h, q_rows, decayed, r);
    Store(state, decayed + k_rows * r);
  }
}

}  // namespace kda::tpu::decode
