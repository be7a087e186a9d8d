// fuse off: the four stages one after the other over all chunks, their results in memory between
// them. Value heads are taken in slabs so that the memory stays bounded.
#include <algorithm>
#include <cstring>

#include "cpu/forward.h"

namespace kda::cpu {

namespace {

// What a chunk of one head keeps between stages: linear in its 16-row-padded rows.
struct RecordSize {
  int64_t per_row, per_chunk;
};

RecordSize RecordOf(const core::Problem& problem) {
  const int64_t none = FloatsOf(Which::kStagedKept, DimsOf(problem, 0));
  const int64_t block = FloatsOf(Which::kStagedKept, DimsOf(problem, kBlockRows));
  return {(block - none) / kBlockRows, none};
}

int64_t FloatsPerHead(const kda_plan& plan) {
  const RecordSize record = RecordOf(plan.problem);
  int64_t rows = 0;
  for (const core::Sequence& s : plan.sequences) {
    if (!s.skip) rows += core::CeilDiv(s.length, kBlockRows) * kBlockRows;
  }
  return record.per_row * rows + record.per_chunk * static_cast<int64_t>(plan.chunks.size());
}

int64_t HeadsPerSlab(const kda_plan& plan) {
  const int64_t per_head = std::max<int64_t>(FloatsPerHead(plan), 1);
  return std::clamp<int64_t>(kMostKeptFloats / per_head, 1, plan.problem.value_heads);
}

int64_t LocalFloats(const kda_plan& plan) {
  // Without unified_layout the kept buffers have a local copy too.
  const bool unified = (plan.execution.switches & KDA_SWITCH_UNIFIED_LAYOUT) != 0;
  const ChunkDims dims = DimsOf(plan.problem, kChunkRows);
  return FloatsOf(unified ? Which::kStagedLocal : Which::kStagedAll, dims) +
         2 * StateFloats(plan.problem) + (unified ? 0 : TileFloats(plan.problem));
}

// One chunk of one head on its way through one stage.
struct Step {
  const core::Sequence* sequence;
  int64_t first;
  HeadChunk caller, chunk;
  ChunkBuffers buffers;  // what the stage works on
  ChunkBuffers record;   // what is kept
  ChunkDims dims;
  float* state;  // 2 states of scratch
};

class Staged {
 public:
  Staged(const Run& run, float* workspace)
      : run_(run),
        plan_(run.plan),
        record_(RecordOf(run.plan.problem)),
        per_head_(FloatsPerHead(run.plan)),
        local_floats_(LocalFloats(run.plan)),
        unified_(run.On(KDA_SWITCH_UNIFIED_LAYOUT)),
        locals_(workspace),
        records_(workspace + run.plan.workers * local_floats_) {}

  void RunSlab(int64_t first_head, int64_t heads) const {
    ForEachChunk(heads, [&](int64_t n, int64_t c, int64_t h, int32_t worker) {
      Step step = Begin(n, c, first_head, h, worker, kGateCumsum);
      run_.kernels.gate_cumsum(step.chunk, step.buffers);
      End(step, kGateCumsum);
    });
    ForEachChunk(heads, [&](int64_t n, int64_t c, int64_t h, int32_t worker) {
      Step step = Begin(n, c, first_head, h, worker, kIntraChunk);
      run_.IntraChunk()(step.chunk, step.buffers);
      run_.kernels.solve_uw(step.chunk, step.buffers, run_.solver());
      End(step, kIntraChunk);
    });
    const auto count = static_cast<int64_t>(plan_.sequences.size());
    ForEach(plan_, count * heads, [&](int64_t i, int32_t worker) {
      if (!Sequence(i / heads).skip) InterChunk(i / heads, first_head, i % heads, worker);
    });
    ForEachChunk(heads, [&](int64_t n, int64_t c, int64_t h, int32_t worker) {
      Step step = Begin(n, c, first_head, h, worker, kOutput);
      run_.kernels.output(step.chunk, step.buffers, {step.buffers.h, step.dims.ldv});
      if (!unified_) Scatter(step.chunk, step.caller);
    });
  }

 private:
  const core::Sequence& Sequence(int64_t n) const {
    return plan_.sequences[static_cast<size_t>(n)];
  }

  // body(sequence, chunk, head, worker) for every chunk that exists, in parallel.
  template <class Body>
  void ForEachChunk(int64_t heads, const Body& body) const {
    if (run_.On(KDA_SWITCH_FLAT_GRID)) {
      ForEach(plan_, static_cast<int64_t>(plan_.chunks.size()) * heads,
              [&](int64_t i, int32_t worker) {
                const core::ChunkRef& c = plan_.chunks[static_cast<size_t>(i / heads)];
                body(c.sequence, c.index, i % heads, worker);
              });
      return;
    }
    // The grid (N, heads, chunks of the longest sequence), empty steps included.
    const int64_t per_sequence = heads * plan_.max_chunks;
    ForEach(plan_, static_cast<int64_t>(plan_.sequences.size()) * per_sequence,
            [&](int64_t i, int32_t worker) {
              const int64_t n = i / per_sequence, c = i % plan_.max_chunks;
              if (Sequence(n).skip || c * kChunkRows >= Sequence(n).length) return;
              body(n, c, i % per_sequence / plan_.max_chunks, worker);
            });
  }

