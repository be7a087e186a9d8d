// fuse on, and threads that whole heads would leave idle: gate_cumsum, intra_chunk and what of
// inter_chunk does not depend on V are one half of a chunk's work, in any order; the rest of
// inter_chunk and output are the other, of a part of V at a time, since no column of the state, of
// v_new or of o depends on another, and of one chunk after the other. A thread takes what there is
// of either. The same kernels on the same operands as in one pass, hence the same bits.
#include <sched.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include "cpu/forward.h"
#include "cpu/split_model.h"

namespace kda::cpu {

namespace {

// Chunks that a thread has prepared and not all parts are done with: one waits while the next is
// being made. T = 8192, H = 1, 2 threads, Zen 5, bf16 products, cores that share an L3 cache:
// 2.6 ms with 1, 2, 3 and 8, and 4.76 in one pass. (What one leaves has 100 kB.)
constexpr int64_t kRecords = 2;

// Of the other workers' records that it takes, a worker measures one in so many (RecordOf).
constexpr int64_t kRecordsPerProbe = 8;

// What the workers of a run tell each other of a pair.
struct alignas(64) Pair {
  std::atomic<int64_t> taken{0};    // chunks whose first half someone has begun
  std::atomic<int32_t> workers{0};  // that have made it theirs
  std::atomic<bool> far{false};     // their caches from each other, as one of them measured last
};
// A part of V of a pair: its second half.
struct alignas(64) Part {
  std::atomic<int64_t> done{0};  // chunks
  std::atomic<bool> busy{false};
};
// A chunk whose first half is done, and where that lies.
struct Ready {
  std::atomic<int64_t> after{0};  // 1 + the chunk
  int64_t record = 0;
  bool copied = false;  // past the caches, for others than the worker whose record it is
};

// Cores with an L3 cache each are far from each other: what one has read the other writes anew only
// when it is gone there, 7 ns a line, and what one has written is read from the other's cache. A
// record's operands go through memory then, past the caches: 1.5 us more than a copy between
// neighbours takes, and no less between strangers. Problem as above, ms: neighbours 2.51 without
// and 2.81 with such copies, strangers 4.29 and 3.12, and 4.7 in one pass.
#if defined(__x86_64__)
constexpr bool kCanStream = true;
// To memory, past the caches: whole lines.
void Stream(const float* from, int64_t count, float* to) {
  constexpr int kLine = 16;
  for (int64_t i = 0; i < count; i += kLine) {
    __m128 line[4];
    for (int n = 0; n < 4; ++n) line[n] = _mm_load_ps(from + i + 4 * n);
    for (int n = 0; n < 4; ++n) _mm_stream_ps(to + i + 4 * n, line[n]);
  }
  _mm_sfence();  // before it is said to be there
}
#else
constexpr bool kCanStream = false;
void Stream(const float*, int64_t, float*) {}
#endif

// Everything that the workers of a run share, in the workspace.
struct Layout {
  explicit Layout(const kda_plan& plan)
      : pairs(PairsOf(plan)),
        parts(pairs * plan.column_parts),
        records(plan.workers * kRecords),
        ring(std::clamp<int64_t>(plan.max_chunks, 1, records)),
        state(StateFloats(plan.problem)) {
    const Which which = KernelsFor(plan).buffers;
    const ChunkDims dims = DimsOf(plan.problem, kChunkRows);
    const int64_t ends = FloatsApart(which, dims, Apart::kEnds);
    one_half = FloatsApart(which, dims, Apart::kOneHalf);
    operands = FloatsApart(which, dims, Apart::kOperands);
    end = EndFloats(which, dims);
    has_ends = !plan.checkpoints.empty();
    record = operands + (has_ends ? ends : 0);
    at_ends = one_half;
    at_checkpoint = at_ends + (has_ends ? 0 : ends);
    at_copy = at_checkpoint + end + state;
    floats_per_worker = at_copy + record;
  }

  int64_t pairs, parts;  // parts of all pairs
  int64_t records;       // of all workers
  int64_t ring;          // places for a pair's chunks that are ready, of which there are no more
  int64_t state, one_half, operands, end;
  bool has_ends;  // a record has, for checkpoints; else a worker has them
  int64_t record;
  // Of a worker, after its one_half: its ends, what a checkpoint needs, a copy of another's record.
  int64_t at_ends, at_checkpoint, at_copy;
  int64_t floats_per_worker;

