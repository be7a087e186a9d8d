// The CPU backend: picks the kernels and the driver, sizes the workspace, runs.
#include <algorithm>
#include <string>

#include "core/isa.h"
#include "core/plan.h"
#include "cpu/forward.h"
#include "cpu/mma/tile.h"
#include "cpu/split_model.h"

namespace kda::cpu {

const Kernels& KernelsFor(const kda_plan& plan) {
  const core::Isa& isa = *core::Isas().Find(plan.execution.isa);
  return plan.bf16_products ? *isa.bf16_kernels : *isa.kernels;
}

namespace {

// Value heads a step handles with head_block. Measured on Zen 5 (docs/performance.md).
constexpr int32_t kHeadsPerStep = 2;
static_assert(kHeadsPerStep <= kMaxHeadsPerStep);

struct Driver {
  int64_t (*workspace_floats)(const kda_plan&);
  void (*run)(const Run&, float* workspace);
  const char* name;
};

Driver DriverFor(const kda_plan& plan) {
  if (plan.problem.mode == KDA_DECODE) return {DecodeWorkspaceFloats, RunDecode, "decode"};
  if (plan.column_parts > 0) return {SplitWorkspaceFloats, RunSplit, "chunks, then columns"};
  if ((plan.execution.switches & KDA_SWITCH_FUSE) != 0) {
    return {FusedWorkspaceFloats, RunFused, "one pass"};
  }
  return {StagedWorkspaceFloats, RunStaged, "four stages"};
}

std::string Counted(int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

void GiveUpHeadBlock(kda_plan* plan) {
  plan->heads_per_step = 1;
  plan->execution.switches &= ~KDA_SWITCH_HEAD_BLOCK;
  plan->execution.switches_fallback |= KDA_SWITCH_HEAD_BLOCK;
}

// As many heads a step as there may be, or one where that leaves the busiest thread fewer heads:
// step * ceil(sequences * ceil(heads / step) / threads), sequences taken to be of one length. The
// bits do not depend on it.
void ChooseHeadsPerStep(kda_plan* plan, std::string* notes) {
  core::Execution* const e = &plan->execution;
  plan->heads_per_step = 1;
  if ((e->switches & KDA_SWITCH_HEAD_BLOCK) == 0) return;
  const int64_t heads = plan->problem.value_heads, threads = e->threads;
  const auto live = static_cast<int64_t>(plan->live.size());
  const auto most = [&](int64_t step) {
    return step * core::CeilDiv(live * core::CeilDiv(heads, step), threads);
  };
  // A step past the last head is no work: one thread has the same either way.
  const bool even = threads == 1 || most(kHeadsPerStep) <= most(1);
  if (live > 0 && heads >= kHeadsPerStep && even) plan->heads_per_step = kHeadsPerStep;
  if (plan->heads_per_step > 1 || live == 0) return;
  GiveUpHeadBlock(plan);
  *notes += "; head_block off: " + Counted(heads, "value head") + " and " +
            Counted(live, "sequence") + " make one a step for " + Counted(threads, "thread");
}

// Steps of the stage that has most; there is no use for more workers.
int64_t StepsOf(const kda_plan& plan) {
  const int64_t heads = plan.problem.value_heads;
  const auto live = static_cast<int64_t>(plan.live.size());
  const bool staged =
      plan.problem.mode == KDA_PREFILL && (plan.execution.switches & KDA_SWITCH_FUSE) == 0;
  if (plan.column_parts > 0) return SplitWorkers(plan);
  if (!staged) return live * core::CeilDiv(heads, plan.heads_per_step);
  if ((plan.execution.switches & KDA_SWITCH_FLAT_GRID) == 0) {
    return heads * static_cast<int64_t>(plan.sequences.size()) *
           std::max<int64_t>(plan.max_chunks, 1);
  }
  return heads * std::max(live, static_cast<int64_t>(plan.chunks.size()));
}

// q, k and v are bf16, and what is asked for has a form with bf16 products.
bool MultipliesBf16(const kda_plan& plan) {
  const core::Problem& p = plan.problem;
  const core::Execution& e = plan.execution;
  const core::Isa& isa = *core::Isas().Find(e.isa);
  constexpr uint32_t kNeeded = KDA_SWITCH_FUSE | KDA_SWITCH_SAFE_GATE;
  return isa.bf16_kernels != nullptr && p.mode == KDA_PREFILL &&
         (e.switches & kNeeded) == kNeeded && e.solver != KDA_SOLVER_NEUMANN64 &&
         p.dim_k % kPanel == 0 && p.q.dtype == KDA_BF16 && p.v.dtype == KDA_BF16;
}

void Prepare(kda_plan* plan, std::string* notes) {
  int64_t row_base = 0;
  for (core::Sequence& s : plan->sequences) {
    s.row_base = row_base;
    if (s.skip) continue;
    row_base += core::CeilDiv(s.length, kBlockRows) * kBlockRows;
  }
  ChooseHeadsPerStep(plan, notes);
  plan->column_parts = static_cast<int32_t>(SplitParts(*plan));
  if (plan->column_parts > 0 && plan->heads_per_step > 1) {
    GiveUpHeadBlock(plan);
    *notes += "; head_block off: heads' chunks go apart";
  }
  plan->workers =
      static_cast<int32_t>(std::clamp<int64_t>(StepsOf(*plan), 1, plan->execution.threads));
  const Driver driver = DriverFor(*plan);
  plan->workspace_size = static_cast<size_t>(driver.workspace_floats(*plan)) * sizeof(float);
  *notes += std::string("; ") + driver.name;
  if (core::Isas().Find(plan->execution.isa)->bf16_kernels != nullptr) {
    *notes += plan->bf16_products ? ", bf16 products" : ", fp32 products";
  }
  if (plan->column_parts > 1) *notes += ", " + std::to_string(plan->column_parts) + " parts of V";
  if (plan->heads_per_step > 1) {
    *notes += ", " + std::to_string(plan->heads_per_step) + " heads a step";
  }
}

kda_status RunPlan(const kda_plan& plan, const core::Buffers& buffers, kda_error*) {
  const Run run = {plan, buffers, KernelsFor(plan)};
  DriverFor(plan).run(run, reinterpret_cast<float*>(buffers.workspace));
  return KDA_OK;
}

}  // namespace
}  // namespace kda::cpu

namespace kda::core {

const Backend& CpuBackend() {
  static const Backend backend = {cpu::MultipliesBf16, cpu::Prepare, cpu::RunPlan};
  return backend;
}

}  // namespace kda::core
