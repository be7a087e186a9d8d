// The reference backend: runs a plan with the fp64 recurrence, one (sequence, head) at a time.
#include <algorithm>
#include <cstring>

#include "core/float_mode.h"
#include "core/plan.h"
#include "reference/dtypes.h"
#include "reference/recurrence.h"

namespace kda::reference {
namespace {

using core::Buffers;
using core::Problem;
using core::Sequence;

constexpr int64_t kMaxWorkers = 1 << 16;

// What one worker needs, in its part of the workspace.
struct Scratch {
  double *state, *q, *k, *g, *v, *o;

  static int64_t Doubles(const Problem& p) { return p.dim_k * p.dim_v + 3 * p.dim_k + 2 * p.dim_v; }
  Scratch(const Problem& p, double* at)
      : state(at),
        q(state + p.dim_k * p.dim_v),
        k(q + p.dim_k),
        g(k + p.dim_k),
        v(g + p.dim_k),
        o(v + p.dim_v) {}
};

int64_t Workers(const kda_plan& plan) {
  const int64_t items = static_cast<int64_t>(plan.sequences.size()) * plan.problem.value_heads;
  return std::clamp<int64_t>(std::min<int64_t>(plan.execution.threads, items), 1, kMaxWorkers);
}

// Offset in elements of row (batch, token, head) of q, k, v, g, beta or o.
int64_t RowOf(const kda_tensor& t, const Sequence& s, int64_t token, int64_t head) {
  return s.batch * t.stride[0] + (s.first + token) * t.stride[1] + head * t.stride[2];
}

void LoadRow(const kda_tensor& t, const void* data, int64_t offset, int64_t size, double* row) {
  for (int64_t i = 0; i < size; ++i) row[i] = Load(t.dtype, data, offset + i);
}

// Element [row, head, c, j] of a state tensor, in either order.
int64_t StateElement(const Problem& p, const kda_tensor& t, int64_t base, int64_t c, int64_t j) {
  const bool key_major = p.state_order == KDA_STATE_KV;
  return base + c * t.stride[key_major ? 2 : 3] + j * t.stride[key_major ? 3 : 2];
}

void LoadState(const Problem& p, const void* data, int64_t row, int64_t head, double* state) {
  const kda_tensor& t = p.initial_state;
  const int64_t base = row * t.stride[0] + head * t.stride[1];
  for (int64_t c = 0; c < p.dim_k; ++c) {
    for (int64_t j = 0; j < p.dim_v; ++j) {
      state[c * p.dim_v + j] = Load(t.dtype, data, StateElement(p, t, base, c, j));
    }
  }
}

// Where a state goes: row `row`, head `head` of `tensor`.
struct StateSink {
  const kda_tensor& tensor;
  void* data;
  int64_t row, head;
};

void StoreState(const Problem& p, const double* state, const StateSink& to) {
  const int64_t base = to.row * to.tensor.stride[0] + to.head * to.tensor.stride[1];
  for (int64_t c = 0; c < p.dim_k; ++c) {
    for (int64_t j = 0; j < p.dim_v; ++j) {
      Store(to.tensor.dtype, to.data, StateElement(p, to.tensor, base, c, j),
            state[c * p.dim_v + j]);
    }
  }
}

// A sequence without tokens hands its state on. Bit for bit where the dtypes agree: the way over
// fp64 would turn a signalling NaN into a quiet one.
void CopyState(const Problem& p, const Buffers& b, const Sequence& s, int64_t head) {
  const kda_tensor &in = p.initial_state, &out = p.final_state;
  const int64_t from = s.initial_slot * in.stride[0] + head * in.stride[1];
  const int64_t to = s.final_slot * out.stride[0] + head * out.stride[1];
  const int64_t size = SizeOf(in.dtype);
  for (int64_t c = 0; c < p.dim_k; ++c) {
    for (int64_t j = 0; j < p.dim_v; ++j) {
      std::memmove(
          static_cast<char*>(b.final_state) + StateElement(p, out, to, c, j) * size,
          static_cast<const char*>(b.initial_state) + StateElement(p, in, from, c, j) * size,
          static_cast<size_t>(size));
    }
  }
}

// The token `t` of a sequence as the recurrence takes it, in `scratch`.
Token LoadToken(const Problem& p, const Buffers& b, const Sequence& s, int64_t head, int64_t t,
                const Scratch& scratch) {
  const int64_t qk_head = head / (p.value_heads / p.heads);
  LoadRow(p.q, b.q, RowOf(p.q, s, t, qk_head), p.dim_k, scratch.q);
  LoadRow(p.k, b.k, RowOf(p.k, s, t, qk_head), p.dim_k, scratch.k);
  LoadRow(p.v, b.v, RowOf(p.v, s, t, head), p.dim_v, scratch.v);
  LoadRow(p.g, b.g, RowOf(p.g, s, t, head), p.dim_k, scratch.g);
  if (p.qk_l2norm) {
    L2Normalize(p.dim_k, scratch.q);
    L2Normalize(p.dim_k, scratch.k);
  }
  const Gate gate = {p.gate, p.lower_bound};
  const double A_log =
      p.A_log.rank != 0 ? Load(p.A_log.dtype, b.A_log, head * p.A_log.stride[0]) : 0;
  for (int64_t c = 0; c < p.dim_k; ++c) {
    double x = scratch.g[c];
    if (p.dt_bias.rank != 0) {
      x += Load(p.dt_bias.dtype, b.dt_bias, head * p.dt_bias.stride[0] + c * p.dt_bias.stride[1]);
    }
    scratch.g[c] = LogDecay(gate, x, A_log);
  }
  const double beta = Load(p.beta.dtype, b.beta, RowOf(p.beta, s, t, head));
  return {scratch.q, scratch.k, scratch.v, scratch.g, p.beta_logits ? Sigmoid(beta) : beta};
}

// Decode over a window of m tokens gives what m calls of one token would: the state rounded to the
// dtype it is kept in after every token. 0: not rounded.
int32_t RoundedDtype(const Problem& p) {
  if (p.mode != KDA_DECODE) return 0;
  if (p.final_state.rank != 0) return p.final_state.dtype;
  if (p.checkpoints.rank != 0) return p.checkpoints.dtype;
  return p.initial_state.rank != 0 ? p.initial_state.dtype : 0;
}

void RunSequence(const kda_plan& plan, const Buffers& b, const Sequence& s, int64_t head,
                 const Scratch& scratch) {
  const Problem& p = plan.problem;
  const int64_t size = p.dim_k * p.dim_v;
  const bool has_final = p.final_state.rank != 0 && s.final_slot >= 0;
  if (s.length == 0 && has_final && s.initial_slot >= 0 &&
      p.initial_state.dtype == p.final_state.dtype) {
    return CopyState(p, b, s, head);
  }
  std::fill(scratch.state, scratch.state + size, 0.0);
  if (p.initial_state.rank != 0 && s.initial_slot >= 0) {
    LoadState(p, b.initial_state, s.initial_slot, head, scratch.state);
  }
  const int32_t rounded = RoundedDtype(p);
  int64_t row = s.checkpoint_begin;
  for (int64_t t = 0; t < s.length; ++t) {
    const Token token = LoadToken(p, b, s, head, t, scratch);
    Step({p.dim_k, p.dim_v}, token, p.scale, scratch.state, scratch.o);
    const int64_t to = RowOf(p.o, s, t, head);
    for (int64_t j = 0; j < p.dim_v; ++j) Store(p.o.dtype, b.o, to + j, scratch.o[j]);
    if (rounded != 0) {
      for (int64_t i = 0; i < size; ++i) scratch.state[i] = Round(rounded, scratch.state[i]);
    }
    if (row < s.checkpoint_end && plan.checkpoints[static_cast<size_t>(row)].token == t + 1) {
      StoreState(p, scratch.state, {p.checkpoints, b.checkpoints, row, head});
      ++row;
    }
  }
  if (has_final) StoreState(p, scratch.state, {p.final_state, b.final_state, s.final_slot, head});
}

bool MultipliesBf16(const kda_plan&) { return false; }

void Prepare(kda_plan* plan, std::string* notes) {
  plan->heads_per_step = 1;
  plan->workspace_size =
      static_cast<size_t>(Workers(*plan) * Scratch::Doubles(plan->problem)) * sizeof(double);
  *notes += "; recurrence in fp64";
}

struct Job {
  const kda_plan& plan;
  const Buffers& buffers;
  int64_t workers;
};

void RunWorker(void* argument, int32_t worker) {
  const core::FloatMode mode(core::Subnormals::kKeep);
  const Job& job = *static_cast<const Job*>(argument);
  const Problem& p = job.plan.problem;
  const Scratch scratch(
      p, reinterpret_cast<double*>(job.buffers.workspace) + worker * Scratch::Doubles(p));
  const int64_t items = static_cast<int64_t>(job.plan.sequences.size()) * p.value_heads;
  for (int64_t i = worker; i < items; i += job.workers) {
    const Sequence& s = job.plan.sequences[static_cast<size_t>(i / p.value_heads)];
    if (!s.skip) RunSequence(job.plan, job.buffers, s, i % p.value_heads, scratch);
  }
}

kda_status RunPlan(const kda_plan& plan, const Buffers& buffers, kda_error*) {
  Job job = {plan, buffers, Workers(plan)};
  core::Execute(plan.execution, static_cast<int32_t>(job.workers), RunWorker, &job);
  return KDA_OK;
}

}  // namespace
}  // namespace kda::reference

namespace kda::core {

const Backend& ReferenceBackend() {
  static const Backend backend = {reference::MultipliesBf16, reference::Prepare,
                                  reference::RunPlan};
  return backend;
}

}  // namespace kda::core
