#include "tpu/ladder/gate_cumsum.h"

namespace kda::tpu {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

using ir::Value;

// 1 / (1 + 2^(-x / ln 2)): 0 and 1 at the ends, where the power is infinite or 0.
Value Sigmoid(Value x) { return ir::Reciprocal(ir::Exp2(x * -kLog2E) + 1.0, false); }

// In base 2: softplus(x) / ln 2 = max(x, 0) / ln 2 + log2(1 + 2^(-|x| / ln 2)).
Value Softplus2(Value x) {
  return ir::Max(x, 0.0) * kLog2E + ir::Log(ir::Exp2(ir::Abs(x) * -kLog2E) + 1.0) * kLog2E;
}

}  // namespace

Value ActivateGate(const GateForm& form, Value g, Value a, Value bias) {
  switch (form.gate) {
    case KDA_GATE_BOUNDED:
      return Sigmoid(a * (g + bias)) * (form.lower_bound / kLn2);
    case KDA_GATE_SOFTPLUS:
      return -(a * Softplus2(g + bias));
    case KDA_GATE_LOG:
      break;
  }
  return g * kLog2E;
}

Value MaskRows(Value g2, Value valid) {
  const Value row = g2.builder()->Iota(g2.shape(), 1);
  return ir::Select(row < ir::BroadcastTo(valid, g2.shape()), g2, 0.0);
}

// Hillis and Steele: after the step of width d every row holds the sum of the 2 d rows up to it.
Value PrefixSum(Value g2) {
  const int64_t rows = g2.shape()[1];
  Value sum = g2;
  for (int64_t d = 1; d < rows; d *= 2) {
    sum = ir::Concat(
        {ir::Slice(sum, 1, 0, d), ir::Slice(sum, 1, d, rows - d) + ir::Slice(sum, 1, 0, rows - d)},
        1);
  }
  return sum;
}

}  // namespace kda::tpu
