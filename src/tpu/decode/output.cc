// Stage output of the decode kernel.
//
//   o = kQ (Sd^T q) + kQK r        summed in fp32, rounded to bf16 once
//
// In, per head: q along the lanes of the rows [128, 128], Sd [128, 128] and r [1, 128] from
// inter_chunk, kQ and kQK [1, 128] from intra_chunk, all fp32. Out, per item: o [8, 128] bf16.
#include "tpu/decode/kernel.h"

namespace kda::tpu::decode {

void Kernel::Output(int64_t head, Value queries, Value decayed, Value r) {
  Store(o_rows.Rows(head, 1),
        RowOf(kQ, head) * ReduceSum(queries * decayed, 0) + RowOf(kQK, head) * r);
}

void Kernel::StoreOutput() {
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
