// Operations on the bits of one element that more than one file needs: all
// of integers, and a maximum.
#ifndef KDA_TPU_IR_EVALUATE_SCALAR_H_
#define KDA_TPU_IR_EVALUATE_SCALAR_H_

#include <cstdint>
#include <string>

#include "tpu/ir/evaluate_machine.h"

namespace kda::tpu::ir::evaluate {

inline int32_t Signed(uint32_t bits) { return static_cast<int32_t>(bits); }

// Of zeros that compare equal, -0 is the lesser.
struct MaxF {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    const float x = ToFloat(a), y = ToFloat(b);
    const uint32_t ordered = Pick(x > y, Flush(a), Pick(y > x, Flush(b), Flush(a) & Flush(b)));
    return Pick((x != x) | (y != y), ToBits(x + y), ordered);
  }
};

// --- i32 and i1 ---

struct AddI {
  static uint32_t Apply(uint32_t a, uint32_t b) { return a + b; }
};
struct SubI {
  static uint32_t Apply(uint32_t a, uint32_t b) { return a - b; }
};
struct MulI {
  static uint32_t Apply(uint32_t a, uint32_t b) { return a * b; }
};
struct MinI {
  static uint32_t Apply(uint32_t a, uint32_t b) { return Pick(Signed(a) < Signed(b), a, b); }
};
struct MaxI {
  static uint32_t Apply(uint32_t a, uint32_t b) { return Pick(Signed(a) > Signed(b), a, b); }
};
struct And {
  static uint32_t Apply(uint32_t a, uint32_t b) { return a & b; }
};
struct Or {
  static uint32_t Apply(uint32_t a, uint32_t b) { return a | b; }
};
struct Xor {
  static uint32_t Apply(uint32_t a, uint32_t b) { return a ^ b; }
};
// These check their operands; the largest negative number over -1 wraps.
struct DivI {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    if (b == 0) throw Fault("divides by zero");
    return b == ~0u ? 0u - a : static_cast<uint32_t>(Signed(a) / Signed(b));
  }
};
struct RemI {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    if (b == 0) throw Fault("divides by zero");
    return b == ~0u ? 0u : static_cast<uint32_t>(Signed(a) % Signed(b));
  }
};
struct ShiftLeftI {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    if (b > 31) throw Fault("shifts by " + std::to_string(Signed(b)) + " bits");
    return a << b;
  }
};
struct ShiftRightI {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    if (b > 31) throw Fault("shifts by " + std::to_string(Signed(b)) + " bits");
    return a >> b;
  }
};

}  // namespace kda::tpu::ir::evaluate

#endif  // KDA_TPU_IR_EVALUATE_SCALAR_H_
