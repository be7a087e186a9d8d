// How often the parts of kernels run for given lengths, as predictions weigh their schedules.
#ifndef KDA_TPU_COUNTS_H_
#define KDA_TPU_COUNTS_H_

#include "tpu/hlo/module.h"
#include "tpu/ir/counter.h"
#include "tpu/ir/program.h"
#include "tpu/problem.h"
#include "tpu/schedule/executions.h"

namespace kda::tpu {

// Runs a kernel's control flow (ir/counter.h) on the problem's lengths: cu_seqlens adds them up,
// the slots of sequence n are n. Throws ir::EvaluationError where control flow depends on more.
ir::Counts CountProgram(const ir::Program& program, const TpuProblem& problem);

KernelCounts CountsOf(const ir::Counts& counts);

// Of every kernel of a module; what the kernels prefetch is computed from cu_seqlens and the
// slots as the module says.
CountsByKernel CountModule(const hlo::Module& module, const TpuProblem& problem);

}  // namespace kda::tpu

#endif  // KDA_TPU_COUNTS_H_
