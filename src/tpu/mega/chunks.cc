// The mega kernel's chunk table, copies and states.
//
// The table is filled one chunk ahead by a walk over cu_seqlens on the scalar unit, which has nothing
// else to do. Every sequence has at least one chunk: an empty one, whose state passes through. Two dummy
// chunks before the first and after the last let the three stages run up and down: they are all zeros,
// and their state is a place of its own in the ring.
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

constexpr int64_t kDummies = 2;  // before the first chunk; every place of the ring starts as one

Value ToInt(Value condition) { return Cast(condition, DType::kI32); }

// Of what is not negative; the scalar unit has no division.
Value Quotient(Value x, int64_t power_of_two) {
  int bits = 0;
  while ((int64_t{1} << bits) < power_of_two) ++bits;
  return ir::ShiftRight(x, bits);
}

Value Multiple(Value x, int64_t power_of_two) {  // the largest one up to x
  return x & static_cast<uint32_t>(-power_of_two);
}

Index RingPlace(Value chunk) {
  return Index((chunk + static_cast<double>(kDummies)) & static_cast<uint32_t>(kRing - 1));
}

}  // namespace

Value Kernel::Entry(const Ref& field, Value chunk) const {
  return Load(field.At(RingPlace(chunk)));
}

void Kernel::StartWalk() {
  for (int64_t i = 0; i < kRing; ++i) {
    for (const Ref* field :
         {&table.token, &table.valid, &table.rows, &table.first, &table.last, &table.sequence}) {
      Store(field->At(Index(i)), 0);
    }
    Store(table.state.At(Index(i)), static_cast<double>(kStateRing));
  }
  Store(walk.At(0), 0);
  Store(walk.At(1), 0);
  Store(walk.At(2), 0);
  if (problem.checkpoint_every > 0) {
    for (int64_t i = 0; i < kRing; ++i) Store(table.checkpoint.At(Index(i)), -1.0);
    Store(walk.At(3), static_cast<double>(problem.checkpoint_every));
    Store(walk.At(4), 0);
  }
}

// A sequence is cut into chunks from its start or, with checkpoints, from each checkpoint on: they then
// are states at the end of a chunk.
Value Kernel::CountChunks() {
  const Ref count = walk.At(0);  // free until the walk starts
  const Value one = b->Constant(DType::kI32, 1);
  const auto chunks_of = [&](Value length) { return Quotient(length + 63.0, kChunk); };
  Store(count, 0);
  b->For(0, problem.sequences, [&](Value n) {
    const Value length = Load(cu_seqlens.At(Index(n + 1.0))) - Load(cu_seqlens.At(Index(n)));
    Value chunks = chunks_of(length);
    if (problem.checkpoint_every > 0) {
      const auto every = static_cast<double>(problem.checkpoint_every);
      const Value whole = length / every;
      chunks = whole * static_cast<double>(ChunksOf(problem.checkpoint_every)) +
               chunks_of(length - whole * every);
    }
    Store(count, Load(count) + Max(chunks, one));
  });
  return Load(count);
}

// walk[3]: tokens to the next checkpoint; walk[4]: its row.
void Kernel::WalkToCheckpoint(const Index& at, Value rows, Value valid, Value live, Value ends) {
  const Value every = b->Constant(DType::kI32, static_cast<double>(problem.checkpoint_every));
  const Value left = Load(walk.At(3)) - rows, row = Load(walk.At(4));
  const Value reached = live & (left == 0);
  const Value none = b->Constant(DType::kI32, -1);
  // A skipped sequence's rows are counted and left untouched.
  Store(table.checkpoint.At(at), Select(reached & (valid == rows), row, none));
  Store(walk.At(3), Select(reached | ends, every, left));
  Store(walk.At(4), row + ToInt(reached));
}

