// Activations and norms as kernels write them, fp32 throughout. The one place for their constants,
// what they lose and where they end.
#ifndef KDA_TPU_ACTIVATION_H_
#define KDA_TPU_ACTIVATION_H_

#include <algorithm>

#include "tpu/ir/builder.h"

namespace kda::tpu {

inline constexpr double kLog2E = 1.4426950408889634;  // 1 / ln 2
// Of a gate / ln 2: 2^-150 is 0, what is less need not be told apart.
inline constexpr double kLeastGate2 = -150;
// lower_bound / ln 2, as a finite fp32 number.
inline double LeastGate2(double lower_bound) { return std::max(lower_bound * kLog2E, -3e38); }
inline constexpr double kNormEpsilon = 1e-6;  // added to |x|^2 (KDA_FLAG_QK_L2NORM)

// 1 / (1 + e^-x): 0 and 1 at the ends, where the power is infinite or 0.
ir::Value Sigmoid(ir::Value x);

// softplus(x) / ln 2 of x in units of ln 2, log2(1 + 2^x): one power and one
// logarithm. What 1 + 2^-|x| loses of the power is given back, so that the tail is
// good to fp32; below x = -126 it is 0.
ir::Value Softplus2(ir::Value x);

// What makes a softplus(x) / ln 2, x = g + bias and a = e^log of any size, out of
// Softplus2((g + shift) factor) scale at no cost per element. In between,
// factor is 1 / ln 2 and scale a.
//   a > e^64: the decay is 0 unless x < -58, where softplus(x) = e^x. a softplus(x) = e^(x + log) is made
//     as 2^40 softplus(x + log - 40 ln 2), and e^x need not be a number of fp32.
//   a < e^-70: the gate is 0 unless x > 2^40, where softplus(x) = x. a softplus(x) is made as
//     2^40 a softplus(2^-40 x), and a need not be a number of fp32.
struct ScaledSoftplus {
  ir::Value shift, factor, scale;
};
ScaledSoftplus ScaleSoftplus(ir::Value log, ir::Value bias);

// a softplus(x) / ln 2 of x and half = log2(a) / 2, for a and softplus(x) of any size: neither
// leaves fp32 where the product does not. Nine multiply-adds and a reciprocal for the logarithm.
ir::Value ScaledSoftplus2(ir::Value x, ir::Value half);

// 1 / sqrt(|x|^2 + epsilon) of every row, [.., rows, 1] of x [.., rows, columns]. Squares are fp32:
// 0 for rows of norm above 1.8e19.
ir::Value InverseNorm(ir::Value x);

// The same of rows of any size: those whose squares would overflow become 2^-70 times as large,
// exactly. x times the result is x / |x| either way. A maximum of every row more.
ir::Value InverseNormOfAny(ir::Value* x);

}  // namespace kda::tpu

#endif  // KDA_TPU_ACTIVATION_H_
