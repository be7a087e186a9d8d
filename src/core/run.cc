// kda_run: checks the pointers, zeroes the rows of `o` that belong to no sequence, and runs.
#include <cinttypes>
#include <cstring>
#include <exception>
#include <mutex>

#include "core/plan.h"
#include "core/tensor.h"
#include "core/validate.h"

namespace kda::core {
namespace {

constexpr StructRule kArgsRule = {"args", offsetof(kda_args, workspace), sizeof(kda_args)};

// A range of memory that a run reads or writes.
struct Span {
  const char* name;
  const void* data;
  int64_t bytes;      // 0: absent or empty
  int64_t alignment;  // bytes of an element
  bool written;

  uintptr_t begin() const { return reinterpret_cast<uintptr_t>(data); }
  uintptr_t end() const { return begin() + static_cast<uintptr_t>(bytes); }
};

constexpr int kTensors = 11;
constexpr int kInitialState = 7, kFinalState = 9;  // indices below
struct Spans {
  Span all[kTensors + 1];  // the tensors, then the workspace
};

Spans SpansOf(const Problem& p, const kda_args& a) {
  const auto span = [](const char* name, const kda_tensor& tensor, const void* data, bool written) {
    return Span{name, data, ExtentBytes(tensor), SizeOfDtype(tensor.dtype), written};
  };
  return {{span("q", p.q, a.q, false), span("k", p.k, a.k, false), span("v", p.v, a.v, false),
           span("g", p.g, a.g, false), span("beta", p.beta, a.beta, false),
           span("A_log", p.A_log, a.A_log, false), span("dt_bias", p.dt_bias, a.dt_bias, false),
           span("initial_state", p.initial_state, a.initial_state, false),
           span("o", p.o, a.o, true), span("final_state", p.final_state, a.final_state, true),
           span("checkpoints", p.checkpoints, a.checkpoints, true),
           Span{"workspace", nullptr, 0, 1, true}}};
}

kda_status CheckEnd(const Span& span, kda_error* error) {
  if (span.end() >= span.begin()) return KDA_OK;
  return Fail(error, KDA_ERROR_OVERFLOW, span.name,
              "%" PRId64 " bytes from %p on pass the end of memory", span.bytes, span.data);
}

kda_status CheckPointers(const Spans& spans, kda_error* error) {
  for (int i = 0; i < kTensors; ++i) {
    const Span& span = spans.all[i];
    if (span.bytes == 0) continue;
    if (span.data == nullptr) {
      return Fail(error, KDA_ERROR_NULL_POINTER, span.name,
                  "is NULL, must point to %" PRId64 " bytes", span.bytes);
    }
    if (span.begin() % static_cast<uintptr_t>(span.alignment) != 0) {
      return Fail(error, KDA_ERROR_ALIGNMENT, span.name,
                  "address is %p, must be a multiple of %" PRId64 ", the size of an element",
                  span.data, span.alignment);
    }
    const kda_status status = CheckEnd(span, error);
    if (status != KDA_OK) return status;
  }
  return KDA_OK;
}

// Sets the workspace's span. *own: the plan's is to be used.
kda_status CheckWorkspace(const kda_plan& plan, const kda_args& args, Span* span, bool* own,
                          kda_error* error) {
  *own = false;
  if (plan.workspace_size == 0) return KDA_OK;
  if (args.workspace == nullptr) {
    *own = plan.workspace != nullptr;
    if (*own) return KDA_OK;
    return Fail(error, KDA_ERROR_WORKSPACE, "workspace",
                "is NULL, must point to %zu bytes: the plan was made with "
                "KDA_OPTION_CALLER_WORKSPACE",
                plan.workspace_size);
  }
  if (args.workspace_size < plan.workspace_size) {
    return Fail(error, KDA_ERROR_WORKSPACE, "workspace_size", "value is %zu, must be at least %zu",
                args.workspace_size, plan.workspace_size);
  }
  const uintptr_t at = reinterpret_cast<uintptr_t>(args.workspace);
  if (at % kWorkspaceAlignment != 0) {
    return Fail(error, KDA_ERROR_WORKSPACE, "workspace", "address is %p, must be a multiple of %d",
                args.workspace, static_cast<int>(kWorkspaceAlignment));
  }
  *span = {"workspace", args.workspace, static_cast<int64_t>(plan.workspace_size),
           kWorkspaceAlignment, true};
  return CheckEnd(*span, error);
}

// What is written overlaps nothing else, but for final_state in place of initial_state.
kda_status CheckAliases(const Problem& p, const Spans& spans, kda_error* error) {
  for (int i = 0; i <= kTensors; ++i) {
    for (int j = 0; j < i; ++j) {
      const Span &a = spans.all[i], &b = spans.all[j];
      if (a.bytes == 0 || b.bytes == 0 || (!a.written && !b.written)) continue;
      if (a.end() <= b.begin() || b.end() <= a.begin()) continue;
      if (i == kFinalState && j == kInitialState && a.data == b.data &&
          SameLayout(p.initial_state, p.final_state)) {
        continue;
      }
      return Fail(error, KDA_ERROR_ALIAS, a.name,
                  "%" PRId64 " bytes at %p overlap %s, %" PRId64 " bytes at %p; must not%s",
                  a.bytes, a.data, b.name, b.bytes, b.data,
                  i == kFinalState && j == kInitialState
                      ? ", unless pointer, dtype, shape and strides are the same"
                      : "");
    }
  }
  return KDA_OK;
}

void ZeroRows(const Problem& p, void* o, int64_t batch, int64_t first, int64_t end) {
  const int64_t size = SizeOfDtype(p.o.dtype);
  const bool dense_heads = p.o.stride[2] == p.dim_v;
  const int64_t pieces = dense_heads ? 1 : p.value_heads;
  const auto bytes = static_cast<size_t>((dense_heads ? p.value_heads : 1) * p.dim_v * size);
  for (int64_t t = first; t < end; ++t) {
    for (int64_t h = 0; h < pieces; ++h) {
      const int64_t at = batch * p.o.stride[0] + t * p.o.stride[1] + h * p.o.stride[2];
      std::memset(static_cast<char*>(o) + at * size, 0, bytes);
    }
  }
}

void ZeroUnused(const kda_plan& plan, void* o) {
  for (const Sequence& s : plan.sequences) {
    if (s.skip) ZeroRows(plan.problem, o, s.batch, s.first, s.first + s.length);
  }
  for (int64_t b = 0; b < plan.problem.batch; ++b) {
    ZeroRows(plan.problem, o, b, plan.zero_from, plan.problem.tokens);
  }
}

kda_status Run(const kda_plan& plan, const kda_args& args, kda_error* error) {
  Spans spans = SpansOf(plan.problem, args);
  bool own;
  kda_status status = CheckPointers(spans, error);
  if (status == KDA_OK) {
    status = CheckWorkspace(plan, args, &spans.all[kTensors], &own, error);
  }
  if (status == KDA_OK) status = CheckAliases(plan.problem, spans, error);
  if (status != KDA_OK) return status;

  std::unique_lock<std::mutex> lock(plan.workspace_lock, std::defer_lock);
  if (own) lock.lock();
  void* const workspace = own ? plan.workspace : args.workspace;
  const Buffers buffers = {
      args.q,    args.k,           args.v,           args.g,
      args.beta, args.A_log,       args.dt_bias,     args.initial_state,
      args.o,    args.final_state, args.checkpoints, static_cast<char*>(workspace)};
  ZeroUnused(plan, args.o);
  return BackendOf(plan).run(plan, buffers, error);
}

}  // namespace
}  // namespace kda::core

extern "C" kda_status kda_run(const kda_plan* plan, const kda_args* args, kda_error* error) {
  using kda::core::Fail;
  if (plan == nullptr) {
    return Fail(error, KDA_ERROR_NULL_POINTER, "plan", "is NULL, must be given");
  }
  if (args == nullptr) {
    return Fail(error, KDA_ERROR_NULL_POINTER, "args", "is NULL, must be given");
  }
  try {
    kda_args ours;
    kda_args_init(&ours);
    const kda_status status = kda::core::CopyStruct(kda::core::kArgsRule, args, &ours, error);
    return status == KDA_OK ? kda::core::Run(*plan, ours, error) : status;
  } catch (const std::exception& e) {
    return Fail(error, KDA_ERROR_INTERNAL, "plan", "%s", e.what());
  } catch (...) {
    return Fail(error, KDA_ERROR_INTERNAL, "plan", "unknown exception");
  }
}
