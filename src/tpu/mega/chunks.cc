// The mega kernel's chunk table, copies and states.
//
// The table is filled one chunk ahead by a walk over cu_seqlens on the scalar unit, which has
// nothing else to do. Every sequence has at least one chunk: an empty one, whose state passes
// through. Two dummy chunks before the first and after the last let the three stages run up and
// down: they are all zeros, and their state is a place of its own in the ring.
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

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

// Two steps of dummies come before the first chunk; every place of the ring starts as one.
Index RingPlace(const Kernel& k, Value chunk) {
  return Index((chunk + 2.0 * k.unroll) & static_cast<uint32_t>(k.ring - 1));
}

}  // namespace

Value Kernel::Entry(const Ref& field, Value chunk) const {
  return Load(field.At(RingPlace(*this, chunk)));
}

void Kernel::StartWalk() {
  for (int64_t i = 0; i < ring; ++i) {
    for (const Ref* field :
         {&table.token, &table.valid, &table.rows, &table.first, &table.last, &table.sequence}) {
      Store(field->At(Index(i)), 0);
    }
    Store(table.state.At(Index(i)), static_cast<double>(state_ring));
  }
  Store(walk.At(kNextSequence), 0);
  Store(walk.At(kOffset), 0);
  Store(walk.At(kStatePlace), 0);
  if (problem.checkpoint_every > 0) {
    for (int64_t i = 0; i < ring; ++i) Store(table.checkpoint.At(Index(i)), -1.0);
    Store(walk.At(kToCheckpoint), static_cast<double>(problem.checkpoint_every));
    Store(walk.At(kCheckpointRow), 0);
  }
}

