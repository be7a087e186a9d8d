// Runs kernel programs on the CPU, grid step by grid step, and refuses
// what a TPU would do silently.
//
// Arithmetic: f32 in fp32; bf16 in fp32 with every result rounded to nearest even; subnormals are
// zero on the way in and out of arithmetic (abs, select and moves keep them), as on the TPU.
// Division, square roots and reciprocals are IEEE's, exp2, log and tanh libm's; the approximate
// reciprocal is bf16's, as in JAX's emulation. Sums go up in index; a matrix product sums its
// products over k, from zero, in fp32, and then adds the accumulator: of bf16 operands, or of f32
// ones rounded to bf16, as the matrix unit does in one pass; with Precision::kF32 in plain fp32,
// not in the matrix unit's six passes. A reduction of bf16 is summed in fp32 and rounded once.
//
// Memory: everything starts as NaN (0x7fc0 in each half word) and unwritten. Windows are fetched
// a step ahead when pipelined, written back in the step after their last one; what lies outside
// the array is NaN on the way in and dropped on the way out. A copy is over when every byte
// started on its semaphore has been waited for: until then its destination is not read or
// written, its source not written. Copies carry what was never written along as such; a load of
// it is an error even where a mask drops it.
#ifndef KDA_TPU_IR_EVALUATOR_H_
#define KDA_TPU_IR_EVALUATOR_H_

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tpu/ir/array.h"
#include "tpu/ir/program.h"

namespace kda::tpu::ir {

// What a kernel must not do. The message names kernel, operation, label, node, grid step and place.
class EvaluationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct EvaluateOptions {
  // When copies move their bytes. Both are the same to a program that is free of races.
  enum class Copies { kAtWait, kAtStart };
  Copies copies = Copies::kAtWait;
  bool check_unwritten = true;  // loads of memory that was never written are errors
  bool check_races = true;      // so are accesses to memory that a copy is busy with
  // Called after each operation that gives a scalar or a vector.
  std::function<void(int node, const std::vector<int64_t>& step, const Array& value)> hook;
};

// `arguments`: what is prefetched, then the inputs. Gives the outputs; an output that shares memory
// with an input starts as it, others as NaN.
std::vector<Array> Evaluate(const Program& program, const std::vector<Array>& arguments,
                            const EvaluateOptions& options = {});

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_EVALUATOR_H_
