// fuse on, and fewer (sequence, head) pairs than threads: gate_cumsum and intra_chunk of every
// chunk first, chunks being the units of work, then inter_chunk and output of every pair, the units
// being some columns of V: no column of the state, of v_new or of o depends on another. The same
// kernels on the same operands as in one pass, hence the same bits.
#include <algorithm>

#include "cpu/forward.h"

namespace kda::cpu {

namespace {

constexpr int64_t kFewestColumns = 32;

class Split {
 public:
  Split(const Run& run, float* workspace)
      : run_(run),
        plan_(run.plan),
        dims_(DimsOf(run.plan.problem, kChunkRows)),
        kept_(KeptFloats(run.kernels.buffers, dims_)),
        local_floats_(LocalFloats(run.plan)),
        locals_(workspace),
        records_(workspace + run.plan.workers * local_floats_) {}

  static int64_t LocalFloats(const kda_plan& plan) {
    const ChunkDims dims = DimsOf(plan.problem, kChunkRows);
    return LocalFloatsOf(KernelsFor(plan).buffers, dims) + StateFloats(plan.problem);
  }

  // Stages gate_cumsum and intra_chunk of chunk `c` of a head.
  void Prepare(int64_t c, int head, int32_t worker) const {
    const core::ChunkRef& ref = plan_.chunks[static_cast<size_t>(c)];
    const core::Sequence& s = plan_.sequences[static_cast<size_t>(ref.sequence)];
    const HeadChunk view = View(s, head, ref.index);
    if (view.rows == 1) return;  // takes the decode step
    ChunkBuffers buffers;
    LayOutApart(run_.kernels.buffers, dims_, RecordAt(c, head), locals_ + worker * local_floats_,
                &buffers);
    run_.kernels.gate_cumsum(view, buffers);
    const bool products = run_.On(KDA_SWITCH_SAFE_GATE);
    (products ? run_.kernels.intra_chunk_products : run_.kernels.intra_chunk_elementwise)(view,
                                                                                          buffers);
  }

  // Stages inter_chunk and output of columns [first, first + width) of one (sequence, head).
  void Recur(const core::Sequence& s, int head, int64_t first, int64_t width,
             int32_t worker) const {
    float* const local = locals_ + worker * local_floats_;
    float* const scratch = local + local_floats_ - StateFloats(plan_.problem);
    if (s.length == 0) {
      StateCursor state;
      if (first == 0) {
        state.Begin(run_, s, head, scratch);
        state.Finish();
      }
      return;
    }
    ConstState now = Initial(s, head, first, width, scratch);
    int64_t checkpoint = s.checkpoint_begin;
    for (int64_t c = 0; c * kChunkRows < s.length; ++c) {
      HeadChunk view = View(s, head, c);
      view.v.data += first * SizeOf(view.v.dtype);
      view.o += first * SizeOf(view.o_dtype);
      view.dim_v = static_cast<int>(width);
      view.more_rows = 0;  // the next chunk's gates are done with
      ChunkBuffers buffers;
      LayOutApart(run_.kernels.buffers, {dims_.ldk, PaddedDim(width), dims_.rows},
                  RecordAt(s.chunk_base + c, head), local, &buffers);
      const State next =
          Next(s, head, first, width, c * kChunkRows + view.rows == s.length, scratch);
      if (view.rows == 1) {
        run_.kernels.decode_token(view, 0, now, next);
        ForEachCheckpoint(plan_, s, c * kChunkRows, 1, &checkpoint, [&](int64_t row, int) {
          CopyState(next, CheckpointAt(row, head, first), width);
        });
      } else {
        run_.kernels.delta_rule(view, buffers, now, static_cast<Solver>(plan_.execution.solver));
        run_.kernels.output(view, buffers, now);
        ForEachCheckpoint(
            plan_, s, c * kChunkRows, view.rows, &checkpoint, [&](int64_t row, int rows) {
              AdvanceToCheckpoint(run_, view, buffers, rows, now, CheckpointAt(row, head, first));
            });
        run_.kernels.advance_state(buffers, view.dim_k, view.rows, now, next);
      }
      now = {next.data, next.ld};
    }
  }

 private:
  HeadChunk View(const core::Sequence& s, int head, int64_t chunk) const {
    const int64_t first = chunk * kChunkRows;
    const int64_t rows = std::min<int64_t>(kChunkRows, s.length - first);
    return ViewOf(run_, s, head, first, static_cast<int>(rows));
  }

