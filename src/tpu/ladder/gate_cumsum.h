// Stage 1: the gate of every token, activated and summed up along the chunk.
//
//   x = g + dt_bias, a = exp(A_log)
//   g2 = lower_bound sigmoid(a x) / ln 2     bounded
//      = -a softplus(x) / ln 2               unbounded
//      = g / ln 2                            given activated
//   G[i] = sum_{j <= i} max(g2[j], -150)      2^-150 is 0: differences of G are numbers for any gate
//
// In: g [h, 64, 128] f32; a, bias [h, 1, 128] f32. Out: G [h, 64, 128] f32, base 2. All in
// fp32 on the vector unit. h heads side by side; rows from `valid` on are padding and add
// exactly 0, whatever they hold.
#ifndef KDA_TPU_LADDER_GATE_CUMSUM_H_
#define KDA_TPU_LADDER_GATE_CUMSUM_H_

#include "kda/kda.h"
#include "tpu/ir/builder.h"

namespace kda::tpu {

struct GateForm {
  kda_gate gate = KDA_GATE_BOUNDED;
  double lower_bound = -5;
};

// g2; `a` and `bias` are not looked at with KDA_GATE_LOG.
ir::Value ActivateGate(const GateForm& form, ir::Value g, ir::Value a, ir::Value bias);

// g2, at least -150, with the rows from `valid` (i32 scalar) on replaced by 0.
ir::Value MaskRows(ir::Value g2, ir::Value valid);

// G of g2 [h, 64, 128].
ir::Value PrefixSum(ir::Value g2);

}  // namespace kda::tpu

#endif  // KDA_TPU_LADDER_GATE_CUMSUM_H_