  int64_t shared_floats() const {
    const int64_t bytes = pairs * SizeOf<Pair>() + parts * SizeOf<Part>() +
                          core::CeilDiv(pairs * ring * SizeOf<Ready>(), kAlign) * kAlign;
    return bytes / SizeOf<float>();
  }
  int64_t floats(int64_t workers) const {
    return shared_floats() + workers * floats_per_worker + pairs * state +
           (kCanStream ? 2 : 1) * records * record;
  }

 private:
  static constexpr int64_t kAlign = core::kWorkspaceAlignment;
  template <class T>
  static constexpr int64_t SizeOf() {
    return static_cast<int64_t>(sizeof(T));
  }
};

// For what another thread is at work on, which takes some 20 us unless it has lost its processor.
void Wait(int waits) {
  if (waits > 200) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  for (int i = 0; i < 4; ++i) __builtin_ia32_pause();
#endif
}

// How long a line takes that another core has written: one after the other, of diagonal blocks of
// `aqk`, in an order that nothing fetches ahead. What reading the clock takes, a system call on some
// machines, is left out.
double NanosecondsPerLine(const float* aqk) {
  static std::atomic<uint32_t> nothing{0};  // unknown to the compiler
  const uint32_t mask = nothing.load(std::memory_order_relaxed);
  constexpr std::array<int64_t, 8> kRows = {37, 5, 51, 60, 18, 29, 44, 11};
  using Clock = std::chrono::steady_clock;
  const auto before = Clock::now(), start = Clock::now();
  int64_t zero = 0;
  for (const int64_t i : kRows) {
    uint32_t bits;
    std::memcpy(&bits, aqk + i * kChunkRows + i / kBlockRows * kBlockRows + zero, sizeof(bits));
    zero = bits & mask;
  }
  const std::chrono::duration<double, std::nano> took = (Clock::now() - start) - (start - before);
  return (took.count() + static_cast<double>(zero)) / kRows.size();
}

class Split {
 public:
  Split(const Run& run, float* workspace)
      : run_(run),
        plan_(run.plan),
        dims_(DimsOf(run.plan.problem, kChunkRows)),
        layout_(run.plan),
        width_(WidthOf(run.plan.problem, run.plan.column_parts)),
        pairs_(reinterpret_cast<Pair*>(workspace)),
        parts_(reinterpret_cast<Part*>(pairs_ + layout_.pairs)),
        ready_(reinterpret_cast<Ready*>(parts_ + layout_.parts)),
        locals_(workspace + layout_.shared_floats()),
        states_(locals_ + plan_.workers * layout_.floats_per_worker),
        records_(states_ + layout_.pairs * layout_.state),
        copies_(records_ + layout_.records * layout_.record) {
    for (int64_t i = 0; i < layout_.pairs; ++i) new (pairs_ + i) Pair;
    for (int64_t i = 0; i < layout_.parts; ++i) new (parts_ + i) Part;
    for (int64_t i = 0; i < layout_.pairs * layout_.ring; ++i) new (ready_ + i) Ready;
  }

  void RunAll() const {
    ForEach(plan_, plan_.workers, [&](int64_t, int32_t worker) { Work(worker); });
  }

 private:
  struct Columns {
    int64_t first, width;
  };
  struct Chunk {
    int64_t pair, chunk;  // pair < 0: none
  };
  static constexpr Chunk kNone = {-1, 0};
  struct Worker {
    int32_t number;
    std::array<Chunk, kRecords> records;  // what its records hold
    int64_t pair = -1, part = 0;          // what it is at; pair < 0: nothing
    Chunk next = kNone;                   // what it prepares then
    bool asked_for = false;               // memory was asked for the rows of `next`
    int64_t others = 0;                   // records of other workers that it has used
    Chunk copied = kNone;                 // of another worker, in a copy of its own
  };