  float* RecordAt(int64_t chunk, int head) const {
    return records_ + (chunk * plan_.problem.value_heads + head) * kept_;
  }

  ConstState Initial(const core::Sequence& s, int head, int64_t first, int64_t width,
                     float* scratch) const {
    const core::Problem& p = plan_.problem;
    if (s.initial_slot >= 0) {
      const char* const at =
          StateAt(p.initial_state, run_.buffers.initial_state, s.initial_slot, head);
      return {reinterpret_cast<const float*>(at) + first, p.dim_v};
    }
    std::fill_n(scratch, PaddedDim(p.dim_k) * PaddedDim(width), 0.0f);
    return {scratch, PaddedDim(width)};
  }

  State Next(const core::Sequence& s, int head, int64_t first, int64_t width, bool last,
             float* scratch) const {
    const core::Problem& p = plan_.problem;
    if (!last || s.final_slot < 0) return {scratch, PaddedDim(width)};
    char* const at = StateAt(p.final_state, run_.buffers.final_state, s.final_slot, head);
    return {reinterpret_cast<float*>(at) + first, p.dim_v};
  }

  State CheckpointAt(int64_t checkpoint, int head, int64_t first) const {
    const core::Problem& p = plan_.problem;
    char* const at = StateAt(p.checkpoints, run_.buffers.checkpoints, checkpoint, head);
    return {reinterpret_cast<float*>(at) + first, p.dim_v};
  }

  void CopyState(State from, State to, int64_t width) const {
    for (int64_t c = 0; c < plan_.problem.dim_k; ++c) {
      std::copy_n(from.data + c * from.ld, width, to.data + c * to.ld);
    }
  }

  const Run& run_;
  const kda_plan& plan_;
  const ChunkDims dims_;
  const int64_t kept_, local_floats_;
  float* const locals_;
  float* const records_;
};

int64_t RecordFloats(const kda_plan& plan) {
  const int64_t kept = KeptFloats(KernelsFor(plan).buffers, DimsOf(plan.problem, kChunkRows));
  return static_cast<int64_t>(plan.chunks.size()) * plan.problem.value_heads * kept;
}

}  // namespace

int64_t SplitParts(const kda_plan& plan, int64_t pairs) {
  const core::Problem& p = plan.problem;
  constexpr uint32_t kNeeded = KDA_SWITCH_FUSE | KDA_SWITCH_UNIFIED_LAYOUT;
  const bool suits = p.mode == KDA_PREFILL && (plan.execution.switches & kNeeded) == kNeeded &&
                     pairs > 0 && pairs < plan.execution.threads && plan.max_chunks > 1;
  if (!suits || RecordFloats(plan) > kMostKeptFloats) return 0;
  for (const kda_tensor* state : {&p.initial_state, &p.final_state, &p.checkpoints}) {
    if (state->rank != 0 && !IsDirect(p, *state)) return 0;
  }
  const int64_t wanted = core::CeilDiv(plan.execution.threads, pairs);
  return std::clamp<int64_t>(wanted, 1, core::CeilDiv(p.dim_v, kFewestColumns));
}

int64_t SplitWorkspaceFloats(const kda_plan& plan) {
  return plan.workers * Split::LocalFloats(plan) + RecordFloats(plan);
}

void RunSplit(const Run& run, float* workspace) {
  const kda_plan& plan = run.plan;
  const Split split(run, workspace);
  const int64_t heads = plan.problem.value_heads, parts = plan.column_parts;
  ForEach(plan, static_cast<int64_t>(plan.chunks.size()) * heads, [&](int64_t i, int32_t worker) {
    split.Prepare(i / heads, static_cast<int>(i % heads), worker);
  });
  // Parts of whole 16s, the last the shortest.
  const int64_t width =
      core::CeilDiv(core::CeilDiv(plan.problem.dim_v, parts), kDimAlign) * kDimAlign;
  ForEach(plan, static_cast<int64_t>(plan.sequences.size()) * heads * parts,
          [&](int64_t i, int32_t worker) {
            const core::Sequence& s = plan.sequences[static_cast<size_t>(i / (heads * parts))];
            const int64_t first = i % parts * width;
            if (s.skip || first >= plan.problem.dim_v) return;
            split.Recur(s, static_cast<int>(i / parts % heads), first,
                        std::min(width, plan.problem.dim_v - first), worker);
          });
}

}  // namespace kda::cpu
