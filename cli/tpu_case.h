// A problem in host memory as a TPU program takes it, and its outputs back.
#ifndef KDA_CLI_TPU_CASE_H_
#define KDA_CLI_TPU_CASE_H_

#include "cli/case.h"
#include "tpu/hlo/evaluator.h"
#include "tpu/problem.h"

namespace kda::cli {

struct TpuCase {
  tpu::TpuProblem problem;
  tpu::hlo::Arrays inputs;  // by the names that modules give them
};

// Packs batches end to end. Throws Error, naming the tensor, where no TPU kernel takes the problem:
// K = V = 128, as many value heads as heads, bf16 q, k and v.
TpuCase ToTpu(const Case& problem);

// Into memory that is allocated.
void TakeTpuOutputs(const tpu::hlo::Arrays& outputs, Case* problem);

// A dense tensor's elements, rounded to another dtype.
Tensor InDtype(const Tensor& tensor, kda_dtype dtype);

}  // namespace kda::cli

#endif  // KDA_CLI_TPU_CASE_H_
