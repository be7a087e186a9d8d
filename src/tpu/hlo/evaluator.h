// Runs a module on the CPU: its kernels by ir/evaluator.h, the operations around them plainly.
//
// f32 in fp32; bf16 in fp32, every result rounded to nearest even; i32 wraps. exp and logistic are
// libm's, sums go up in index. What no kernel has written is NaN.
#ifndef KDA_TPU_HLO_EVALUATOR_H_
#define KDA_TPU_HLO_EVALUATOR_H_

#include <map>
#include <string>

#include "tpu/hlo/module.h"
#include "tpu/ir/array.h"
#include "tpu/ir/evaluator.h"

namespace kda::tpu::hlo {

using Arrays = std::map<std::string, ir::Array>;  // by the name of an input or output

// Throws ir::EvaluationError for inputs that do not fit, and what the kernels throw.
Arrays Evaluate(const Module& module, const Arrays& inputs,
                const ir::EvaluateOptions& options = {});

}  // namespace kda::tpu::hlo

#endif  // KDA_TPU_HLO_EVALUATOR_H_
