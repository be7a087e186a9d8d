// fuse on, and fewer (sequence, head) pairs than threads: gate_cumsum and intra_chunk of some
// chunks of every pair first, chunks being the units of work, then inter_chunk and output of the
// same, the units being some columns of V: no column of the state, of v_new or of o depends on
// another. Then the next chunks, so that what is kept between the halves stays in cache. The same
// kernels on the same operands as in one pass, hence the same bits.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "cpu/forward.h"

namespace kda::cpu {

namespace {

// Chunks at a time, for each thread: what is kept of 16 (2.5 MB with bf16 products) is still in
// cache for the second half. T = 8192, H = 1, 2 threads, Zen 5, processor time: 10.8 ms with all
// chunks at a time, 8.7 with 32, 5.5 with 16 as with 8, and 4.6 in one pass.
constexpr int64_t kChunksPerThread = 16;

// What a chunk of one head takes, in units of one pass with K = V = 128: the first half, a column
// of the second, and what every part of the second does anew. Processor time on Zen 5 at T = 512 to
// 2048, H = 1, both kinds of products (since then the first half of bf16 products has grown by a tenth
// of a pass): 1.04 in all with 1 part, 1.06 to 1.1 with 2, 1.17 to 1.22
// with 4.
constexpr double kFirstHalf = 0.30, kColumn = 0.69 / 128, kPart = 0.05;
// Of the time of one pass. What the above leaves out, threads that wait for each other and for
// memory, must not eat up the gain.
constexpr double kWorthwhile = 0.85;
constexpr int64_t kFewestColumns = 32;  // of a part: half a tile of AVX-512's micro-kernels

int64_t KeptFloatsOf(const kda_plan& plan) {
  return KeptFloats(KernelsFor(plan).buffers, DimsOf(plan.problem, kChunkRows));
}

int64_t LocalFloatsOf(const kda_plan& plan) {
  return LocalFloats(KernelsFor(plan).buffers, DimsOf(plan.problem, kChunkRows));
}

// (sequence, head)s; at least 1.
int64_t PairsOf(const kda_plan& plan) {
  return std::max<int64_t>(static_cast<int64_t>(plan.live.size()) * plan.problem.value_heads, 1);
}

// Chunks of each pair between one half and the other.
int64_t ChunksAtATime(const kda_plan& plan, int64_t pairs) {
  const int64_t wanted = core::CeilDiv(kChunksPerThread * plan.execution.threads, pairs);
  const int64_t most = std::min(plan.max_chunks, kMostKeptFloats / (pairs * KeptFloatsOf(plan)));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
}

// Parts are whole 16s, the last the shortest.
int64_t WidthOf(const core::Problem& problem, int64_t parts) {
  return PaddedDim(core::CeilDiv(problem.dim_v, parts));
}

// How long `parts` parts of V take. `chunks`: of every sequence, in descending order.
double TimeOf(const kda_plan& plan, const std::vector<int64_t>& chunks, int64_t parts) {
  const core::Problem& p = plan.problem;
  const auto threads = static_cast<double>(plan.execution.threads);
  const double part = kColumn * static_cast<double>(WidthOf(p, parts)) + kPart;
  double time = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    // The chunks that sequences 0 .. i have and no other has.
    const int64_t count = chunks[i] - (i + 1 < chunks.size() ? chunks[i + 1] : 0);
    const auto pairs = static_cast<double>(static_cast<int64_t>(i + 1) * p.value_heads);
    const double rounds = std::ceil(pairs * static_cast<double>(parts) / threads);
    time += static_cast<double>(count) * (kFirstHalf * pairs / threads + rounds * part);
  }
  return time;
}

class Split {
 public:
  Split(const Run& run, float* workspace)
      : run_(run),
        plan_(run.plan),
        dims_(DimsOf(run.plan.problem, kChunkRows)),
        kept_(KeptFloatsOf(run.plan)),
        local_floats_(LocalFloatsOf(run.plan)),
        at_a_time_(ChunksAtATime(run.plan, PairsOf(run.plan))),
        locals_(workspace),
        states_(locals_ + run.plan.workers * local_floats_),
        records_(states_ + PairsOf(run.plan) * StateFloats(run.plan.problem)) {}

