// How often the parts of a kernel program run for given lengths, as predictions weigh its schedule.
#ifndef KDA_TPU_COUNTS_H_
#define KDA_TPU_COUNTS_H_

#include "tpu/ir/counter.h"
#include "tpu/ir/program.h"
#include "tpu/problem.h"
#include "tpu/schedule/executions.h"

namespace kda::tpu {

// Runs the program's control flow (ir/counter.h) on the problem's lengths: cu_seqlens adds them up, the
// slots of sequence n are n. For kernels whose control flow depends on these alone; throws
// ir::EvaluationError where it depends on more.
ir::Counts CountProgram(const ir::Program& program, const TpuProblem& problem);

KernelCounts CountsOf(const ir::Counts& counts);

}  // namespace kda::tpu

#endif  // KDA_TPU_COUNTS_H_
