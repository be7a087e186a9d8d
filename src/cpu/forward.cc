#include "cpu/forward.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "core/tensor.h"

namespace kda::cpu {

// The kernels' headers take nothing from core; what both say must agree.
static_assert(kChunkRows == core::kChunk && kMaxDimPadded == core::kMaxDim);
static_assert(static_cast<int>(DType::kF32) == KDA_F32 &&
              static_cast<int>(DType::kF16) == KDA_F16 &&
              static_cast<int>(DType::kBF16) == KDA_BF16);
static_assert(static_cast<int>(Gate::kLog) == KDA_GATE_LOG &&
              static_cast<int>(Gate::kBounded) == KDA_GATE_BOUNDED &&
              static_cast<int>(Gate::kSoftplus) == KDA_GATE_SOFTPLUS);
static_assert(static_cast<int>(Solver::kSubstitution) == KDA_SOLVER_SUBSTITUTION &&
              static_cast<int>(Solver::kBlock) == KDA_SOLVER_BLOCK &&
              static_cast<int>(Solver::kNeumann64) == KDA_SOLVER_NEUMANN64);

namespace {

Rows RowsOf(const kda_tensor& t, const void* data, const core::Sequence& s, int64_t token,
            int64_t head) {
  const int64_t size = core::SizeOfDtype(t.dtype);
  const int64_t at = s.batch * t.stride[0] + (s.first + token) * t.stride[1] + head * t.stride[2];
  return {static_cast<const char*>(data) + at * size, t.stride[1] * size,
          static_cast<DType>(t.dtype)};
}

// q, k, v and g of a HeadChunk or an Upcoming.
template <class Chunk>
void PointToRows(const Run& run, const core::Sequence& s, int head, int64_t first, Chunk* chunk) {
  const core::Problem& p = run.plan.problem;
  const int64_t qk_head = head / (p.value_heads / p.heads);
  chunk->q = RowsOf(p.q, run.buffers.q, s, first, qk_head);
  chunk->k = RowsOf(p.k, run.buffers.k, s, first, qk_head);
  chunk->v = RowsOf(p.v, run.buffers.v, s, first, head);
  chunk->g = RowsOf(p.g, run.buffers.g, s, first, head);
}

}  // namespace

GateParams GateOf(const Run& run, int64_t head) {
  const core::Problem& p = run.plan.problem;
  constexpr double kLog2OfE = 1.4426950408889634;
  GateParams gate = {};
  gate.gate = static_cast<Gate>(p.gate);
  gate.mantissa = 1;
  gate.power[0] = gate.power[1] = 1;
  if (gate.gate == Gate::kLog) return gate;  // as it is given
  gate.bound = static_cast<float>(p.lower_bound);
  double a_log = 0;
  if (p.A_log.rank != 0) {
    a_log = static_cast<const float*>(run.buffers.A_log)[head * p.A_log.stride[0]];
  }
  const double log2 = std::clamp(a_log * kLog2OfE, -2000.0, 2000.0);
  const double exponent = std::floor(log2);
  gate.mantissa = static_cast<float>(std::exp2(log2 - exponent));
  gate.exponent = static_cast<float>(exponent);
  // Two factors within fp32 reach 2^+-250, beyond which the sigmoid of any fp32 number times this
  // is 0, 1/2 or 1. A NaN keeps to the mantissa.
  const int power = std::isnan(a_log) ? 0 : static_cast<int>(std::clamp(exponent, -250.0, 250.0));
  gate.power[0] = std::ldexp(1.0f, power / 2);
  gate.power[1] = std::ldexp(1.0f, power - power / 2);
  if (p.dt_bias.rank != 0) {
    gate.dt_bias = static_cast<const float*>(run.buffers.dt_bias) + head * p.dt_bias.stride[0];
  }
  return gate;
}

HeadChunk ViewOf(const Run& run, const core::Sequence& s, int head, int64_t first, int rows) {
  return ViewOf(run, s, head, GateOf(run, head), first, rows);
}

HeadChunk ViewOf(const Run& run, const core::Sequence& s, int head, const GateParams& gate,
                 int64_t first, int rows) {
  const core::Problem& p = run.plan.problem;
  HeadChunk view;
  view.rows = rows;
  view.dim_k = static_cast<int>(p.dim_k);
  view.dim_v = static_cast<int>(p.dim_v);
  view.asked_for = false;
  view.next = nullptr;
  PointToRows(run, s, head, first, &view);
  view.beta = RowsOf(p.beta, run.buffers.beta, s, first, head);
  view.gate = gate;
  view.beta_logits = p.beta_logits;
  view.qk_l2norm = p.qk_l2norm;
  view.scale = static_cast<float>(p.scale);
  const Rows o = RowsOf(p.o, run.buffers.o, s, first, head);
  view.o = const_cast<char*>(o.data);
  view.o_stride = o.stride;
  view.o_dtype = o.dtype;
  return view;
}

Upcoming UpcomingOf(const Run& run, const core::Sequence& s, int head, int64_t first) {
  const core::Problem& p = run.plan.problem;
  Upcoming next;
  next.rows = next.v_rows = static_cast<int>(std::min<int64_t>(s.length - first, kChunkRows));
  PointToRows(run, s, head, first, &next);
  if (first == 0 && s.initial_slot >= 0 && IsDirect(p, p.initial_state))
    next.state = StateAt(p.initial_state, run.buffers.initial_state, s.initial_slot, head);
  return next;
}

int64_t PaddedDim(int64_t dim) { return core::CeilDiv(dim, kDimAlign) * kDimAlign; }

ChunkDims DimsOf(const core::Problem& problem, int64_t rows) {
  return {PaddedDim(problem.dim_k), PaddedDim(problem.dim_v),
          core::CeilDiv(rows, kBlockRows) * kBlockRows};
}

int64_t StateFloats(const core::Problem& problem) {
  return PaddedDim(problem.dim_k) * PaddedDim(problem.dim_v);
}

StateShape ShapeOf(const core::Problem& problem, const kda_tensor& state) {
  return {static_cast<int>(problem.dim_k), static_cast<int>(problem.dim_v),
          static_cast<DType>(state.dtype), problem.state_order == KDA_STATE_VK};
}

bool IsDirect(const core::Problem& problem, const kda_tensor& state) {
  return state.dtype == KDA_F32 && problem.state_order == KDA_STATE_KV &&
         problem.dim_v % kDimAlign == 0;
}

const char* StateAt(const kda_tensor& tensor, const void* data, int64_t row, int head) {
  const int64_t size = core::SizeOfDtype(tensor.dtype);
  return static_cast<const char*>(data) + (row * tensor.stride[0] + head * tensor.stride[1]) * size;
}

char* StateAt(const kda_tensor& tensor, void* data, int64_t row, int head) {
  return const_cast<char*>(StateAt(tensor, static_cast<const void*>(data), row, head));
}

void StateCursor::Begin(const Run& run, const core::Sequence& sequence, int head, float* scratch) {
  run_ = &run;
  sequence_ = &sequence;
  head_ = head;
  scratch_ = scratch;
  const core::Problem& p = run.plan.problem;
  const int64_t ld = PaddedDim(p.dim_v);
  now_ = {scratch, ld};
  if (sequence.initial_slot < 0) {
    std::memset(scratch, 0, static_cast<size_t>(StateFloats(p)) * sizeof(float));
    return;
  }
  const char* const initial =
      StateAt(p.initial_state, run.buffers.initial_state, sequence.initial_slot, head);
  if (IsDirect(p, p.initial_state)) {
    now_ = {reinterpret_cast<const float*>(initial), p.dim_v};
  } else {
    run.kernels.load_state(ShapeOf(p, p.initial_state), initial, {scratch, ld});
  }
}

State StateCursor::Next(bool last) const {
  const core::Problem& p = run_->plan.problem;
  if (last && sequence_->final_slot >= 0 && IsDirect(p, p.final_state)) {
    char* const at =
        StateAt(p.final_state, run_->buffers.final_state, sequence_->final_slot, head_);
    return {reinterpret_cast<float*>(at), p.dim_v};
  }
  return {scratch_, PaddedDim(p.dim_v)};
}

void StateCursor::StoreCheckpoint(int64_t row, ConstState state) const {
  const core::Problem& p = run_->plan.problem;
  run_->kernels.store_state(ShapeOf(p, p.checkpoints), state,
                            StateAt(p.checkpoints, run_->buffers.checkpoints, row, head_));
}

void StateCursor::Finish() const {
  const core::Problem& p = run_->plan.problem;
  if (sequence_->final_slot < 0) return;
  char* const out = StateAt(p.final_state, run_->buffers.final_state, sequence_->final_slot, head_);
  const char* const now = reinterpret_cast<const char*>(now_.data);
  if (now == out) return;
  if (sequence_->length == 0 && sequence_->initial_slot >= 0 &&
      p.initial_state.dtype == p.final_state.dtype) {
    // Untouched, to the last bit of a NaN.
    const char* const in =
        StateAt(p.initial_state, run_->buffers.initial_state, sequence_->initial_slot, head_);
    const int64_t size = core::SizeOfDtype(p.final_state.dtype);
    if (in != out) std::memcpy(out, in, static_cast<size_t>(p.dim_k * p.dim_v * size));
    return;
  }
  run_->kernels.store_state(ShapeOf(p, p.final_state), now_, out);
}

void DecodeRow(const Run& run, const HeadChunk& row, ConstState now, State next) {
  TokenVectors vectors;
  const DecodeHead head = {row, now, next, &vectors};
  run.kernels.decode_token(&head, 1);
}

void AdvanceToCheckpoint(const Run& run, const HeadChunk& chunk, const ChunkBuffers& buffers,
                         int rows, ConstState now, State at) {
  if (rows == 1 && run.plan.bf16_products) {  // a last chunk of one row takes the decode step
    HeadChunk row = chunk;
    row.o = reinterpret_cast<char*>(buffers.row);
    DecodeRow(run, row, now, at);
  } else {
    run.kernels.decay_to_end(chunk, buffers, rows);
    run.kernels.advance_state(chunk, buffers, rows, now, at);
  }
}

int64_t TileFloats(const core::Problem& problem) {
  return kChunkRows * (3 * PaddedDim(problem.dim_k) + 2 * PaddedDim(problem.dim_v) + kDimAlign);
}

namespace {

// Copies rows of `count` elements into a dense tile and returns it.
Rows GatherRows(const Rows& from, int rows, int count, char* tile) {
  const int64_t size = SizeOf(from.dtype);
  for (int i = 0; i < rows; ++i) {
    std::memcpy(tile + i * count * size, from.data + i * from.stride,
                static_cast<size_t>(count * size));
  }
  return {tile, count * size, from.dtype};
}

}  // namespace

HeadChunk Gather(const HeadChunk& chunk, float* tiles) {
  const int64_t k = kChunkRows * PaddedDim(chunk.dim_k), v = kChunkRows * PaddedDim(chunk.dim_v);
  const auto at = [tiles](int64_t floats) { return reinterpret_cast<char*>(tiles + floats); };
  HeadChunk tile = chunk;
  tile.asked_for = true;
  tile.next = nullptr;
  tile.q = GatherRows(chunk.q, chunk.rows, chunk.dim_k, at(0));
  tile.k = GatherRows(chunk.k, chunk.rows, chunk.dim_k, at(k));
  tile.g = GatherRows(chunk.g, chunk.rows, chunk.dim_k, at(2 * k));
  tile.v = GatherRows(chunk.v, chunk.rows, chunk.dim_v, at(3 * k));
  tile.beta = GatherRows(chunk.beta, chunk.rows, 1, at(3 * k + v));
  tile.o = at(3 * k + v + kChunkRows * kDimAlign);
  tile.o_stride = int64_t{chunk.dim_v} * SizeOf(chunk.o_dtype);
  return tile;
}

void Scatter(const HeadChunk& tile, const HeadChunk& chunk) {
  for (int i = 0; i < chunk.rows; ++i) {
    std::memcpy(chunk.o + i * chunk.o_stride, tile.o + i * tile.o_stride,
                static_cast<size_t>(tile.o_stride));
  }
}

}  // namespace kda::cpu
