// The CPU backend: picks the kernels and the driver, sizes the workspace, runs.
#include <algorithm>
#include <limits>

#include "core/plan.h"
#include "cpu/forward.h"

namespace kda::cpu {

const Kernels& KernelsFor(kda_isa isa) {
  switch (isa) {
    case KDA_ISA_AVX512:
      return kAvx512Kernels;
    case KDA_ISA_AVX2:
      return kAvx2Kernels;
    default:
      return kBaselineKernels;
  }
}

namespace {

// Value heads a step handles with head_block. Measured on Zen 5 (docs/performance.md).
constexpr int32_t kHeadsPerStep = 2;

struct Driver {
  int64_t (*workspace_floats)(const kda_plan&);
  void (*run)(const Run&, float* workspace);
  const char* name;
};

Driver DriverFor(const kda_plan& plan) {
  if (plan.problem.mode == KDA_DECODE) return {DecodeWorkspaceFloats, RunDecode, "decode"};
  if ((plan.execution.switches & KDA_SWITCH_FUSE) != 0) {
    return {FusedWorkspaceFloats, RunFused, "one pass"};
  }
  return {StagedWorkspaceFloats, RunStaged, "four stages"};
}

void Prepare(kda_plan* plan) {
  int64_t row_base = 0, live = 0;
  for (core::Sequence& s : plan->sequences) {
    s.row_base = row_base;
    if (s.skip) continue;
    ++live;
    row_base += core::CeilDiv(s.length, kBlockRows) * kBlockRows;
  }
  const int64_t heads = plan->problem.value_heads;
  plan->heads_per_step = 1;
  if ((plan->execution.switches & KDA_SWITCH_HEAD_BLOCK) != 0) {
    // Fewer heads a step where there would be too few steps to keep the threads busy; the bits do
    // not depend on it.
    const int64_t per_thread = live * heads / std::max(plan->execution.threads, 1);
    plan->heads_per_step = static_cast<int32_t>(
        std::clamp<int64_t>(std::min<int64_t>(per_thread, kHeadsPerStep), 1, heads));
  }
  const Driver driver = DriverFor(*plan);
  plan->workspace_size = static_cast<size_t>(driver.workspace_floats(*plan)) * sizeof(float);
  plan->description += std::string("; ") + driver.name;
}

kda_status RunPlan(const kda_plan& plan, const core::Buffers& buffers, kda_error*) {
  const Run run = {plan, buffers, KernelsFor(plan.execution.isa)};
  DriverFor(plan).run(run, reinterpret_cast<float*>(buffers.workspace));
  return KDA_OK;
}

}  // namespace
}  // namespace kda::cpu

namespace kda::core {

const Backend& CpuBackend() {
  static const Backend backend = {cpu::Prepare, cpu::RunPlan};
  return backend;
}

}  // namespace kda::core