// A sequence is cut into chunks from its start or, with checkpoints, from each checkpoint on: they
// then are states at the end of a chunk.
Value Kernel::CountChunks() {
  const Ref count = walk.At(kNextSequence);  // free until the walk starts
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

void Kernel::WalkToCheckpoint(const Index& at, Value rows, Value valid, Value live, Value ends) {
  const Value every = b->Constant(DType::kI32, static_cast<double>(problem.checkpoint_every));
  const Value left = Load(walk.At(kToCheckpoint)) - rows, row = Load(walk.At(kCheckpointRow));
  const Value reached = live & (left == 0);
  const Value none = b->Constant(DType::kI32, -1);
  // A skipped sequence's rows are counted and left untouched.
  Store(table.checkpoint.At(at), Select(reached & (valid == rows), row, none));
  Store(walk.At(kToCheckpoint), Select(reached | ends, every, left));
  Store(walk.At(kCheckpointRow), row + ToInt(reached));
}

void Kernel::WalkTo(Value chunk) {
  const Value next = Load(walk.At(kNextSequence)), offset = Load(walk.At(kOffset));
  const Value live = next < problem.sequences;
  const Value n = Min(next, static_cast<double>(problem.sequences - 1));
  const Value token = Load(cu_seqlens.At(Index(n))) + offset;
  const Value left = Load(cu_seqlens.At(Index(n + 1.0))) - token;
  const Value none = b->Constant(DType::kI32, 0);
  Value most = b->Constant(DType::kI32, static_cast<double>(kChunk));
  if (problem.checkpoint_every > 0) most = Min(most, Load(walk.At(kToCheckpoint)));
  const Value rows = Select(live, Min(left, most), none);
  Value valid = rows;
  if (problem.slots > 0) {
    const Value slot_of =
        problem.initial_state ? Load(initial_slots.At(Index(n))) : Load(final_slots.At(Index(n)));
    valid = Select(slot_of >= 0, rows, none);
  }
  const Value ends = left <= most;
  const Index at = RingPlace(*this, chunk);
  Store(table.token.At(at), token);
  Store(table.valid.At(at), valid);
  Store(table.rows.At(at), rows);
  Store(table.first.At(at), ToInt(live & (offset == 0)));
  Store(table.last.At(at), ToInt(live & ends));
  Store(table.sequence.At(at), n);
  const Value place = Load(walk.At(kStatePlace)), ended = live & ends;
  Store(table.state.At(at),
        Select(live, place, b->Constant(DType::kI32, static_cast<double>(state_ring))));
  Store(walk.At(kStatePlace),
        Select(ended, Select(place == state_ring - 1, none, place + 1.0), place));
  Store(walk.At(kNextSequence), next + ToInt(ended));
  Store(walk.At(kOffset), Select(ends, none, offset + most));
  if (problem.checkpoint_every > 0) WalkToCheckpoint(at, rows, valid, live, ends);
}

// --- q, k, v, g, beta ----------------------------------------------------------------------------
//
// A chunk starts at any token. Near the end of the arrays its 64 rows are fetched from
// where they still fit, and land so much lower in the buffer: rows of other chunks below
// the base, the chunk's own at it.

namespace {

// Rows [first, first + n) of an array, heads of the group.
Ref Tokens(const Kernel& kernel, const Ref& array, Index first, int64_t rows) {
  return array.Slice(0, first, rows).Slice(1, Index(kernel.head0), kernel.heads);
}

}  // namespace

void Kernel::StartInputs(Value next_step, Value next_slot) {
  const Index slot_at(next_slot);
  for (int u = 0; u < unroll; ++u) {
    const auto start = [&](const Ref& array, const Ref& buffer, Value chunk, const Ref& semaphore) {
      const Value token = Entry(table.token, chunk);
      const Value first = Min(token, static_cast<double>(problem.tokens - copy_rows));
      const Value base = first - token + static_cast<double>(kBufferRows - kChunk);
      StartCopy(Tokens(*this, array, Index(first), copy_rows),
                buffer.At({slot_at, Index(u)}).Rows(Index(base), copy_rows), semaphore.At(slot_at));
    };
    const Value a = ChunkA(next_step, u);
    start(q, q_in, a, in_semaphore);
    start(k, k_in, a, in_semaphore);
    start(g, g_in, a, in_semaphore);
    start(v, v_in, ChunkC(next_step, u), v_semaphore);
    const Value first = AssumeMultiple(BetaStart(a), 128);
    StartCopy(beta.At(Index(group)).Slice(1, Index(first), kBetaWindow),
              beta_in.At({slot_at, Index(u)}), in_semaphore.At(slot_at));
  }
}

void Kernel::WaitInputs(Value now) {
  const Index slot_at(now);
  for (int u = 0; u < unroll; ++u) {
    const auto wait = [&](const Ref& array, const Ref& buffer, const Ref& semaphore) {
      WaitCopy(Tokens(*this, array, 0, copy_rows),
               buffer.At({slot_at, Index(u)}).Rows(kBufferRows - kChunk, copy_rows),
               semaphore.At(slot_at));
    };
    wait(q, q_in, in_semaphore);
    wait(k, k_in, in_semaphore);
    wait(g, g_in, in_semaphore);
    wait(v, v_in, v_semaphore);
    WaitCopy(beta.At(Index(group)).Slice(1, 0, kBetaWindow), beta_in.At({slot_at, Index(u)}),
             in_semaphore.At(slot_at));
  }
}

// What a chunk seldom needs, behind one branch: rows beyond the sequence become zeros, since
// whatever lies there, even a NaN, must not matter; and so does a state that starts from nothing.
void Kernel::MakeZeros(Value now) {
  const Builder::Label label(b, "zeros");
  const auto clear = [&](const std::vector<const Ref*>& buffers, int u, Value valid) {
    b->For(Index(valid), kChunk, [&](Value token) {
      for (const Ref* buffer : buffers) {
        const Value row = token + static_cast<double>(kBufferRows - kChunk);
        Store(buffer->At({Index(slot), Index(u)}).Words().At(Index(row)), 0.0);
      }
    });
  };
  const bool may_be_fresh = !problem.initial_state || problem.slots > 0;
  std::vector<Value> fresh;
  Value any = b->Constant(DType::kI32, 1) == 0;
  for (size_t u = 0; u < static_cast<size_t>(unroll); ++u) {
    any = any | (Min(valid_a[u], valid_c[u]) < kChunk);
    if (!may_be_fresh) continue;
    const Value next = ChunkC(now + 1.0, static_cast<int>(u));
    Value starts = Entry(table.first, next) == 1;
    if (problem.initial_state) {
      starts = starts & (SlotOf(initial_slots, Entry(table.sequence, next)) < 0);
    }
    fresh.push_back(starts);
    any = any | starts;
  }
  b->If(any, [&] {
    for (int u = 0; u < unroll; ++u) {
      const Builder::Label tails(b, "zero_tails");
      const Value a = valid_a[static_cast<size_t>(u)], c = valid_c[static_cast<size_t>(u)];
      b->If(a < kChunk, [&] { clear({&q_in, &k_in, &g_in}, u, a); });
      b->If(c < kChunk, [&] { clear({&v_in}, u, c); });
      if (!may_be_fresh) continue;
      const Builder::Label state_label(b, "zero_state");
      b->If(fresh[static_cast<size_t>(u)], [&] {
        const Value place = Entry(table.state, ChunkC(now + 1.0, u));
        b->For(0, heads, [&](Value h) { Store(state.At({Index(place), Index(h)}), 0.0); });
      });
    }
  });
}

// --- States --------------------------------------------------------------------------------------

namespace {

Ref StatesAt(const Kernel& kernel, const Ref& array, Value row) {
  return array.At(Index(row)).Slice(0, Index(kernel.head0), kernel.heads);
}

}  // namespace

Value Kernel::SlotOf(const Ref& slots, Value n) const {
  return problem.slots > 0 ? Load(slots.At(Index(n))) : n;
}

// Whether a sequence's state is written: it has a slot to go to, and the sequence is not skipped.
Value Kernel::Kept(Value n) const {
  const Value kept = SlotOf(final_slots, n) >= 0;
  if (problem.slots == 0 || !problem.initial_state) return kept;
  return kept & (SlotOf(initial_slots, n) >= 0);
}

// The states of the chunks that stage C now takes must be there, and those of the sequences whose
// places the next step's take must have left.
void Kernel::WaitStates(Value now) {
  const Ref any_state = state.At(0);
  const Value row = b->Constant(DType::kI32, 0);
  if (problem.checkpoint_every > 0) {
    const Builder::Label label(b, "checkpoint_wait");
    b->If(Entry(table.checkpoint, ChunkC(now - 1.0, 0)) >= 0, [&] {
      WaitCopy(any_state, StatesAt(*this, checkpoints, row), checkpoint_semaphore.At(0));
    });
  }
  for (int u = 0; u < unroll; ++u) {
    if (problem.initial_state) {
      const Builder::Label label(b, "state_wait");
      const Value chunk = ChunkC(now, u);
      const Value place = Entry(table.state, chunk), n = Entry(table.sequence, chunk);
      b->If((Entry(table.first, chunk) == 1) & (SlotOf(initial_slots, n) >= 0), [&] {
        WaitCopy(StatesAt(*this, initial_state, row), any_state,
                 state_in_semaphore.At(Index(place)));
      });
    }
    if (problem.final_state) {
      const Builder::Label label(b, "state_out_wait");
      const Value chunk = ChunkC(now + 1.0, u);
      const Value place = Entry(table.state, chunk), n = Entry(table.sequence, chunk);
      const Value before = Max(n - static_cast<double>(state_ring), 0.0);
      b->If((Entry(table.first, chunk) == 1) & (n >= state_ring) & Kept(before), [&] {
        WaitCopy(any_state, StatesAt(*this, final_state, row),
                 state_out_semaphore.At(Index(place)));
      });
    }
  }
}

// The states that stage C takes in the next step.
void Kernel::MoveStateIn(Value now) {
  if (!problem.initial_state) return;
  const Builder::Label label(b, "state_in");
  for (int u = 0; u < unroll; ++u) {
    const Value next = ChunkC(now + 1.0, u);
    const Value place = Entry(table.state, next), n = Entry(table.sequence, next);
    const Value from = SlotOf(initial_slots, n);
    b->If((Entry(table.first, next) == 1) & (from >= 0), [&] {
      StartCopy(StatesAt(*this, initial_state, from), state.At(Index(place)),
                state_in_semaphore.At(Index(place)));
    });
  }
}

void Kernel::StoreCheckpoint(Value now) {
  if (problem.checkpoint_every == 0) return;
  const Builder::Label label(b, "checkpoint");
  const Value chunk = ChunkC(now, 0), row = Entry(table.checkpoint, chunk);
  b->If(row >= 0, [&] {
    StartCopy(state.At(Index(Entry(table.state, chunk))), StatesAt(*this, checkpoints, row),
              checkpoint_semaphore.At(0));
  });
}

void Kernel::MoveStateOut(Value now) {
  if (!problem.final_state) return;
  const Builder::Label label(b, "state_out");
  for (int u = 0; u < unroll; ++u) {
    const Value chunk = ChunkC(now, u);
    const Value place = Entry(table.state, chunk);
    const Value n = Entry(table.sequence, chunk);
    b->If((Entry(table.last, chunk) == 1) & Kept(n), [&] {
      StartCopy(state.At(Index(place)), StatesAt(*this, final_state, SlotOf(final_slots, n)),
                state_out_semaphore.At(Index(place)));
    });
  }
}

// --- o -------------------------------------------------------------------------------------------
//
// A whole chunk leaves in one copy, a shorter one in pieces of powers of two, exactly its own rows.
// They are waited for two steps later, when their buffer is needed again.

void Kernel::ForPieces(Value rows, const std::function<void(Value from, int64_t n)>& body) {
  for (int64_t n = kChunk / 2; n >= 1; n /= 2) {
    if (n > problem.tokens) continue;
    b->If((rows & static_cast<uint32_t>(n)) != 0, [&] { body(Multiple(rows, 2 * n), n); });
  }
}

void Kernel::StartOutput(Value now) {
  const Index at(now & 1u);
  Value any_short = b->Constant(DType::kI32, 1) == 0;
  for (int u = 0; u < unroll; ++u) {
    const Builder::Label label(b, "output_copy");
    const Value token = Entry(table.token, ChunkC(now, u)),
                rows = Entry(table.rows, ChunkC(now, u));
    any_short = any_short | ((rows & static_cast<uint32_t>(kChunk - 1)) != 0);
    if (problem.tokens < kChunk) continue;
    b->If(rows == kChunk, [&] {
      StartCopy(o_out.At({at, Index(u)}), Tokens(*this, o, Index(token), kChunk),
                o_semaphore.At(at));
    });
  }
  const Builder::Label label(b, "output_pieces");
  b->If(any_short, [&] {
    for (int u = 0; u < unroll; ++u) {
      const Value token = Entry(table.token, ChunkC(now, u));
      ForPieces(Entry(table.rows, ChunkC(now, u)), [&](Value from, int64_t n) {
        StartCopy(o_out.At({at, Index(u)}).Rows(Index(from), n),
                  Tokens(*this, o, Index(token + from), n), o_semaphore.At(at));
      });
    }
  });
}

void Kernel::WaitOutput(Value then) {
  const Index at(then & 1u);
  const auto wait = [&](int64_t n) {
    WaitCopy(o_out.At({Index(0), Index(0)}).Rows(0, n), Tokens(*this, o, 0, n), o_semaphore.At(at));
  };
  Value any_short = b->Constant(DType::kI32, 1) == 0;
  for (int u = 0; u < unroll; ++u) {
    const Builder::Label label(b, "output_wait");
    const Value rows = Entry(table.rows, ChunkC(then, u));
    any_short = any_short | ((rows & static_cast<uint32_t>(kChunk - 1)) != 0);
    if (problem.tokens >= kChunk) b->If(rows == kChunk, [&] { wait(kChunk); });
  }
  const Builder::Label label(b, "pieces_wait");
  b->If(any_short, [&] {
    for (int u = 0; u < unroll; ++u) {
      ForPieces(Entry(table.rows, ChunkC(then, u)), [&](Value, int64_t n) { wait(n); });
    }
  });
}

// Rows of o from `from` on belong to no sequence and become zeros.
void Kernel::ZeroUnowned(Value from) {
  const Builder::Label label(b, "zero_unowned");
  const Value count = static_cast<double>(problem.tokens) - from;
  b->If(count > 0, [&] {
    b->For(0, kChunk, [&](Value i) { Store(o_out.At({Index(0), Index(0), Index(i)}), 0.0); });
    const auto write = [&](Value first, int64_t n) {
      const Ref source = o_out.At({Index(0), Index(0)}).Rows(0, n);
      const Ref target = Tokens(*this, o, Index(first), n);
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
  WaitOutput(steps - 2.0);
  WaitOutput(steps - 1.0);
  if (problem.checkpoint_every > 0) {
    const Builder::Label label(b, "checkpoint_wait");
    b->If(Entry(table.checkpoint, ChunkC(steps - 1.0, 0)) >= 0, [&] {
      WaitCopy(state.At(0), StatesAt(*this, checkpoints, b->Constant(DType::kI32, 0)),
               checkpoint_semaphore.At(0));
    });
  }
  if (problem.final_state) {
    const Builder::Label label(b, "state_out_wait");
    const int64_t last = std::min(state_ring, problem.sequences);
    for (int64_t i = 0; i < last; ++i) {
      const int64_t n = problem.sequences - last + i, place = n % state_ring;
      const auto wait = [&] {
        WaitCopy(state.At(Index(place)), StatesAt(*this, final_state, b->Constant(DType::kI32, 0)),
                 state_out_semaphore.At(Index(place)));
      };
      if (problem.slots == 0) {
        wait();
      } else {
        b->If(Kept(b->Constant(DType::kI32, static_cast<double>(n))), wait);
      }
    }
  }
  ZeroUnowned(Load(cu_seqlens.At(Index(problem.sequences))));
}

}  // namespace kda::tpu::mega
