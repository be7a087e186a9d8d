// fuse on, and threads that whole heads would leave idle: gate_cumsum and intra_chunk of a chunk are
// one half of the work, in any order; inter_chunk and output the other, of a part of V at a time,
// since no column of the state, of v_new or of o depends on another, and of one chunk after the
// other. A thread takes what there is of either. The same kernels on the same operands as in one
// pass, hence the same bits.
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <new>
#include <queue>
#include <vector>

#include "cpu/forward.h"

namespace kda::cpu {

namespace {

// Chunks that a thread has prepared and not all parts are done with: one waits while the next is
// being made. T = 8192, H = 1, 2 threads, Zen 5, bf16 products, cores that share an L3 cache: 2.93
// ms with 1, 2.85 with 2, 2.92 with 3, 3.03 with 8, and 5.2 in one pass. (What one leaves has
// 160 kB. Where cores have an L3 cache each, what one writes and the other reads takes as long again
// as the rest, 4.7 ms with any.)
constexpr int64_t kRecords = 2;

// What a chunk of one head takes, in units of one pass with K = V = 128: the first half, a column of
// the second, what each part of the second does anew, and a part of less than 32 columns besides,
// which is half a tile of AVX-512's micro-kernels. Processor time on Zen 5, T = 8192, H = 1, bounded
// and log gates: first half 0.39 and 0.34 with bf16 products, 0.31 and 0.29 with fp32 ones, 0.31 and
// 0.24 with AVX2, up to 0.45 with softplus gates; in all 1.03 to 1.08 with 1 part, 1.04 to 1.10
// with 2, 1.11 to 1.18 with 4, 1.5 with 8 (AVX2 1.2).
constexpr double kFirstHalf = 0.35, kColumn = 0.65 / 128, kPart = 0.04, kNarrowPart = 0.02;
// Of the time of one pass, or of that with fewer parts. What the above leaves out, threads that wait
// for each other and for each other's memory, must not eat up the gain.
constexpr double kWorthwhile = 0.85, kMorePartsWorthwhile = 0.95;
// Above, one pass leaves no thread idle for long.
constexpr int64_t kMostPairsPerThread = 4;
constexpr int64_t kFewestColumns = 16;  // of a part
constexpr int64_t kNarrow = 32;

// (sequence, head)s; at least 1.
int64_t PairsOf(const kda_plan& plan) {
  return std::max<int64_t>(static_cast<int64_t>(plan.live.size()) * plan.problem.value_heads, 1);
}

// Parts are whole 16s, the last the shortest.
int64_t WidthOf(const core::Problem& problem, int64_t parts) {
  return PaddedDim(core::CeilDiv(problem.dim_v, parts));
}

// Chunks of the sequences that are not skipped.
struct Chunks {
  explicit Chunks(const kda_plan& plan) {
    for (const int64_t n : plan.live) {
      const int64_t count =
          core::CeilDiv(plan.sequences[static_cast<size_t>(n)].length, kChunkRows);
      of.push_back(count);
      total += count;
      longest = std::max(longest, count);
      shortest = of.size() == 1 ? count : std::min(shortest, count);
    }
  }
  std::vector<int64_t> of;
  int64_t total = 0, longest = 0, shortest = 0;
};

// How long one pass takes: threads take blocks of heads as they become free.
double TimeOfOnePass(const kda_plan& plan, const Chunks& chunks) {
  const core::Problem& p = plan.problem;
  const double chunk = kFirstHalf + kColumn * static_cast<double>(PaddedDim(p.dim_v));
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int32_t i = 0; i < plan.execution.threads; ++i) free_at.push(0);
  double time = 0;
  for (const int64_t count : chunks.of) {
    for (int64_t head = 0; head < p.value_heads; head += plan.heads_per_step) {
      const int64_t heads = std::min<int64_t>(plan.heads_per_step, p.value_heads - head);
      const double end = free_at.top() + chunk * static_cast<double>(count * heads);
      free_at.pop();
      free_at.push(end);
      time = std::max(time, end);
    }
  }
  return time;
}

// What a chunk of one head takes with `parts` parts of V, and of that what waits for the chunk before.
struct ChunkTime {
  ChunkTime(const core::Problem& p, int64_t parts) {
    const int64_t width = WidthOf(p, parts);
    const double part = kPart + (width < kNarrow ? kNarrowPart : 0);
    all = kFirstHalf + kColumn * static_cast<double>(PaddedDim(p.dim_v)) +
          part * static_cast<double>(parts);
    follow = kColumn * static_cast<double>(width) + part;
  }
  double all, follow;
};

// How long `parts` parts of V take: as long as all the work takes all threads; but no shorter than
// the chunks of a part, which follow each other, be it the longest or one that is begun last, when
// threads have had a pair each.
double TimeOf(const kda_plan& plan, const Chunks& chunks, int64_t parts) {
  const core::Problem& p = plan.problem;
  const auto threads = static_cast<double>(plan.execution.threads);
  const auto [chunk, follow] = ChunkTime(p, parts);
  const double all = chunk * static_cast<double>(chunks.total * p.value_heads) / threads;
  const auto last = static_cast<double>(PairsOf(plan) % plan.execution.threads * chunks.shortest);
  const double begun = PairsOf(plan) < plan.execution.threads ? 0 : all - chunk * last / threads;
  return kFirstHalf + std::max({all, follow * static_cast<double>(chunks.longest),
                                begun + follow * static_cast<double>(chunks.shortest)});
}

// What the workers of a run tell each other of a pair.
struct alignas(64) Pair {
  std::atomic<int64_t> taken{0};    // chunks whose first half someone has begun
  std::atomic<int32_t> workers{0};  // that have made it theirs
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
};

// Everything that the workers of a run share, in the workspace.
struct Layout {
  explicit Layout(const kda_plan& plan)
      : pairs(PairsOf(plan)),
        parts(pairs * plan.column_parts),
        records(plan.workers * kRecords),
        ring(std::clamp<int64_t>(plan.max_chunks, 1, records)),
        local(LocalFloats(KernelsFor(plan).buffers, DimsOf(plan.problem, kChunkRows))),
        end(EndFloats(KernelsFor(plan).buffers, DimsOf(plan.problem, kChunkRows))),
        state(StateFloats(plan.problem)),
        kept(KeptFloats(KernelsFor(plan).buffers, DimsOf(plan.problem, kChunkRows))) {}