  void RunAll() const {
    const int64_t heads = plan_.problem.value_heads, parts = plan_.column_parts;
    const auto sequences = static_cast<int64_t>(plan_.live.size());
    const int64_t width = WidthOf(plan_.problem, parts);
    for (int64_t begin = 0; begin < plan_.max_chunks; begin += at_a_time_) {
      const int64_t end = std::min(begin + at_a_time_, plan_.max_chunks), count = end - begin;
      ForEach(plan_, sequences * heads * count, [&](int64_t i, int32_t worker) {
        const core::Sequence& s = LiveSequence(plan_, i / (heads * count));
        const int64_t chunk = begin + i / heads % count;
        if (chunk * kChunkRows >= s.length) return;
        Prepare(s, static_cast<int>(i % heads), chunk, worker);
      });
      ForEach(plan_, sequences * heads * parts, [&](int64_t i, int32_t worker) {
        const core::Sequence& s = LiveSequence(plan_, i / (heads * parts));
        const int64_t first = i % parts * width;
        const Columns columns = {first, std::min(width, plan_.problem.dim_v - first)};
        Recur(s, static_cast<int>(i / parts % heads), columns, begin, end, worker);
      });
    }
  }

 private:
  struct Columns {
    int64_t first, width;
  };

  // Stages gate_cumsum and intra_chunk of a chunk of a head.
  void Prepare(const core::Sequence& s, int head, int64_t chunk, int32_t worker) const {
    const HeadChunk view = View(s, head, chunk);
    if (view.rows == 1) return;  // takes the decode step
    ChunkBuffers buffers;
    LayOutApart(run_.kernels.buffers, dims_, RecordAt(s, head, chunk),
                locals_ + worker * local_floats_, &buffers);
    run_.kernels.gate_cumsum(view, buffers);
    run_.IntraChunk()(view, buffers);
  }

  // Stages inter_chunk and output of chunks [begin, end), of those there are, of some columns of
  // one (sequence, head).
  void Recur(const core::Sequence& s, int head, Columns columns, int64_t begin, int64_t end,
             int32_t worker) const {
    float* const scratch = OwnState(s, head);
    if (s.length == 0) {
      if (begin > 0 || columns.first > 0) return;
      StateCursor state;
      state.Begin(run_, s, head, scratch);
      state.Finish();
      return;
    }
    const State own = {scratch + PaddedDim(plan_.problem.dim_k) * columns.first,
                       PaddedDim(columns.width)};
    ConstState now = begin == 0 ? Initial(s, head, columns, own) : ConstState{own.data, own.ld};
    int64_t checkpoint = CheckpointAfter(s, begin * kChunkRows);
    for (int64_t c = begin; c < end && c * kChunkRows < s.length; ++c) {
      HeadChunk view = View(s, head, c);
      view.v.data += columns.first * SizeOf(view.v.dtype);
      view.o += columns.first * SizeOf(view.o_dtype);
      view.dim_v = static_cast<int>(columns.width);
      ChunkBuffers buffers;
      LayOutApart(run_.kernels.buffers, {dims_.ldk, own.ld, dims_.rows}, RecordAt(s, head, c),
                  locals_ + worker * local_floats_, &buffers);
      const bool last = c * kChunkRows + view.rows == s.length;
      const State next = last ? Final(s, head, columns, own) : own;
      if (view.rows == 1) {
        DecodeRow(run_, view, now, next);
        ForEachCheckpoint(plan_, s, c * kChunkRows, 1, &checkpoint, [&](int64_t row, int) {
          CopyState(next, CheckpointAt(row, head, columns), columns.width);
        });
      } else {
        run_.kernels.delta_rule(view, buffers, now, run_.solver());
        run_.kernels.output(view, buffers, now);
        ForEachCheckpoint(
            plan_, s, c * kChunkRows, view.rows, &checkpoint, [&](int64_t row, int rows) {
              AdvanceToCheckpoint(run_, view, buffers, rows, now, CheckpointAt(row, head, columns));
            });
        run_.kernels.advance_state(view, buffers, view.rows, now, next);
      }
      now = {next.data, next.ld};
    }
  }

  HeadChunk View(const core::Sequence& s, int head, int64_t chunk) const {
    const int64_t first = chunk * kChunkRows;
    const int64_t rows = std::min<int64_t>(kChunkRows, s.length - first);
    return ViewOf(run_, s, head, first, static_cast<int>(rows));
  }

