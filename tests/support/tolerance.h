// Every numeric limit of the tests, by formula.
//
// Measure: relative Frobenius error, relF(x) = |x - ref|_F / |ref|_F, against the fp64 recurrence
// fed the same stored inputs, over each (sequence, value head) of a tensor, hence over the whole.
// A part smaller than the tensor's average is measured against the average: it may be what is left
// of larger numbers. Where all of the reference is zero, x must be too. Every element must be
// finite.
//
//   products    2e-5            fp32 operands and sums, whatever the inputs' dtype: a bf16 or fp16
//                               input is exact in fp32
//               bf16 products (kda_plan_info.products): 3 2^-9: on the way to o the state, the
//               queries and keys that read it, the queries of Aqk and the operands of L are rounded,
//               half a unit in the last place of bf16 each; and never more than the 6e-3 the project promises
//   storing     u               2^-8 (bf16), 2^-11 (fp16), 0 (fp32): half a unit in the last place
//                               of a stored result, relative to it, hence also of the whole
//   fp16 floor  2^-25 sqrt(n)   absolute: half the smallest fp16, n elements
//   bf16 state  u               in decode, for o too: a window rounds the state after each of its
//                               tokens, as the oracle does; a sum next to the middle between two
//                               bf16 numbers may go the other way
//
//   |x - ref|_F <= (products + u of what is stored + u of the state kept in decode) |ref|_F + floor
//
// TPU kernels whose matrix products take operands rounded to bf16 (mega, the ladder) have a limit
// of their own, of o and of states alike, on a TPU as in the evaluator:
//
//   kTpuLimit       6e-3        three numbers rounded to bf16 on the way, both operands of a product
//                               and its result, at the 2^-9 that one costs a tensor: 5.9e-3, which
//                               is the 6e-3 that the project promises for bf16
//   kTpuCancelling  1.5e-2      keys that are alike and gates that are slow: sums of many terms, each
//                               rounded so, all but cancel
//   kTpuAlike       3e-2        the same of keys that are one and the same to 1/10 and less, unless
//                               TpuProblem::precise: a chunk's 64 roundings of v_new, each 2^-9 at most
//                               and half that on average, sum up to sqrt(64) of one, as do those of T
//
// TPU decode multiplies in fp32: its o and states are held to the rule above.
//
// For bf16 outputs of fp32 products the rule gives 3.9e-3, within the 6e-3 the project promises for
// bf16; for fp32 ones the 2e-5 it promises for fp32.
#ifndef KDA_TESTS_SUPPORT_TOLERANCE_H_
#define KDA_TESTS_SUPPORT_TOLERANCE_H_

#include <cmath>

#include "kda/kda.h"

namespace kda::test {

inline constexpr double kProducts = 2e-5;
inline constexpr double kBf16Products = 3 * 0x1p-9;
inline constexpr double kPromised = 6e-3;  // of bf16 inputs

inline double ProductsError(int32_t products) {
  return products == KDA_BF16 ? kBf16Products : kProducts;
}

// The published check of the 64-row Neumann chain: |o - ref| per element, random unit keys.
inline constexpr double kPublishedAtol = 5e-4;

inline constexpr double kTpuLimit = 6e-3;
inline constexpr double kTpuCancelling = 1.5e-2;
inline constexpr double kTpuAlike = 3e-2;

// Relative error of one number that was rounded to bf16 that many times, at most.
inline constexpr double Bf16Roundings(int count) { return count * 0x1p-8; }
// Relative error of what decays in fp32 over `tokens` by gates known to 2^-24 of `gate` binades.
inline constexpr double DecayError(double tokens, double gate) { return tokens * gate * 0x1p-24; }

inline double UnitRoundoff(kda_dtype dtype) {
  return dtype == KDA_BF16 ? 0x1p-8 : dtype == KDA_F16 ? 0x1p-11 : 0;
}

// Absolute error of storing `count` elements, as a Frobenius norm.
inline double StorageFloor(kda_dtype dtype, double count) {
  return dtype == KDA_F16 ? 0x1p-25 * std::sqrt(count) : 0;
}

// |x - ref|_F allowed for a tensor of norm `norm` and `count` elements, stored in `dtype` and made
// from states kept in `kept` by `products` (kda_plan_info).
inline double AllowedError(int32_t products, kda_dtype dtype, kda_dtype kept, double norm,
                           double count) {
  double relative = ProductsError(products) + UnitRoundoff(dtype) + UnitRoundoff(kept);
  if (products == KDA_BF16 && relative > kPromised) relative = kPromised;
  return relative * norm + StorageFloor(dtype, count);
}

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_TOLERANCE_H_