  // What there is to do, until there is no more. Waits only for what another worker has begun, so
  // that any number of workers can come, at any time.
  void Work(int32_t number) const {
    // Where parts are few, the workers that have one leave the first half to the others.
    const bool every_worker_has_a_part = layout_.parts >= plan_.workers;
    Worker worker = {number, {}};
    worker.records.fill(kNone);
    int waits = 0;
    for (;;) {
      if (worker.pair < 0 || Left(worker.pair) == 0) Join(&worker);
      int64_t room = RoomIn(worker);
      worker.next = every_worker_has_a_part && room >= 0 ? Take(worker.pair) : kNone;
      worker.asked_for = false;
      const bool ran = RunParts(&worker);
      if (worker.next.pair < 0 && !ran) {
        room = RoomIn(worker);
        if (room >= 0) worker.next = TakeAny(worker.pair);
      }
      if (worker.next.pair >= 0) {
        Prepare(room, &worker);
      } else if (!ran) {
        if (NothingIsLeft()) return;
        Wait(waits++);
        continue;
      }
      waits = 0;
    }
  }

  // Chunks whose first half nobody has begun.
  int64_t Left(int64_t pair) const {
    return ChunksOf(pair) - pairs_[pair].taken.load(std::memory_order_relaxed);
  }

  // Puts the worker at the pair with the fewest, of those the one that has most left, and at a part
  // of it. What is not done of the parts of the pair before, RunParts finds.
  void Join(Worker* worker) const {
    int64_t best = -1;
    int32_t fewest = 0;
    for (int64_t i = 0; i < layout_.pairs; ++i) {
      const int32_t workers = pairs_[i].workers.load(std::memory_order_relaxed);
      if (Left(i) == 0) continue;
      if (best < 0 || workers < fewest || (workers == fewest && Left(i) > Left(best))) {
        best = i, fewest = workers;
      }
    }
    if (best < 0) return;
    // One that another worker has joined in the meantime is not the one with the fewest any more.
    if (!pairs_[best].workers.compare_exchange_strong(fewest, fewest + 1,
                                                      std::memory_order_relaxed))
      return Join(worker);
    worker->pair = best;
    worker->part = best * plan_.column_parts + fewest % plan_.column_parts;
  }

  // The second half of what is ready of a part that nobody has: the worker's, one of its pair or
  // any. All parts of a pair that is this worker's alone.
  bool RunParts(Worker* worker) const {
    const int64_t parts = plan_.column_parts, pair = worker->pair;
    const int64_t first = std::max<int64_t>(pair, 0) * parts;
    bool ran = RunAPart(worker->part, worker);
    for (int64_t n = 0; n < layout_.parts; ++n) {
      const bool alone =
          n < parts && pair >= 0 && pairs_[pair].workers.load(std::memory_order_relaxed) == 1;
      if (ran && !alone) break;
      const int64_t i = (first + n) % layout_.parts;
      if (!RunAPart(i, worker)) continue;
      if (!ran) worker->part = i;
      ran = true;
    }
    return ran;
  }
  bool RunAPart(int64_t part, Worker* worker) const {
    Part& one = parts_[part];
    if (!IsReady(part, one.done.load(std::memory_order_relaxed)) ||
        one.busy.load(std::memory_order_relaxed) ||
        one.busy.exchange(true, std::memory_order_acquire)) {
      return false;
    }
    const int64_t begin = one.done.load(std::memory_order_relaxed);
    int64_t c = begin;
    for (; IsReady(part, c); ++c) {
      Recur(part, c, worker);
      one.done.store(c + 1, std::memory_order_release);
    }
    one.busy.store(false, std::memory_order_release);
    return c > begin;
  }
  bool IsReady(int64_t part, int64_t chunk) const {
    const Ready& ready = ReadyOf({part / plan_.column_parts, chunk});
    return ready.after.load(std::memory_order_acquire) == chunk + 1;
  }

