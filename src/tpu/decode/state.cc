// The decode kernel's work on the states of one item: read and decayed in a first pass, updated in a
// second, some heads later, when what the sums of the first say is known.
#include "tpu/decode/kernel.h"

namespace kda::tpu::decode {

namespace {

constexpr int kLag = 1;  // heads between the two passes

Value LowHalf(Value words) { return Bits(words << 16, DType::kF32); }
Value HighHalf(Value words) { return Bits(words & 0xffff0000u, DType::kF32); }

}  // namespace

void Kernel::UpdateStates() {
  const Shape square = {kDim, kDim};
  const Value column = Load(columns.At(Index(turn)));
  const auto row = [&](Row r, int64_t h) {
    return Load(rows.At({Index(turn), Index(r)}).Rows(h, 1));
  };
  Value delta[kHeads];
  const auto read = [&](int64_t h) {
    const Ref state = states.At({Index(place), Index(h)});
    const Value decay = Bits(BroadcastTo(Cols(column, h, 1), square), DType::kF32);
    const Value kq = BroadcastTo(Cols(column, kHeads + h, 1), square);
    const Value s =
        problem.initial_state ? Load(state) * decay : b->Constant(DType::kF32, 0, square);
    Store(state, s);
    Store(keys.At(Index(h)), kq);
    const Value k_sum = ReduceSum(LowHalf(kq) * s, 0), q_sum = ReduceSum(HighHalf(kq) * s, 0);
    delta[h] = row(kV, h) - row(kK, h) * k_sum;
    Store(o_rows.Rows(h, 1), row(kQ, h) * q_sum + row(kQK, h) * delta[h]);
  };
  const auto update = [&](int64_t h) {
    const Ref state = states.At({Index(place), Index(h)});
    Store(state, Load(state) + LowHalf(Load(keys.At(Index(h)))) * delta[h]);
  };
  const Value here = place, this_turn = turn;
  for (int64_t h = 0; h < kHeads + kLag; ++h) {
    const Builder::Label label(b, "state", static_cast<int>(h < kHeads ? h : kHeads - 1));
    if (h < kHeads) read(h);
    if (h >= kLag) update(h - kLag);
    if (h == 6) {
      const Builder::Label vectors(b, "vectors");
      const Value next = item + 1.0;
      place = next & static_cast<uint32_t>(kRing - 1);
      turn = next & 1u;
      PrepareVectors(Min(local + 1.0, count - 1.0));
      place = here;
      turn = this_turn;
    }
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
