// The decode kernel's items and the copies of their states.
//
// Reads run kAhead items in front of the arithmetic, writes are given kRing - kAhead items to
// arrive before their place is read into again: both go on all the time. The walk over the items is
// on the scalar unit, which has no division; what it finds is kept per place in the ring.
#include "tpu/decode/kernel.h"

namespace kda::tpu::decode {

Ref Kernel::StateOf(const Ref& array, Value slot, Value group) const {
  const Value head = group * static_cast<double>(kHeads);
  return array.At(Index(slot)).Slice(0, Index(head), kHeads);
}

Value Kernel::SlotOf(const Ref& slots, Value n) const {
  return problem.slots > 0 ? Load(slots.At(Index(n))) : n;
}

void Kernel::StartWalk() {
  Store(walk.At(kNextSequence), 0);
  Store(walk.At(kNextGroup), 0);
  for (int64_t i = 0; i < kRing; ++i) Store(writing.At(Index(i)), 0);
  for (int64_t i = 0; i < kAhead; ++i) {
    ReadAhead(b->Constant(DType::kI32, static_cast<double>(i)));
  }
}

void Kernel::ReadAhead(Value next) {
  const Value n = Load(walk.At(kNextSequence)), group = Load(walk.At(kNextGroup));
  const Value at = next & static_cast<uint32_t>(kRing - 1);
  WaitWrite(at);
  const Value none = b->Constant(DType::kI32, 0), last = b->Constant(DType::kI32, groups - 1.0);
  Store(sequence_of.At(Index(at)), Min(n, static_cast<double>(problem.sequences - 1)));
  Store(group_of.At(Index(at)), group);
  Store(walk.At(kNextSequence), n + Select(group == last, none + 1.0, none));
  Store(walk.At(kNextGroup), Select(group == last, none, group + 1.0));
  if (!problem.initial_state) return;
  const Value there = n < problem.sequences;
  const Value slot = SlotOf(initial_slots, Load(sequence_of.At(Index(at))));
  const Ref target = states.At(Index(at));
  const Builder::Label label(b, "state_in");
  b->If(there & (slot >= 0), [&] {
    StartCopy(StateOf(initial_state, slot, group), target, in_semaphore.At(Index(at)));
  });
  if (problem.slots == 0) return;
  const Builder::Label zero_label(b, "state_zero");
  b->If(there & (slot < 0),
        [&] { b->For(0, kHeads, [&](Value h) { Store(target.At(Index(h)), 0.0); }); });
}

void Kernel::WaitState() {
  if (!problem.initial_state) return;
  const Value none = b->Constant(DType::kI32, 0);
  const auto wait = [&] {
    WaitCopy(StateOf(initial_state, none, none), states.At(Index(place)),
             in_semaphore.At(Index(place)));
  };
  if (problem.slots == 0) return wait();
  const Builder::Label label(b, "state_wait");
  b->If(SlotOf(initial_slots, Load(sequence_of.At(Index(place)))) >= 0, wait);
}

void Kernel::StartWrite() {
  if (!problem.final_state) return;
  const Value n = Load(sequence_of.At(Index(place)));
  const Value slot = SlotOf(final_slots, n);
  const auto start = [&] {
    StartCopy(states.At(Index(place)), StateOf(final_state, slot, Load(group_of.At(Index(place)))),
              out_semaphore.At(Index(place)));
    Store(writing.At(Index(place)), 1);
  };
  if (problem.slots == 0) return start();
  Value kept = slot >= 0;
  if (problem.initial_state) kept = kept & (SlotOf(initial_slots, n) >= 0);
  const Builder::Label label(b, "state_out");
  b->If(kept, start);
}

void Kernel::WaitWrite(Value at) {
  if (!problem.final_state) return;
  const Builder::Label label(b, "state_out_wait");
  b->If(Load(writing.At(Index(at))) != 0, [&] {
    const Value none = b->Constant(DType::kI32, 0);
    WaitCopy(states.At(Index(at)), StateOf(final_state, none, none), out_semaphore.At(Index(at)));
    Store(writing.At(Index(at)), 0);
  });
}

}  // namespace kda::tpu::decode