  // A chunk for its first half, of `pair` or of any. That its place in the ring is free is known to
  // the worker that saw the chunk there before done with; the exchanges, each of which passes on
  // what was known to those before, tell this one.
  Chunk Take(int64_t pair) const {
    if (pair < 0) return kNone;
    Pair& one = pairs_[pair];
    int64_t chunk = one.taken.load(std::memory_order_relaxed);
    while (chunk < ChunksOf(pair)) {
      if (one.taken.compare_exchange_weak(chunk, chunk + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed)) {
        return {pair, chunk};
      }
    }
    return kNone;
  }
  Chunk TakeAny(int64_t pair) const {
    Chunk taken = Take(pair);
    for (int64_t i = 0; i < layout_.pairs && taken.pair < 0; ++i) taken = Take(i);
    return taken;
  }
  // A record that all parts are done with; -1: none.
  int64_t RoomIn(const Worker& worker) const {
    for (int64_t i = 0; i < kRecords; ++i) {
      if (IsDoneWith(worker.records[static_cast<size_t>(i)])) return i;
    }
    return -1;
  }
  bool IsDoneWith(Chunk c) const {
    if (c.pair < 0) return true;
    const Part* const first = parts_ + c.pair * plan_.column_parts;
    return std::all_of(first, first + plan_.column_parts, [&](const Part& part) {
      return part.done.load(std::memory_order_acquire) > c.chunk;
    });
  }

  // For a worker that finds nothing to do: all chunks are taken, and all parts that are not done.
  bool NothingIsLeft() const {
    for (int64_t i = 0; i < layout_.pairs; ++i) {
      if (pairs_[i].taken.load(std::memory_order_relaxed) < ChunksOf(i)) return false;
    }
    for (int64_t i = 0; i < layout_.parts; ++i) {
      if (parts_[i].done.load(std::memory_order_relaxed) < ChunksOf(i / plan_.column_parts) &&
          !parts_[i].busy.load(std::memory_order_relaxed)) {
        return false;
      }
    }
    return true;
  }

  const core::Sequence& SequenceOf(int64_t pair) const {
    return LiveSequence(plan_, pair / plan_.problem.value_heads);
  }
  int HeadOf(int64_t pair) const { return static_cast<int>(pair % plan_.problem.value_heads); }
  // One where there is no token: its state goes from one slot to another.
  int64_t ChunksOf(int64_t pair) const {
    return std::max<int64_t>(core::CeilDiv(SequenceOf(pair).length, kChunkRows), 1);
  }
  Ready& ReadyOf(Chunk c) const { return ready_[c.pair * layout_.ring + c.chunk % layout_.ring]; }

  // The first half of the worker's next chunk, into its record `room`.
  void Prepare(int64_t room, Worker* worker) const {
    const Chunk c = worker->next;
    const int64_t record = worker->number * kRecords + room;
    worker->records[static_cast<size_t>(room)] = c;
    Ready& ready = ReadyOf(c);
    ready.record = record;
    ready.copied = false;
    if (SequenceOf(c.pair).length - c.chunk * kChunkRows > 1) {  // else it takes the decode step
      HeadChunk view = View(c);
      view.asked_for = worker->asked_for;
      ChunkBuffers buffers;
      LayOutApart(run_.kernels.buffers, dims_, BasesOf(*worker, RecordAt(record)), &buffers);
      run_.kernels.gate_cumsum(view, buffers);
      run_.IntraChunk()(view, buffers);
      run_.kernels.decay_to_end(view, buffers, view.rows);
      ready.copied = pairs_[c.pair].far.load(std::memory_order_relaxed);
      if (ready.copied) Stream(RecordAt(record), layout_.record, CopyAt(record));
    }
    ready.after.store(c.chunk + 1, std::memory_order_release);
  }

  // The record of a chunk for its second half, or a copy.
  float* RecordOf(Chunk c, int rows, Worker* worker) const {
    const Ready& ready = ReadyOf(c);
    float* const record = RecordAt(ready.record);
    if (ready.record / kRecords == worker->number) return record;
    if (kCanStream && rows == kChunkRows && worker->others++ % kRecordsPerProbe == 0) {
      ChunkBuffers buffers;
      LayOutApart(run_.kernels.buffers, dims_, BasesOf(*worker, record), &buffers);
      pairs_[c.pair].far.store(NanosecondsPerLine(buffers.aqk) >= far_nanoseconds,
                               std::memory_order_relaxed);
    }
    if (!ready.copied) return record;
    float* const own = OwnCopyOf(*worker);
    if (worker->copied.pair != c.pair || worker->copied.chunk != c.chunk) {
      std::copy_n(CopyAt(ready.record), layout_.record, own);
      worker->copied = c;
    }
    return own;
  }

