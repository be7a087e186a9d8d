#include "cli/tpu_case.h"

#include <cstring>

#include "cli/error.h"

namespace kda::cli {

namespace {

using tpu::ir::Array;
using tpu::ir::DType;
using tpu::ir::Shape;

DType DtypeOf(const char* name, const Tensor& tensor, bool fp32) {
  if (tensor.layout.dtype == KDA_BF16) return DType::kBF16;
  if (tensor.layout.dtype == KDA_F32 && fp32) return DType::kF32;
  BadArgument("{}: dtype {}; TPU kernels take {}", name, SafetensorsDtype(tensor.layout.dtype),
              fp32 ? "BF16 or F32" : "BF16");
}

void CheckShapes(const Case& problem) {
  if (problem.dim_k() != tpu::kDim || problem.dim_v() != tpu::kDim) {
    BadArgument("q, v: K = {} and V = {}; TPU kernels take 128", problem.dim_k(), problem.dim_v());
  }
  if (problem.value_heads() != problem.heads()) {
    BadArgument("v: {} value heads, {} heads; TPU kernels take as many of one as of the other",
                problem.value_heads(), problem.heads());
  }
  if (problem.state_order != KDA_STATE_KV) {
    BadArgument("--state-layout: TPU kernels take kv only");
  }
  if (problem.has_initial.present()) BadArgument("has_initial: TPU kernels do not take it");
  if (problem.checkpoint_tokens.present()) {
    BadArgument("checkpoint_tokens: TPU kernels take --checkpoint-every only");
  }
}

Array Copy(const Tensor& tensor, DType dtype, const Shape& shape) {
  Array array(dtype, shape);
  if ((dtype == DType::kBF16) == (tensor.layout.dtype == KDA_BF16)) {
    std::memcpy(array.data(), tensor.data, static_cast<size_t>(array.byte_count()));
    return array;
  }
  for (int64_t i = 0; i < array.size(); ++i) {
    array.Set(i, LoadElement(tensor.data, tensor.layout.dtype, i));
  }
  return array;
}

Array Indices(const std::vector<int64_t>& values) {
  return Array::I32({static_cast<int64_t>(values.size())},
                    std::vector<int32_t>(values.begin(), values.end()));
}

int64_t IndexAt(const Tensor& index, int64_t i) {
  if (index.layout.dtype == KDA_I32) return reinterpret_cast<const int32_t*>(index.data)[i];
  return reinterpret_cast<const int64_t*>(index.data)[i];
}

void AddStates(const Case& problem, TpuCase* out) {
  tpu::TpuProblem& p = out->problem;
  p.initial_state = problem.initial_state.present();
  if (problem.slots.present()) {
    std::vector<int64_t> slots;
    for (int64_t n = 0; n < p.sequences; ++n) slots.push_back(IndexAt(problem.slots, n));
    p.slots = problem.final_state.layout.shape[0];
    out->inputs["initial_slots"] = out->inputs["final_slots"] = Indices(slots);
  }
  if (!p.initial_state) return;
  const Tensor& state = problem.initial_state;
  if (state.layout.dtype != KDA_F32 && state.layout.dtype != KDA_BF16) {
    DtypeOf("initial_state", state, true);
  }
  out->inputs["initial_state"] =
      Copy(state, DType::kF32, {state.shape(0), p.heads, tpu::kDim, tpu::kDim});
}

}  // namespace

TpuCase ToTpu(const Case& problem) {
  CheckShapes(problem);
  TpuCase out;
  tpu::TpuProblem& p = out.problem;
  p.tokens = problem.batch() * problem.tokens();
  p.heads = problem.heads();
  std::vector<int64_t> offsets = {0};
  for (const Span& span : Spans(problem)) {
    p.lengths.push_back(span.length);
    offsets.push_back(offsets.back() + span.length);
  }
  p.sequences = static_cast<int64_t>(p.lengths.size());
  if (p.tokens < 1 || p.sequences < 1) BadArgument("q: no tokens; TPU kernels need some");
  p.gate = problem.gate;
  p.lower_bound = problem.lower_bound;
  p.has_a_log = problem.A_log.present();
  p.has_dt_bias = problem.dt_bias.present();
  p.qk_l2norm = (problem.flags & KDA_FLAG_QK_L2NORM) != 0;
  p.beta_logits = (problem.flags & KDA_FLAG_BETA_LOGITS) != 0;
  if (problem.scale != KDA_DEFAULT_SCALE) p.scale = problem.scale;
  p.checkpoint_every = problem.checkpoint_every;
  p.gate_dtype = DtypeOf("g", problem.g, true);
  p.beta_dtype = DtypeOf("beta", problem.beta, true);

  const Shape rows = {1, p.tokens, p.heads, tpu::kDim};
  out.inputs["q"] = Copy(problem.q, DtypeOf("q", problem.q, false), rows);
  out.inputs["k"] = Copy(problem.k, DtypeOf("k", problem.k, false), rows);
  out.inputs["v"] = Copy(problem.v, DtypeOf("v", problem.v, false), rows);
  out.inputs["g"] = Copy(problem.g, p.gate_dtype, rows);
  out.inputs["beta"] = Copy(problem.beta, p.beta_dtype, {1, p.tokens, p.heads});
  out.inputs["cu_seqlens"] = Indices(offsets);
  if (p.has_a_log) out.inputs["A_log"] = Copy(problem.A_log, DType::kF32, {p.heads});
  if (p.has_dt_bias) {
    out.inputs["dt_bias"] = Copy(problem.dt_bias, DType::kF32, {p.heads, tpu::kDim});
  }
  if (problem.o.layout.dtype != KDA_BF16) {
    BadArgument("--out-dtype: TPU kernels write bf16 only");
  }
  AddStates(problem, &out);
  return out;
}

Tensor InDtype(const Tensor& tensor, kda_dtype dtype) {
  if (!tensor.present() || tensor.layout.dtype == dtype) return tensor;
  const int64_t* const shape = tensor.layout.shape;
  Tensor result = NewTensor(dtype, {shape, shape + tensor.layout.rank});
  for (int64_t i = 0; i < tensor.Elements(); ++i) {
    StoreElement(result.data, dtype, i, LoadElement(tensor.data, tensor.layout.dtype, i));
  }
  return result;
}

void TakeTpuOutputs(const tpu::hlo::Arrays& outputs, Case* problem) {
  const auto take = [&](const char* name, Tensor* tensor) {
    const auto it = outputs.find(name);
    if (!tensor->present() || it == outputs.end()) return;
    // Of checkpoints there may be more rows than are written.
    for (int64_t i = 0; i < tensor->Elements(); ++i) {
      StoreElement(tensor->data, tensor->layout.dtype, i, it->second.Get(i));
    }
  };
  take("o", &problem->o);
  take("final_state", &problem->final_state);
  take("checkpoints", &problem->checkpoints);
}

}  // namespace kda::cli
