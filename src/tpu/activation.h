// Activations and norms as kernels write them, fp32 throughout. The one place for their constants, what
// they lose and where they end.
#ifndef KDA_TPU_ACTIVATION_H_
#define KDA_TPU_ACTIVATION_H_

#include "tpu/ir/builder.h"

namespace kda::tpu {

inline constexpr double kLog2E = 1.4426950408889634;  // 1 / ln 2
// Of a gate / ln 2: 2^-150 is 0, what is less need not be told apart.
inline constexpr double kLeastGate2 = -150;
inline constexpr double kNormEpsilon = 1e-6;  // added to |x|^2 (KDA_FLAG_QK_L2NORM)

// 1 / (1 + e^-x): 0 and 1 at the ends, where the power is infinite or 0.
ir::Value Sigmoid(ir::Value x);

// softplus(x) / ln 2 of x in units of ln 2, log2(1 + 2^x): one power and one logarithm. What 1 + 2^-|x|
// loses of the power is given back, so that the tail is good to fp32; below x = -126 it is 0.
ir::Value Softplus2(ir::Value x);

// a softplus(x) / ln 2 of x and half = log2(a) / 2, for a and softplus(x) of any size: neither leaves
// fp32 where the product does not. Nine multiply-adds and a reciprocal for the logarithm.
ir::Value ScaledSoftplus2(ir::Value x, ir::Value half);

// 1 / sqrt(|x|^2 + epsilon) of every row, [.., rows, 1] of x [.., rows, columns]. Squares are fp32: 0 for
// rows of norm above 1.8e19.
ir::Value InverseNorm(ir::Value x);

// The same of rows of any size: those whose squares would overflow become 2^-70 times as large, exactly.
// x times the result is x / |x| either way. A maximum of every row more.
ir::Value InverseNormOfAny(ir::Value* x);

}  // namespace kda::tpu

#endif  // KDA_TPU_ACTIVATION_H_
