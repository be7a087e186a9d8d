// How far the results of TPU programs may be off, as docs/numerics.md derives it: relative
// Frobenius error against the fp64 recurrence, of o, states and checkpoints.
// `kda tpu eval` holds them to these, and the tests (tests/support/tolerance.h), which
// know of inputs that cost more, to the same.
#ifndef KDA_TPU_LIMITS_H_
#define KDA_TPU_LIMITS_H_

#include "tpu/report.h"

namespace kda::tpu {

inline constexpr double kFp32Products = 2e-5;   // decode
inline constexpr double kBf16Operands = 6e-3;   // mega, ladder; what is stored is within it
inline constexpr double kBf16Storage = 0x1p-8;  // half a unit in the last place

constexpr double RelativeLimit(Family family, bool stored_in_bf16) {
  if (family != Family::kDecode) return kBf16Operands;
  return kFp32Products + (stored_in_bf16 ? kBf16Storage : 0);
}

}  // namespace kda::tpu

#endif  // KDA_TPU_LIMITS_H_