  // The second half of a chunk, of a part of V. Memory is asked for what Prepare reads of
  // the worker's next chunk, if it was not yet.
  void Recur(int64_t part, int64_t chunk, Worker* worker) const {
    const int64_t pair = part / plan_.column_parts, first = part % plan_.column_parts * width_;
    const Columns columns = {first, std::min(width_, plan_.problem.dim_v - first)};
    const core::Sequence& s = SequenceOf(pair);
    const int head = HeadOf(pair);
    float* const scratch = states_ + pair * layout_.state;  // part by part
    if (s.length == 0) {
      if (first == 0) StateOfNoTokens(s, head, scratch);
      return;
    }
    const State own = {scratch + PaddedDim(plan_.problem.dim_k) * first, PaddedDim(columns.width)};
    const ConstState now =
        chunk == 0 ? Initial(s, head, columns, own) : ConstState{own.data, own.ld};
    HeadChunk view = View({pair, chunk});
    Upcoming upcoming;
    if (view.rows > 1) {
      const Chunk next = worker->next;
      if (next.pair >= 0 && !worker->asked_for) {
        upcoming =
            UpcomingOf(run_, SequenceOf(next.pair), HeadOf(next.pair), next.chunk * kChunkRows);
        upcoming.v_rows = 0;
        upcoming.state = nullptr;
        worker->asked_for = true;
      }
      const int64_t then = (chunk + 1) * kChunkRows;
      if (then < s.length) {  // what this worker probably takes up next of the part
        const Upcoming after = UpcomingOf(run_, s, head, then);
        upcoming.v_rows = after.rows;
        upcoming.v = after.v;
        upcoming.v.data += first * SizeOf(after.v.dtype);
      }
      view.next = &upcoming;
    }
    view.v.data += first * SizeOf(view.v.dtype);
    view.o += first * SizeOf(view.o_dtype);
    view.dim_v = static_cast<int>(columns.width);
    const int64_t token = chunk * kChunkRows;
    const bool last = token + view.rows == s.length;
    const State next = last ? Final(s, head, columns, own) : own;
    int64_t checkpoint = CheckpointAfter(s, token);
    if (view.rows == 1) {
      DecodeRow(run_, view, now, next);
      ForEachCheckpoint(plan_, s, token, 1, &checkpoint,
                        [&](int64_t row, int) { StoreCheckpoint(row, head, columns, next); });
    } else {
      ChunkBuffers buffers;
      LayOutApart(run_.kernels.buffers, {dims_.ldk, own.ld, dims_.rows},
                  BasesOf(*worker, RecordOf({pair, chunk}, view.rows, worker)), &buffers);
      run_.kernels.delta_rule(view, buffers, now, run_.solver());
      run_.kernels.output(view, buffers, now);
      ForEachCheckpoint(plan_, s, token, view.rows, &checkpoint, [&](int64_t row, int rows) {
        float* const room = LocalOf(*worker) + layout_.at_checkpoint;
        ChunkBuffers of_checkpoint = buffers;
        LayOutEnd(run_.kernels.buffers, dims_, room, &of_checkpoint);
        const State at = {room + layout_.end, own.ld};
        AdvanceToCheckpoint(run_, view, of_checkpoint, rows, now, at);
        StoreCheckpoint(row, head, columns, at);
      });
      run_.kernels.advance_state(view, buffers, view.rows, now, next);
    }
    if (last && next.data == own.data && s.final_slot >= 0) {
      StoreColumns(plan_.problem.final_state, run_.buffers.final_state, s.final_slot, head, columns,
                   own);
    }
  }

  void StateOfNoTokens(const core::Sequence& s, int head, float* scratch) const {
    StateCursor state;
    state.Begin(run_, s, head, scratch);
    state.Finish();
  }

  HeadChunk View(Chunk c) const {
    const core::Sequence& s = SequenceOf(c.pair);
    const int64_t first = c.chunk * kChunkRows;
    const int64_t rows = std::min<int64_t>(kChunkRows, s.length - first);
    return ViewOf(run_, s, HeadOf(c.pair), first, static_cast<int>(rows));
  }