  int64_t pairs, parts;  // parts of all pairs
  int64_t records;       // of all workers
  int64_t ring;          // places for a pair's chunks that are ready, of which there are no more
  int64_t local, end, state, kept;

  int64_t shared_floats() const {
    const int64_t bytes = pairs * SizeOf<Pair>() + parts * SizeOf<Part>() +
                          core::CeilDiv(pairs * ring * SizeOf<Ready>(), kAlign) * kAlign;
    return bytes / SizeOf<float>();
  }
  int64_t floats_per_worker() const { return local + state + end; }
  int64_t floats(int64_t workers) const {
    return shared_floats() + workers * floats_per_worker() + pairs * state + records * kept;
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
        states_(locals_ + plan_.workers * layout_.floats_per_worker()),
        records_(states_ + layout_.pairs * layout_.state) {
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
  using Records = std::array<Chunk, kRecords>;  // what a worker's records hold

  // What there is to do, until there is no more. Waits only for what another worker has begun, so
  // that any number of workers can come, at any time.
  void Work(int32_t worker) const {
    // Where parts are few, the workers that have one leave the first half to the others.
    const bool every_worker_has_a_part = layout_.parts >= plan_.workers;
    Records records;
    records.fill(kNone);
    int64_t pair = -1, part = 0;
    int waits = 0;
    for (;;) {
      if (pair < 0 || Left(pair) == 0) Join(&pair, &part);
      int64_t room = RoomIn(records);
      Chunk next = every_worker_has_a_part && room >= 0 ? Take(pair) : kNone;
      bool asked_for = false;  // the rows of `next`
      const bool ran = RunParts(pair, &part, next, worker, &asked_for);
      if (next.pair < 0 && !ran) {
        room = RoomIn(records);
        if (room >= 0) next = TakeAny(pair);
      }
      if (next.pair >= 0) {
        records[static_cast<size_t>(room)] = next;
        const int64_t record = worker * kRecords + room;
        Prepare(next, asked_for, record, worker);
        Ready& ready = ReadyOf(next);
        ready.record = record;
        ready.after.store(next.chunk + 1, std::memory_order_release);
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

  // Makes *pair the one with the fewest workers, of those the one that has most left, and *part a
  // part of it. What is not done of the parts of the pair before, RunParts finds.
  void Join(int64_t* pair, int64_t* part) const {
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
      return Join(pair, part);
    *pair = best;
    *part = best * plan_.column_parts + fewest % plan_.column_parts;
  }

  // The second half of what is ready of a part that nobody has: *part, one of `pair` or any. All
  // parts of a pair that is this worker's alone. `next`: what this worker prepares then.
  bool RunParts(int64_t pair, int64_t* part, Chunk next, int32_t worker, bool* asked_for) const {
    const int64_t parts = plan_.column_parts, first = std::max<int64_t>(pair, 0) * parts;
    bool ran = RunAPart(*part, next, worker, asked_for);
    for (int64_t n = 0; n < layout_.parts; ++n) {
      const bool alone =
          n < parts && pair >= 0 && pairs_[pair].workers.load(std::memory_order_relaxed) == 1;
      if (ran && !alone) break;
      const int64_t i = (first + n) % layout_.parts;
      if (!RunAPart(i, next, worker, asked_for)) continue;
      if (!ran) *part = i;
      ran = true;
    }
    return ran;
  }
  bool RunAPart(int64_t part, Chunk next, int32_t worker, bool* asked_for) const {
    Part& one = parts_[part];
    if (!IsReady(part, one.done.load(std::memory_order_relaxed)) ||
        one.busy.load(std::memory_order_relaxed) ||
        one.busy.exchange(true, std::memory_order_acquire)) {
      return false;
    }
    const int64_t begin = one.done.load(std::memory_order_relaxed);
    int64_t c = begin;
    for (; IsReady(part, c); ++c) {
      Recur(part, c, *asked_for ? kNone : next, worker, asked_for);
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
  // the worker that saw the chunk there before done with; the exchanges, each of which passes on what
  // was known to those before, tell this one.
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
  int64_t RoomIn(const Records& records) const {
    for (int64_t i = 0; i < kRecords; ++i) {
      if (IsDoneWith(records[static_cast<size_t>(i)])) return i;
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

  // Stages gate_cumsum and intra_chunk of a chunk. `asked_for`: Recur had it for what follows.
  void Prepare(Chunk c, bool asked_for, int64_t record, int32_t worker) const {
    if (SequenceOf(c.pair).length - c.chunk * kChunkRows <= 1) return;  // takes the decode step
    HeadChunk view = View(c);
    view.asked_for = asked_for;
    ChunkBuffers buffers;
    LayOutApart(run_.kernels.buffers, dims_, RecordAt(record), LocalOf(worker), &buffers);
    run_.kernels.gate_cumsum(view, buffers);
    run_.IntraChunk()(view, buffers);
    run_.kernels.decay_to_end(view, buffers, view.rows);
  }

  // Stages inter_chunk and output of a chunk, of a part of V. *asked_for: memory was asked for what
  // Prepare reads of `following`.
  void Recur(int64_t part, int64_t chunk, Chunk following, int32_t worker, bool* asked_for) const {
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
      if (following.pair >= 0) {
        upcoming = UpcomingOf(run_, SequenceOf(following.pair), HeadOf(following.pair),
                              following.chunk * kChunkRows);
        upcoming.v_rows = 0;
        upcoming.state = nullptr;
        *asked_for = true;
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
                  RecordAt(ReadyOf({pair, chunk}).record), LocalOf(worker), &buffers);
      run_.kernels.delta_rule(view, buffers, now, run_.solver());
      run_.kernels.output(view, buffers, now);
      ForEachCheckpoint(plan_, s, token, view.rows, &checkpoint, [&](int64_t row, int rows) {
        float* const room = LocalOf(worker) + layout_.local;
        const State at = {room, own.ld};
        ChunkBuffers of_checkpoint = buffers;
        LayOutEnd(run_.kernels.buffers, dims_, room + layout_.state, &of_checkpoint);
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

  float* RecordAt(int64_t record) const { return records_ + record * layout_.kept; }
  float* LocalOf(int32_t worker) const { return locals_ + worker * layout_.floats_per_worker(); }

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
};

}  // namespace

int64_t SplitParts(const kda_plan& plan) {
  const core::Problem& p = plan.problem;
  constexpr uint32_t kNeeded = KDA_SWITCH_FUSE | KDA_SWITCH_UNIFIED_LAYOUT;
  const bool suits = p.mode == KDA_PREFILL && (plan.execution.switches & kNeeded) == kNeeded &&
                     plan.execution.threads > 1 && plan.max_chunks > 1 &&
                     PairsOf(plan) <= kMostPairsPerThread * plan.execution.threads;
  if (!suits) return 0;
  const Chunks chunks(plan);
  double limit = kWorthwhile * TimeOfOnePass(plan, chunks);
  int64_t parts = 0;
  for (int64_t n = 1; n <= core::CeilDiv(p.dim_v, kFewestColumns); ++n) {
    if (core::CeilDiv(p.dim_v, WidthOf(p, n)) != n) continue;
    const double time = TimeOf(plan, chunks, n);
    if (time < limit) limit = kMorePartsWorthwhile * time, parts = n;
  }
  return parts;
}

int64_t SplitWorkers(const kda_plan& plan) {
  const Chunks chunks(plan);
  const ChunkTime chunk(plan.problem, plan.column_parts);
  const double all = chunk.all * static_cast<double>(chunks.total * plan.problem.value_heads);
  const double at_least = chunk.follow * static_cast<double>(std::max<int64_t>(chunks.longest, 1));
  return static_cast<int64_t>(std::ceil(all / at_least)) + 1;
}

int64_t SplitWorkspaceFloats(const kda_plan& plan) { return Layout(plan).floats(plan.workers); }

void RunSplit(const Run& run, float* workspace) { Split(run, workspace).RunAll(); }

}  // namespace kda::cpu
