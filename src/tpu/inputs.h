// What varies from call to call and goes into the addresses of copies, where a chip checks nothing.
#ifndef KDA_TPU_INPUTS_H_
#define KDA_TPU_INPUTS_H_

#include "tpu/hlo/evaluator.h"
#include "tpu/hlo/module.h"

namespace kda::tpu {

// Checks cu_seqlens and the slots of a KDA module (mega.h, decode.h, ladder.h) against what
// these ask for; its tokens and slots are those of the module's arrays. Throws
// ir::BuildError, one line with the input, its value and what is allowed. Inputs that the
// module does not have are not looked at.
void CheckInputs(const hlo::Module& module, const hlo::Arrays& inputs);

}  // namespace kda::tpu

#endif  // KDA_TPU_INPUTS_H_
