// Making a plan and asking it questions: the C ABI but for kda_run.
#include "core/plan.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "core/limits.h"
#include "core/validate.h"

namespace kda::core {

const Backend& BackendOf(const kda_plan& plan) {
  return plan.execution.backend == KDA_BACKEND_REFERENCE ? ReferenceBackend() : CpuBackend();
}

namespace {

// Oldest callers: the structs end before the first field that has a default of its own.
constexpr StructRule kProblemRule = {"problem", offsetof(kda_problem, cu_seqlens),
                                     sizeof(kda_problem)};
constexpr StructRule kOptionsRule = {"options", offsetof(kda_options, executor),
                                     sizeof(kda_options)};
constexpr StructRule kInfoRule = {"plan_info", offsetof(kda_plan_info, workspace_size),
                                  sizeof(kda_plan_info)};

kda_status ReadStructs(const kda_problem* problem, const kda_options* options,
                       kda_problem* our_problem, kda_options* our_options, kda_error* error) {
  if (problem == nullptr) {
    return Fail(error, KDA_ERROR_NULL_POINTER, "problem", "is NULL, must be given");
  }
  kda_problem_init(our_problem);
  kda_options_init(our_options);
  const kda_status status = CopyStruct(kProblemRule, problem, our_problem, error);
  if (status != KDA_OK || options == nullptr) return status;
  return CopyStruct(kOptionsRule, options, our_options, error);
}

void AllocateWorkspace(kda_plan* plan) {
  // new char[] would zero nothing but promises no alignment: round up by hand.
  plan->workspace_storage.reset(new char[plan->workspace_size + kWorkspaceAlignment - 1]);
  const auto at = reinterpret_cast<uintptr_t>(plan->workspace_storage.get());
  plan->workspace = plan->workspace_storage.get() +
                    (kWorkspaceAlignment - at % kWorkspaceAlignment) % kWorkspaceAlignment;
}

// May throw std::bad_alloc.
kda_status Create(const kda_problem& problem, const kda_options& options, kda_plan* plan,
                  kda_error* error) {
  std::string reasons;
  const IsaChoice here = IsasHere();
  kda_status status = CheckProblem(problem, plan, error);
  if (status == KDA_OK) status = CheckOptions(options, here, plan, &reasons, error);
  if (status == KDA_OK) status = MakeSchedule(problem, plan, error);
  if (status == KDA_OK) status = ChooseProducts(options, here, plan, &reasons, error);
  if (status != KDA_OK) return status;
  BackendOf(*plan).prepare(plan, &reasons);
  plan->description = Describe(*plan) + reasons;
  const bool own = (options.flags & KDA_OPTION_CALLER_WORKSPACE) == 0;
  if (own && plan->workspace_size > 0) AllocateWorkspace(plan);
  if (plan->execution.executor.run == nullptr) EnsureThreads(plan->execution.threads);
  return KDA_OK;
}

}  // namespace
}  // namespace kda::core

extern "C" {

kda_status kda_plan_create(const kda_problem* problem, const kda_options* options, kda_plan** plan,
                           kda_error* error) {
  using kda::core::Fail;
  if (plan == nullptr) {
    return Fail(error, KDA_ERROR_NULL_POINTER, "plan", "is NULL, must be given");
  }
  try {
    kda_problem our_problem = {};
    kda_options our_options = {};
    kda_status status = kda::core::ReadStructs(problem, options, &our_problem, &our_options, error);
    if (status != KDA_OK) return status;
    auto created = std::make_unique<kda_plan>();
    status = kda::core::Create(our_problem, our_options, created.get(), error);
    if (status == KDA_OK) *plan = created.release();
    return status;
  } catch (const std::bad_alloc&) {
    return Fail(error, KDA_ERROR_OUT_OF_MEMORY, "plan", "out of memory while the plan is made");
  } catch (const std::exception& e) {
    return Fail(error, KDA_ERROR_INTERNAL, "plan", "%s", e.what());
  } catch (...) {
    return Fail(error, KDA_ERROR_INTERNAL, "plan", "unknown exception");
  }
}

void kda_plan_destroy(kda_plan* plan) { delete plan; }

kda_status kda_plan_get_info(const kda_plan* plan, kda_plan_info* info) {
  using kda::core::kInfoRule;
  using kda::core::Limit;
  using kda::core::LimitOf;
  if (plan == nullptr || info == nullptr) return KDA_ERROR_NULL_POINTER;
  const size_t size = info->struct_size;
  // What we do not know of a newer caller's struct it shall find zero: it may hold anything now.
  const auto largest = static_cast<size_t>(LimitOf(Limit::kStructSize).max);
  if (size < kInfoRule.oldest || size > largest || size % sizeof(size_t) != 0) {
    return KDA_ERROR_STRUCT_SIZE;
  }
  const kda::core::Execution& e = plan->execution;
  kda_plan_info ours;
  kda_plan_info_init(&ours);
  ours.struct_size = size;
  ours.backend = e.backend;
  ours.isa = e.isa;
  ours.solver = e.solver;
  ours.threads = e.threads;
  ours.switches = e.switches;
  ours.switches_fallback = e.switches_fallback;
  ours.workspace_size = plan->workspace_size;
  ours.sequences = static_cast<int64_t>(plan->sequences.size());
  ours.tokens = plan->sequence_tokens;
  ours.chunks = static_cast<int64_t>(plan->chunks.size());
  ours.checkpoints = static_cast<int64_t>(plan->checkpoints.size());
  ours.checkpoints_skipped =
      std::count_if(plan->checkpoints.begin(), plan->checkpoints.end(),
                    [](const kda::core::Checkpoint& c) { return !c.written; });
  ours.products = plan->bf16_products ? KDA_BF16 : KDA_F32;
  std::memset(info, 0, size);
  std::memcpy(info, &ours, std::min(size, kInfoRule.known));
  return KDA_OK;
}

const char* kda_plan_describe(const kda_plan* plan) {
  return plan == nullptr ? "" : plan->description.c_str();
}

kda_status kda_plan_checkpoint(const kda_plan* plan, int64_t row, int64_t* sequence, int64_t* token,
                               int32_t* written) {
  if (plan == nullptr) return KDA_ERROR_NULL_POINTER;
  if (row < 0 || row >= static_cast<int64_t>(plan->checkpoints.size())) return KDA_ERROR_CHECKPOINT;
  const kda::core::Checkpoint& checkpoint = plan->checkpoints[static_cast<size_t>(row)];
  if (sequence != nullptr) *sequence = checkpoint.sequence;
  if (token != nullptr) *token = checkpoint.token;
  if (written != nullptr) *written = checkpoint.written ? 1 : 0;
  return KDA_OK;
}

}  // extern "C"
