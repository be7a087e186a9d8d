#include "core/validate.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "core/limits.h"
#include "core/tensor.h"

namespace kda::core {

kda_status CopyStruct(const StructRule& rule, const void* caller, void* ours, kda_error* error) {
  size_t size;
  std::memcpy(&size, caller, sizeof size);
  const auto largest = static_cast<size_t>(LimitOf(Limit::kStructSize).max);
  if (size < rule.oldest || size > largest || size % sizeof(size_t) != 0) {
    return Fail(error, KDA_ERROR_STRUCT_SIZE, rule.name,
                "struct_size is %zu, must be a multiple of %zu from %zu to %zu (here %zu); "
                "kda_%s_init sets it",
                size, sizeof(size_t), rule.oldest, largest, rule.known, rule.name);
  }
  const auto* bytes = static_cast<const unsigned char*>(caller);
  for (size_t i = rule.known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return Fail(error, KDA_ERROR_STRUCT_SIZE, rule.name,
                "struct_size is %zu and byte %zu is %d: a field this library (version %s, %zu "
                "bytes) does not know must be zero",
                size, i, bytes[i], kda_version_string(), rule.known);
  }
  std::memcpy(ours, caller, std::min(size, rule.known));
  return KDA_OK;
}

namespace {

kda_status CheckEnum(const char* name, int32_t value, int32_t last, kda_error* error) {
  if (value >= 0 && value <= last) return KDA_OK;
  return Fail(error, KDA_ERROR_ENUM, name, "value is %d, must be from 0 to %d", value, last);
}

kda_status CheckEnums(const kda_problem& in, kda_error* error) {
  kda_status status = CheckEnum("mode", in.mode, KDA_DECODE, error);
  if (status == KDA_OK) status = CheckEnum("gate", in.gate, KDA_GATE_SOFTPLUS, error);
  if (status == KDA_OK) status = CheckEnum("state_order", in.state_order, KDA_STATE_VK, error);
  if (status == KDA_OK) status = CheckEnum("reserved", in.reserved, 0, error);
  if (status != KDA_OK) return status;
  constexpr uint64_t kKnown = KDA_FLAG_BETA_LOGITS | KDA_FLAG_QK_L2NORM;
  if ((in.flags & ~kKnown) != 0) {
    return Fail(error, KDA_ERROR_ENUM, "flags",
                "value is 0x%" PRIx64 ", of which 0x%" PRIx64
                " is unknown; known flags: 0x%" PRIx64,
                in.flags, in.flags & ~kKnown, kKnown);
  }
  return KDA_OK;
}

// The rules of the tensors along T. q gives B, T, H, K; v gives HV, V.
kda_status CheckTokenTensors(const kda_problem& in, Problem* p, kda_error* error) {
  const Axis any_b = {"B", 0, nullptr}, any_t = {"T", 0, nullptr};
  kda_status status = CheckTensor(
      {"q", kFloatDtypes, 4, {any_b, any_t, {"H", 0, nullptr}, {"K", 0, nullptr}}, 1, false}, in.q,
      &p->q, error);
  if (status != KDA_OK) return status;
  p->batch = p->q.shape[0];
  p->tokens = p->q.shape[1];
  p->heads = p->q.shape[2];
  p->dim_k = p->q.shape[3];
  const Axis b = {"B", p->batch, "q"}, t = {"T", p->tokens, "q"};
  const Axis h = {"H", p->heads, "q"}, k = {"K", p->dim_k, "q"};
  status = CheckTensor({"k", kFloatDtypes, 4, {b, t, h, k}, 1, false}, in.k, &p->k, error);
  if (status != KDA_OK) return status;
  if (p->q.dtype != p->k.dtype) {
    return Fail(error, KDA_ERROR_DTYPE, "k", "dtype is %s, must be %s, as that of q",
                kda_dtype_name(p->k.dtype), kda_dtype_name(p->q.dtype));
  }
  status =
      CheckTensor({"v", kFloatDtypes, 4, {b, t, {"HV", 0, nullptr}, {"V", 0, nullptr}}, 1, false},
                  in.v, &p->v, error);
  if (status != KDA_OK) return status;
  p->value_heads = p->v.shape[2];
  p->dim_v = p->v.shape[3];
  const Axis hv = {"HV", p->value_heads, "v"}, v = {"V", p->dim_v, "v"};
  status = CheckTensor({"g", kFloatDtypes, 4, {b, t, hv, k}, 1, false}, in.g, &p->g, error);
  if (status != KDA_OK) return status;
  status = CheckTensor({"beta", kFloatDtypes, 3, {b, t, hv}, 0, false}, in.beta, &p->beta, error);
  if (status != KDA_OK) return status;
  return CheckTensor({"o", kFloatDtypes, 4, {b, t, hv, v}, 1, true}, in.o, &p->o, error);
}

kda_status CheckSizes(const Problem& p, kda_error* error) {
  const struct {
    Limit limit;
    int64_t value;
    const char* argument;
  } sizes[] = {{Limit::kBatch, p.batch, "q"},
               {Limit::kTokens, p.tokens, "q"},
               {Limit::kHeads, p.heads, "q"},
               {Limit::kDimK, p.dim_k, "q"},
               {Limit::kValueHeads, p.value_heads, "v"},
               {Limit::kDimV, p.dim_v, "v"}};
  for (const auto& size : sizes) {
    const kda_status status =
        CheckLimit(size.limit, size.value, size.argument, KDA_ERROR_SHAPE, error);
    if (status != KDA_OK) return status;
  }
  if (p.value_heads % p.heads != 0) {
    return Fail(error, KDA_ERROR_SHAPE, "v",
                "value_heads is %" PRId64 ", must be a multiple of the %" PRId64 " heads of q",
                p.value_heads, p.heads);
  }
  // No overflow: the extents of o and v, which are not smaller, fit.
  return CheckLimit(Limit::kTokenHeads, p.batch * p.tokens * p.value_heads, "v", KDA_ERROR_OVERFLOW,
                    error);
}

kda_status CheckDtBias(const kda_tensor& in, Problem* p, kda_error* error) {
  if (in.rank != 1) {
    return CheckTensor(
        {"dt_bias", kF32Only, 2, {{"HV", p->value_heads, "v"}, {"K", p->dim_k, "q"}}, 1, false}, in,
        &p->dt_bias, error);
  }
  kda_tensor flat;
  const kda_status status = CheckTensor(
      {"dt_bias", kF32Only, 1, {{"HV * K", p->value_heads * p->dim_k, "v and q"}}, 1, false}, in,
      &flat, error);
  if (status != KDA_OK) return status;
  p->dt_bias = kda_dense(KDA_F32, 2, p->value_heads, p->dim_k, 0, 0);
  p->dt_bias.stride[0] = p->dim_k;
  p->dt_bias.stride[1] = 1;
  return KDA_OK;
}

kda_status CheckGate(const kda_problem& in, Problem* p, kda_error* error) {
  if (p->gate == KDA_GATE_LOG) {
    for (const auto& [tensor, name] :
         {std::make_pair(&in.A_log, "A_log"), std::make_pair(&in.dt_bias, "dt_bias")}) {
      if (tensor->rank == 0) continue;
      return Fail(error, KDA_ERROR_GATE, name,
                  "rank is %d, must be 0 (absent): with the log gate g is already activated; the "
                  "bounded and softplus gates take it",
                  tensor->rank);
    }
    return KDA_OK;
  }
  if (in.A_log.rank != 0) {
    const kda_status status =
        CheckTensor({"A_log", kF32Only, 1, {{"HV", p->value_heads, "v"}}, 0, false}, in.A_log,
                    &p->A_log, error);
    if (status != KDA_OK) return status;
  } else if (p->gate == KDA_GATE_SOFTPLUS) {
    return Fail(error, KDA_ERROR_GATE, "A_log",
                "rank is 0 (absent), must be 1: the softplus gate needs it");
  }
  if (in.dt_bias.rank != 0) {
    const kda_status status = CheckDtBias(in.dt_bias, p, error);
    if (status != KDA_OK) return status;
  }
  if (p->gate != KDA_GATE_BOUNDED) return KDA_OK;
  if (in.lower_bound == 1) {
    return Fail(error, KDA_ERROR_GATE, "lower_bound",
                "must be set, from %g to %g: it is 1, as kda_problem_init leaves it "
                "(-5: Kimi K3)",
                LimitOf(Limit::kLowerBound).min, LimitOf(Limit::kLowerBound).max);
  }
  p->lower_bound = in.lower_bound;
  return CheckLimit(Limit::kLowerBound, in.lower_bound, "lower_bound", KDA_ERROR_GATE, error);
}

}  // namespace

kda_status CheckProblem(const kda_problem& in, kda_plan* plan, kda_error* error) {
  Problem* const p = &plan->problem;
  kda_status status = CheckEnums(in, error);
  if (status == KDA_OK) status = CheckTokenTensors(in, p, error);
  if (status == KDA_OK) status = CheckSizes(*p, error);
  if (status != KDA_OK) return status;
  p->mode = static_cast<kda_mode>(in.mode);
  p->gate = static_cast<kda_gate>(in.gate);
  p->state_order = static_cast<kda_state_order>(in.state_order);
  p->beta_logits = (in.flags & KDA_FLAG_BETA_LOGITS) != 0;
  p->qk_l2norm = (in.flags & KDA_FLAG_QK_L2NORM) != 0;
  if (in.scale == KDA_DEFAULT_SCALE) {
    p->scale = 1.0 / std::sqrt(static_cast<double>(p->dim_k));
  } else {
    status = CheckLimit(Limit::kScale, in.scale, "scale", KDA_ERROR_OPTION, error);
    if (status != KDA_OK) return status;
    p->scale = in.scale;
  }
  return CheckGate(in, p, error);
}

}  // namespace kda::core