void Kernel::WalkTo(Value chunk) {
  const Value next = Load(walk.At(0)), offset = Load(walk.At(1));
  const Value live = next < problem.sequences;
  const Value n = Min(next, static_cast<double>(problem.sequences - 1));
  const Value token = Load(cu_seqlens.At(Index(n))) + offset;
  const Value left = Load(cu_seqlens.At(Index(n + 1.0))) - token;
  const Value none = b->Constant(DType::kI32, 0);
  Value most = b->Constant(DType::kI32, static_cast<double>(kChunk));
  if (problem.checkpoint_every > 0) most = Min(most, Load(walk.At(3)));
  const Value rows = Select(live, Min(left, most), none);
  Value valid = rows;
  if (problem.slots > 0) {
    const Value slot_of =
        problem.initial_state ? Load(initial_slots.At(Index(n))) : Load(final_slots.At(Index(n)));
    valid = Select(slot_of >= 0, rows, none);
  }
  const Value ends = left <= most;
  const Index at = RingPlace(chunk);
  Store(table.token.At(at), token);
  Store(table.valid.At(at), valid);
  Store(table.rows.At(at), rows);
  Store(table.first.At(at), ToInt(live & (offset == 0)));
  Store(table.last.At(at), ToInt(live & ends));
  Store(table.sequence.At(at), n);
  const Value place = Load(walk.At(2)), ended = live & ends;
  Store(table.state.At(at),
        Select(live, place, b->Constant(DType::kI32, static_cast<double>(kStateRing))));
  Store(walk.At(2), Select(ended, Select(place == kStateRing - 1, none, place + 1.0), place));
  Store(walk.At(0), next + ToInt(ended));
  Store(walk.At(1), Select(ends, none, offset + most));
  if (problem.checkpoint_every > 0) WalkToCheckpoint(at, rows, valid, live, ends);
}

// --- q, k, v, g, beta -------------------------------------------------------------------------------
//
// A chunk starts at any token. Near the end of the arrays its 64 rows are fetched from where they still
// fit, and land so much lower in the buffer: rows of other chunks below the base, the chunk's own at it.

namespace {

// Rows [first, first + n) of an array, heads of the group.
Ref Tokens(const Kernel& kernel, const Ref& array, Index first, int64_t rows) {
  return array.Slice(0, first, rows).Slice(1, Index(kernel.head0), kernel.heads);
}

}  // namespace

void Kernel::StartInputs(Value next_step, Value next_slot) {
  const auto start = [&](const Ref& array, const Ref& buffer, Value chunk, const Ref& semaphore) {
    const Value token = Entry(table.token, chunk);
    const Value first = Min(token, static_cast<double>(problem.tokens - copy_rows));
    const Value base = first - token + static_cast<double>(kBufferRows - kChunk);
    StartCopy(Tokens(*this, array, Index(first), copy_rows),
              buffer.At(Index(next_slot)).Rows(Index(base), copy_rows),
              semaphore.At(Index(next_slot)));
  };
  start(q, q_in, next_step, in_semaphore);
  start(k, k_in, next_step, in_semaphore);
  start(g, g_in, next_step, in_semaphore);
  start(v, v_in, next_step - 2.0, v_semaphore);
  const Value first = AssumeMultiple(BetaStart(next_step), 128);
  StartCopy(beta.At(Index(group)).Slice(1, Index(first), kBetaWindow), beta_in.At(Index(next_slot)),
            in_semaphore.At(Index(next_slot)));
}

void Kernel::WaitInputs(Value now) {
  const auto wait = [&](const Ref& array, const Ref& buffer, const Ref& semaphore) {
    WaitCopy(Tokens(*this, array, 0, copy_rows),
             buffer.At(Index(now)).Rows(kBufferRows - kChunk, copy_rows), semaphore.At(Index(now)));
  };
  wait(q, q_in, in_semaphore);
  wait(k, k_in, in_semaphore);
  wait(g, g_in, in_semaphore);
  wait(v, v_in, v_semaphore);
  WaitCopy(beta.At(Index(group)).Slice(1, 0, kBetaWindow), beta_in.At(Index(now)),
           in_semaphore.At(Index(now)));
}

// What a chunk seldom needs, behind one branch: rows beyond the sequence become zeros, since whatever lies
// there, even a NaN, must not matter; and so does a state that starts from nothing.
void Kernel::MakeZeros(Value now) {
  const Builder::Label label(b, "zeros");
  const Value next = now - 1.0;
  Value fresh = Entry(table.first, next) == 1;
  if (problem.initial_state) {
    fresh = fresh & (SlotOf(initial_slots, Entry(table.sequence, next)) < 0);
  }
  const auto clear = [&](const std::vector<const Ref*>& buffers, Value valid) {
    b->For(Index(valid), kChunk, [&](Value token) {
      for (const Ref* buffer : buffers) {
        const Value row = token + static_cast<double>(kBufferRows - kChunk);
        Store(buffer->At(Index(slot)).Words().At(Index(row)), 0.0);
      }
    });
  };
  const bool may_be_fresh = !problem.initial_state || problem.slots > 0;
  const Value short_chunk = Min(valid_a, valid_c) < kChunk;
  b->If(may_be_fresh ? short_chunk | fresh : short_chunk, [&] {
    const Builder::Label tails(b, "zero_tails");
    b->If(valid_a < kChunk, [&] { clear({&q_in, &k_in, &g_in}, valid_a); });
    b->If(valid_c < kChunk, [&] { clear({&v_in}, valid_c); });
    if (!may_be_fresh) return;
    const Builder::Label state_label(b, "zero_state");
    b->If(fresh, [&] {
      const Value place = Entry(table.state, next);
      b->For(0, heads, [&](Value h) { Store(state.At({Index(place), Index(h)}), 0.0); });
    });
  });
}

