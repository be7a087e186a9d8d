#include "tpu/activation.h"

#include <cmath>

namespace kda::tpu {

using ir::DType;
using ir::Value;

Value Sigmoid(Value x) { return ir::Reciprocal(ir::Exp2(x * -kLog2E) + 1.0, false); }

Value Softplus2(Value x) {
  const Value e = ir::Exp2(-ir::Abs(x)), sum = e + 1.0;
  const Value lost = (sum - 1.0) - e;  // the sum's own rounding error
  return ir::Max(x, 0.0) + (ir::Log(sum) - lost) * kLog2E;
}

namespace {

// log(1 + e) / e for e in [0, 1]: 2 atanh(z) / e with z = e / (2 + e) up to 1/3.
Value LogOnePlusOverSelf(Value e) {
  const Value inverse = ir::Reciprocal(e + 2.0, false);
  const Value z = e * inverse, z2 = z * z;
  Value sum = z2 * (1.0 / 17) + 1.0 / 15;
  for (int n = 13; n >= 1; n -= 2) sum = sum * z2 + 1.0 / n;
  return sum * inverse * 2.0;
}

Value SumOfSquares(Value x) { return ir::ReduceSum(x * x, static_cast<int>(x.shape().size()) - 1); }

}  // namespace

ScaledSoftplus ScaleSoftplus(Value log, Value bias) {
  ir::Builder* const b = log.builder();
  const auto constant = [&](double x) { return b->Constant(DType::kF32, x, log.shape()); };
  const double power = 40;
  const Value large = log > 64.0, small = log < -70.0, log2 = log * kLog2E;
  ScaledSoftplus of;
  of.shift = bias + ir::Select(large, log - power / kLog2E, 0.0);
  of.factor = ir::Select(small, constant(kLog2E * std::exp2(-power)), kLog2E);
  of.scale = ir::Exp2(ir::Select(large, constant(power),
                                 ir::Max(log2 + ir::Select(small, constant(power), 0.0), -126.0)));
  return of;
}

// a softplus(x) = a e^min(x, 0) (log(1 + e) / e, and max(x, 0) more where x > 0),  e = e^-|x|
// The power is used as its root twice, so that no product with it leaves fp32 on the way.
Value ScaledSoftplus2(Value x, Value half) {
  const Value e = ir::Exp2(ir::Abs(x) * -kLog2E), f = LogOnePlusOverSelf(e);
  const Value root = ir::Exp2(ir::Min(x, 0.0) * (kLog2E / 2) + half);
  return root * ir::Select(x > 0, x + e * f, f) * root * kLog2E;
}

Value InverseNorm(Value x) { return ir::Rsqrt(SumOfSquares(x) + kNormEpsilon); }

Value InverseNormOfAny(Value* x) {
  ir::Builder* const b = x->builder();
  const ir::Shape& shape = x->shape();
  const int last = static_cast<int>(shape.size()) - 1;
  const Value big = ir::ReduceMax(ir::Abs(*x), last) > 0x1p40;
  const ir::Shape& column = big.shape();
  const Value scale = ir::Select(big, b->Constant(DType::kF32, 0x1p-70, column), 1.0);
  *x = *x * ir::BroadcastTo(scale, shape);
  const Value epsilon = ir::Select(big, b->Constant(DType::kF32, 0, column), kNormEpsilon);
  return ir::Rsqrt(SumOfSquares(*x) + epsilon);
}

}  // namespace kda::tpu