  float* RecordAt(int64_t record) const { return records_ + record * layout_.record; }
  float* CopyAt(int64_t record) const { return copies_ + record * layout_.record; }
  float* LocalOf(const Worker& worker) const {
    return locals_ + worker.number * layout_.floats_per_worker;
  }
  float* OwnCopyOf(const Worker& worker) const { return LocalOf(worker) + layout_.at_copy; }
  ApartBases BasesOf(const Worker& worker, float* record) const {
    float* const local = LocalOf(worker);
    float* const ends = layout_.has_ends ? record + layout_.operands : local + layout_.at_ends;
    return {local, ends, record};
  }

  // Columns of a state in the caller's memory: of every row a piece, or rows.
  template <class Move>
  void MoveColumns(const kda_tensor& tensor, Columns columns, const Move& move) const {
    const core::Problem& p = plan_.problem;
    StateShape shape = ShapeOf(p, tensor);
    shape.dim_v = static_cast<int>(columns.width);
    const int64_t size = SizeOf(shape.dtype);
    if (shape.value_major) return move(shape, columns.first * p.dim_k * size, 0);
    shape.dim_k = 1;
    for (int64_t c = 0; c < p.dim_k; ++c) move(shape, (c * p.dim_v + columns.first) * size, c);
  }
  void LoadColumns(const core::Sequence& s, int head, Columns columns, State to) const {
    const kda_tensor& tensor = plan_.problem.initial_state;
    const char* const at = StateAt(tensor, run_.buffers.initial_state, s.initial_slot, head);
    MoveColumns(tensor, columns, [&](const StateShape& shape, int64_t bytes, int64_t row) {
      run_.kernels.load_state(shape, at + bytes, {to.data + row * to.ld, to.ld});
    });
  }
  void StoreColumns(const kda_tensor& tensor, void* data, int64_t slot, int head, Columns columns,
                    State from) const {
    char* const at = StateAt(tensor, data, slot, head);
    MoveColumns(tensor, columns, [&](const StateShape& shape, int64_t bytes, int64_t row) {
      run_.kernels.store_state(shape, {from.data + row * from.ld, from.ld}, at + bytes);
    });
  }
  void StoreCheckpoint(int64_t row, int head, Columns columns, State from) const {
    StoreColumns(plan_.problem.checkpoints, run_.buffers.checkpoints, row, head, columns, from);
  }

  // The state before the first chunk and after the last: where the caller has it, if it can be used
  // as it lies.
  ConstState Initial(const core::Sequence& s, int head, Columns columns, State own) const {
    const core::Problem& p = plan_.problem;
    if (s.initial_slot < 0) {
      std::fill_n(own.data, PaddedDim(p.dim_k) * own.ld, 0.0f);
    } else if (IsDirect(p, p.initial_state)) {
      const char* const at =
          StateAt(p.initial_state, run_.buffers.initial_state, s.initial_slot, head);
      return {reinterpret_cast<const float*>(at) + columns.first, p.dim_v};
    } else {
      LoadColumns(s, head, columns, own);
    }
    return {own.data, own.ld};
  }
  State Final(const core::Sequence& s, int head, Columns columns, State own) const {
    const core::Problem& p = plan_.problem;
    if (s.final_slot < 0 || !IsDirect(p, p.final_state)) return own;
    char* const at = StateAt(p.final_state, run_.buffers.final_state, s.final_slot, head);
    return {reinterpret_cast<float*>(at) + columns.first, p.dim_v};
  }

  // The first checkpoint after token `token`.
  int64_t CheckpointAfter(const core::Sequence& s, int64_t token) const {
    const auto all = plan_.checkpoints.begin();
    const auto is_before = [token](const core::Checkpoint& c) { return c.token <= token; };
    return std::partition_point(all + s.checkpoint_begin, all + s.checkpoint_end, is_before) - all;
  }

  const Run& run_;
  const kda_plan& plan_;
  const ChunkDims dims_;
  const Layout layout_;
  const int64_t width_;  // of a part
  Pair* const pairs_;
  Part* const parts_;
  Ready* const ready_;
  float* const locals_;
  float* const states_;
  float* const records_;
  float* const copies_;  // of the records, in memory
};

}  // namespace

double far_nanoseconds = 110;

int64_t SplitWorkspaceFloats(const kda_plan& plan) { return Layout(plan).floats(plan.workers); }

void RunSplit(const Run& run, float* workspace) { Split(run, workspace).RunAll(); }

}  // namespace kda::cpu