// --- States -----------------------------------------------------------------------------------------

namespace {

Ref StateOf(const Kernel& kernel, const Ref& array, Value row) {
  return array.At(Index(row)).Slice(0, Index(kernel.head0), kernel.heads);
}

}  // namespace

Value Kernel::SlotOf(const Ref& slots, Value n) const {
  return problem.slots > 0 ? Load(slots.At(Index(n))) : n;
}

// The state of the chunk that stage C now takes must be there, and that of the sequence whose place the
// next chunk's takes (three before) must have left.
void Kernel::WaitStates(Value now) {
  const Ref none = state.At(0);
  if (problem.checkpoint_every > 0) {
    const Builder::Label label(b, "checkpoint_wait");
    b->If(Entry(table.checkpoint, now - 3.0) >= 0, [&] {
      WaitCopy(none, StateOf(*this, checkpoints, b->Constant(DType::kI32, 0)),
               checkpoint_semaphore.At(0));
    });
  }
  if (problem.initial_state) {
    const Builder::Label label(b, "state_wait");
    const Value chunk = now - 2.0;
    const Value place = Entry(table.state, chunk), n = Entry(table.sequence, chunk);
    b->If((Entry(table.first, chunk) == 1) & (SlotOf(initial_slots, n) >= 0), [&] {
      WaitCopy(StateOf(*this, initial_state, b->Constant(DType::kI32, 0)), none,
               state_in_semaphore.At(Index(place)));
    });
  }
  if (problem.final_state) {
    const Builder::Label label(b, "state_out_wait");
    const Value chunk = now - 1.0;
    const Value place = Entry(table.state, chunk), n = Entry(table.sequence, chunk);
    const Value before = Max(n - static_cast<double>(kStateRing), 0.0);
    b->If((Entry(table.first, chunk) == 1) & (n >= kStateRing) & (SlotOf(final_slots, before) >= 0),
          [&] {
            WaitCopy(none, StateOf(*this, final_state, b->Constant(DType::kI32, 0)),
                     state_out_semaphore.At(Index(place)));
          });
  }
}

// The state of the chunk that stage C takes next.
void Kernel::MoveStateIn(Value now) {
  if (!problem.initial_state) return;
  const Builder::Label label(b, "state_in");
  const Value next = now - 1.0;
  const Value place = Entry(table.state, next), n = Entry(table.sequence, next);
  const Value from = SlotOf(initial_slots, n);
  b->If((Entry(table.first, next) == 1) & (from >= 0), [&] {
    StartCopy(StateOf(*this, initial_state, from), state.At(Index(place)),
              state_in_semaphore.At(Index(place)));
  });
}

void Kernel::StoreCheckpoint(Value now) {
  if (problem.checkpoint_every == 0) return;
  const Builder::Label label(b, "checkpoint");
  const Value row = Entry(table.checkpoint, now - 2.0);
  b->If(row >= 0, [&] {
    StartCopy(state.At(Index(Entry(table.state, now - 2.0))), StateOf(*this, checkpoints, row),
              checkpoint_semaphore.At(0));
  });
}

void Kernel::MoveStateOut(Value now) {
  if (!problem.final_state) return;
  const Builder::Label label(b, "state_out");
  const Value chunk = now - 2.0;
  const Value place = Entry(table.state, chunk);
  const Value to = SlotOf(final_slots, Entry(table.sequence, chunk));
  b->If((Entry(table.last, chunk) == 1) & (to >= 0), [&] {
    StartCopy(state.At(Index(place)), StateOf(*this, final_state, to),
              state_out_semaphore.At(Index(place)));
  });
}

// --- o ----------------------------------------------------------------------------------------------
//
// A chunk writes 64 rows where they fit; those beyond its sequence are zeros and belong to chunks that
// write them later: each copy starts when the one before has arrived. At the end of the array it writes
// its own rows only, in pieces of powers of two.

