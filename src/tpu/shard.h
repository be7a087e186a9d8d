// A program on several chips, heads shared out among them: no chip needs to know of another's, so
// none waits and nothing is sent.
//
// Each chip runs the same module on H / partitions heads. q, k, v, g, o [1, T, H, 128] and beta
// [1, T, H] are split along dimension 2, states and checkpoints [rows, H, 128, 128] along 1, A_log
// [H] and dt_bias [H, 128] along 0; every chip has the whole of cu_seqlens and the slots.
#ifndef KDA_TPU_SHARD_H_
#define KDA_TPU_SHARD_H_

#include <functional>

#include "tpu/hlo/module.h"
#include "tpu/ir/array.h"
#include "tpu/problem.h"

namespace kda::tpu {

// Builds the module of a problem, e.g. BuildDecode.
using ModuleBuilder = std::function<void(const TpuProblem&, hlo::Module*)>;

// Throws ir::BuildError where a chip's heads are not a multiple of 8, and what `build` throws. The
// module's nodes are one chip's (hlo/evaluator.h runs those), its text is the whole.
void BuildSharded(const TpuProblem& problem, int partitions, const ModuleBuilder& build,
                  hlo::Module* module);

// What one chip is given: the problem with its heads.
TpuProblem ShardOf(const TpuProblem& problem, int partitions);

// Part `part` of `parts` equal ones along a dimension, which they divide. Throws ir::BuildError for
// what is no such part.
ir::Array PartOf(const ir::Array& whole, int dimension, int parts, int part);
void PutPart(const ir::Array& from, int dimension, int parts, int part, ir::Array* whole);

}  // namespace kda::tpu

#endif  // KDA_TPU_SHARD_H_