  int64_t PairOf(const core::Sequence& s, int head) const {
    return s.live_base * plan_.problem.value_heads + head;
  }
  float* RecordAt(const core::Sequence& s, int head, int64_t chunk) const {
    return records_ + (PairOf(s, head) * at_a_time_ + chunk % at_a_time_) * kept_;
  }
  // Of a pair, part by part.
  float* OwnState(const core::Sequence& s, int head) const {
    return states_ + PairOf(s, head) * StateFloats(plan_.problem);
  }

  // Columns of a state in the caller's memory.
  State Direct(const kda_tensor& tensor, void* data, int64_t row, int head, Columns columns) const {
    char* const at = StateAt(tensor, data, row, head);
    return {reinterpret_cast<float*>(at) + columns.first, plan_.problem.dim_v};
  }
  ConstState Initial(const core::Sequence& s, int head, Columns columns, State own) const {
    if (s.initial_slot < 0) {
      std::fill_n(own.data, PaddedDim(plan_.problem.dim_k) * own.ld, 0.0f);
      return {own.data, own.ld};
    }
    const kda_tensor& tensor = plan_.problem.initial_state;
    const char* const at = StateAt(tensor, run_.buffers.initial_state, s.initial_slot, head);
    return {reinterpret_cast<const float*>(at) + columns.first, plan_.problem.dim_v};
  }
  State Final(const core::Sequence& s, int head, Columns columns, State own) const {
    if (s.final_slot < 0) return own;
    return Direct(plan_.problem.final_state, run_.buffers.final_state, s.final_slot, head, columns);
  }
  State CheckpointAt(int64_t row, int head, Columns columns) const {
    return Direct(plan_.problem.checkpoints, run_.buffers.checkpoints, row, head, columns);
  }

  // The first checkpoint after token `token`.
  int64_t CheckpointAfter(const core::Sequence& s, int64_t token) const {
    const auto all = plan_.checkpoints.begin();
    const auto is_before = [token](const core::Checkpoint& c) { return c.token <= token; };
    return std::partition_point(all + s.checkpoint_begin, all + s.checkpoint_end, is_before) - all;
  }

  void CopyState(State from, State to, int64_t width) const {
    for (int64_t c = 0; c < plan_.problem.dim_k; ++c) {
      std::copy_n(from.data + c * from.ld, width, to.data + c * to.ld);
    }
  }

  const Run& run_;
  const kda_plan& plan_;
  const ChunkDims dims_;
  const int64_t kept_, local_floats_, at_a_time_;
  float* const locals_;
  float* const states_;
  float* const records_;
};

}  // namespace

int64_t SplitParts(const kda_plan& plan) {
  const core::Problem& p = plan.problem;
  constexpr uint32_t kNeeded = KDA_SWITCH_FUSE | KDA_SWITCH_UNIFIED_LAYOUT;
  const bool suits = p.mode == KDA_PREFILL && (plan.execution.switches & kNeeded) == kNeeded &&
                     PairsOf(plan) < plan.execution.threads && plan.max_chunks > 1;
  if (!suits) return 0;
  for (const kda_tensor* state : {&p.initial_state, &p.final_state, &p.checkpoints}) {
    if (state->rank != 0 && !IsDirect(p, *state)) return 0;
  }
  std::vector<int64_t> chunks;
  for (const int64_t n : plan.live) {
    const core::Sequence& s = plan.sequences[static_cast<size_t>(n)];
    chunks.push_back(core::CeilDiv(s.length, kChunkRows));
  }
  std::sort(chunks.begin(), chunks.end(), std::greater<>());
  // Every pair has a thread: the longest decides.
  const double one_pass = kFirstHalf + kColumn * static_cast<double>(PaddedDim(p.dim_v));
  double best = kWorthwhile * one_pass * static_cast<double>(chunks.front());
  int64_t parts = 0;
  for (int64_t n = 1; n <= core::CeilDiv(p.dim_v, kFewestColumns); ++n) {
    if (core::CeilDiv(p.dim_v, WidthOf(p, n)) != n) continue;
    const double time = TimeOf(plan, chunks, n);
    if (time < best) best = time, parts = n;
  }
  return parts;
}

int64_t SplitWorkspaceFloats(const kda_plan& plan) {
  const int64_t pairs = PairsOf(plan);
  return plan.workers * LocalFloatsOf(plan) +
         pairs * (StateFloats(plan.problem) + ChunksAtATime(plan, pairs) * KeptFloatsOf(plan));
}

void RunSplit(const Run& run, float* workspace) { Split(run, workspace).RunAll(); }

}  // namespace kda::cpu