namespace {

// The chunk's 64 rows lie within the array.
Value FitsWhole(const Kernel& k, Value chunk) {
  return (k.Entry(k.table.rows, chunk) > 0) &
         (k.Entry(k.table.token, chunk) <= k.problem.tokens - kChunk);
}

}  // namespace

void Kernel::StartOutput(Value now) {
  const Value chunk = now - 2.0;
  const Value token = Entry(table.token, chunk), rows = Entry(table.rows, chunk);
  const Ref semaphore = o_semaphore.At(0);
  Value overruns = rows > 0;
  if (problem.tokens >= kChunk) {
    const Builder::Label label(b, "output_copy");
    b->If(FitsWhole(*this, chunk), [&] {
      StartCopy(o_out.At(Index(slot)), Tokens(*this, o, Index(token), kChunk), semaphore);
    });
    overruns = overruns & (token > problem.tokens - kChunk);
  }
  const Builder::Label label(b, "output_pieces");
  b->If(overruns, [&] {
    for (int64_t n = kChunk; n >= 1; n /= 2) {
      if (n > problem.tokens) continue;
      b->If((rows & static_cast<uint32_t>(n)) != 0, [&] {
        const Value from = Multiple(rows, 2 * n);
        const Ref source = o_out.At(Index(slot)).Rows(Index(from), n);
        const Ref target = Tokens(*this, o, Index(token + from), n);
        StartCopy(source, target, semaphore);
        WaitCopy(source, target, semaphore);
      });
    }
  });
}

void Kernel::WaitOutput(Value now) {
  if (problem.tokens < kChunk) return;
  const Builder::Label label(b, "output_wait");
  b->If(FitsWhole(*this, now - 2.0),
        [&] { WaitCopy(o_out.At(0), Tokens(*this, o, 0, kChunk), o_semaphore.At(0)); });
}

// Rows of o from `from` on belong to no sequence and become zeros.
void Kernel::ZeroUnowned(Value from) {
  const Builder::Label label(b, "zero_unowned");
  const Value count = static_cast<double>(problem.tokens) - from;
  b->If(count > 0, [&] {
    b->For(0, kChunk, [&](Value i) { Store(o_out.At({Index(0), Index(i)}), 0.0); });
    const auto write = [&](Value first, int64_t n) {
      const Ref source = o_out.At(0).Rows(0, n);
      const Ref target = o.Slice(0, Index(first), n).Slice(1, Index(head0), heads);
      StartCopy(source, target, o_semaphore.At(0));
      WaitCopy(source, target, o_semaphore.At(0));
    };
    const Value whole = Quotient(count, kChunk);
    if (problem.tokens >= kChunk) {
      b->For(0, Index(whole),
             [&](Value i) { write(from + i * static_cast<double>(kChunk), kChunk); });
    }
    for (int64_t n = kChunk / 2; n >= 1; n /= 2) {
      if (n > problem.tokens) continue;
      b->If((count & static_cast<uint32_t>(n)) != 0,
            [&] { write(from + Multiple(count, 2 * n), n); });
    }
  });
}

void Kernel::Finish(Value steps) {
  WaitInputs(steps & 1u);
  WaitOutput(steps - 1.0);
  if (problem.checkpoint_every > 0) {
    const Builder::Label label(b, "checkpoint_wait");
    b->If(Entry(table.checkpoint, steps - 3.0) >= 0, [&] {
      WaitCopy(state.At(0), StateOf(*this, checkpoints, b->Constant(DType::kI32, 0)),
               checkpoint_semaphore.At(0));
    });
  }
  if (problem.final_state) {
    const Builder::Label label(b, "state_out_wait");
    const int64_t last = std::min(kStateRing, problem.sequences);
    for (int64_t i = 0; i < last; ++i) {
      const int64_t n = problem.sequences - last + i, place = n % kStateRing;
      const auto wait = [&] {
        WaitCopy(state.At(Index(place)), StateOf(*this, final_state, b->Constant(DType::kI32, 0)),
                 state_out_semaphore.At(Index(place)));
      };
      if (problem.slots == 0) {
        wait();
      } else {
        b->If(Load(final_slots.At(Index(n))) >= 0, wait);
      }
    }
  }
  ZeroUnowned(Load(cu_seqlens.At(Index(problem.sequences))));
}

}  // namespace kda::tpu::mega
