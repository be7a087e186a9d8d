#include "tpu/ladder/gate_cumsum.h"

#include "tpu/activation.h"

namespace kda::tpu {

using ir::Value;

Value ActivateGate(const GateForm& form, Value g, Value a, Value bias) {
  switch (form.gate) {
    case KDA_GATE_BOUNDED:
      return Sigmoid(a * (g + bias)) * (form.lower_bound * kLog2E);
    case KDA_GATE_SOFTPLUS:
      return -(a * Softplus2((g + bias) * kLog2E));
    case KDA_GATE_LOG:
      break;
  }
  return g * kLog2E;
}

Value MaskRows(Value g2, Value valid) {
  const Value row = g2.builder()->Iota(g2.shape(), 1);
  return ir::Select(row < ir::BroadcastTo(valid, g2.shape()), ir::Max(g2, kLeastGate2), 0.0);
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