  float* RecordAt(int64_t n, int64_t c, int64_t h) const {
    const core::Sequence& s = Sequence(n);
    const int64_t rows = s.row_base + c * kChunkRows, chunks = s.chunk_base + c;
    return records_ + h * per_head_ + record_.per_row * rows + record_.per_chunk * chunks;
  }

  Step Begin(int64_t n, int64_t c, int64_t first_head, int64_t h, int32_t worker,
             Stage stage) const {
    Step step;
    step.sequence = &Sequence(n);
    step.first = c * kChunkRows;
    const int64_t rows = std::min<int64_t>(kChunkRows, step.sequence->length - step.first);
    step.dims = DimsOf(plan_.problem, rows);
    const int head = static_cast<int>(first_head + h);
    step.caller = ViewOf(run_, *step.sequence, head, step.first, static_cast<int>(rows));
    step.chunk = step.caller;
    float* local = locals_ + worker * local_floats_;
    step.state = local;
    local += 2 * StateFloats(plan_.problem);
    LayOut(Which::kStagedKept, step.dims, RecordAt(n, c, h), &step.record);
    step.buffers = step.record;
    if (unified_) {
      LayOut(Which::kStagedLocal, step.dims, local, &step.buffers);
      return step;
    }
    LayOut(Which::kStagedAll, step.dims, local, &step.buffers);
    for (const BufferRow& row : kBufferTable) {
      const bool kept = Includes(Which::kStagedKept, row);
      if (kept && (row.read_by & stage) != 0) Copy(row, step, step.record, step.buffers);
    }
    local += FloatsOf(Which::kStagedAll, DimsOf(plan_.problem, kChunkRows));
    step.chunk = Gather(step.caller, local);
    return step;
  }

  void End(const Step& step, Stage stage) const {
    if (unified_) return;
    for (const BufferRow& row : kBufferTable) {
      const bool kept = Includes(Which::kStagedKept, row);
      if (kept && row.written_by == stage) Copy(row, step, step.buffers, step.record);
    }
  }

  static void Copy(const BufferRow& row, const Step& step, const ChunkBuffers& from,
                   const ChunkBuffers& to) {
    std::memcpy(to.*row.member, from.*row.member,
                static_cast<size_t>(FloatsOf(row, step.dims)) * sizeof(float));
  }

  // The recurrence of one (sequence, head).
  void InterChunk(int64_t n, int64_t first_head, int64_t h, int32_t worker) const {
    const core::Sequence& s = Sequence(n);
    const core::Problem& p = plan_.problem;
    const int64_t ld = PaddedDim(p.dim_v);
    float* const scratch = locals_ + worker * local_floats_;
    StateCursor state;
    state.Begin(run_, s, static_cast<int>(first_head + h), scratch);
    int64_t checkpoint = s.checkpoint_begin;
    for (int64_t c = 0; c * kChunkRows < s.length; ++c) {
      Step step = Begin(n, c, first_head, h, worker, kInterChunk);
      const ConstState now = state.Now();
      for (int64_t r = 0; r < p.dim_k; ++r) {
        std::memcpy(step.buffers.h + r * ld, now.data + r * now.ld,
                    static_cast<size_t>(ld) * sizeof(float));
      }
      run_.kernels.delta_rule_uw(step.chunk, step.buffers, now);
      const State at = {scratch + StateFloats(p), ld};
      ForEachCheckpoint(plan_, s, step.first, step.chunk.rows, &checkpoint,
                        [&](int64_t row, int rows) {
                          run_.kernels.decay_to_end(step.chunk, step.buffers, rows);
                          run_.kernels.advance_state(step.chunk, step.buffers, rows, now, at);
                          state.StoreCheckpoint(row, {at.data, at.ld});
                        });
      const State next = state.Next(step.first + step.chunk.rows == s.length);
      run_.kernels.decay_to_end(step.chunk, step.buffers, step.chunk.rows);
      run_.kernels.advance_state(step.chunk, step.buffers, step.chunk.rows, now, next);
      state.Advanced(next);
      End(step, kInterChunk);
    }
    state.Finish();
  }

  const Run& run_;
  const kda_plan& plan_;
  const RecordSize record_;
  const int64_t per_head_, local_floats_;
  const bool unified_;
  float* const locals_;
  float* const records_;
};

}  // namespace

int64_t StagedWorkspaceFloats(const kda_plan& plan) {
  return plan.workers * LocalFloats(plan) + HeadsPerSlab(plan) * FloatsPerHead(plan);
}

void RunStaged(const Run& run, float* workspace) {
  const Staged staged(run, workspace);
  const int64_t heads = run.plan.problem.value_heads, slab = HeadsPerSlab(run.plan);
  for (int64_t head = 0; head < heads; head += slab) {
    staged.RunSlab(head, std::min(slab, heads - head));
  }
}

}  // namespace kda::cpu
