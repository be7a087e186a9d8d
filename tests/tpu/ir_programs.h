// Small kernel programs for tests: whole arrays in VMEM, one result.
#ifndef KDA_TESTS_TPU_IR_PROGRAMS_H_
#define KDA_TESTS_TPU_IR_PROGRAMS_H_

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tpu/ir/builder.h"
#include "tpu/ir/evaluator.h"

namespace kda::tpu::ir {

inline Builder::IndexMap ZeroMap(Builder* b, size_t rank) {
  return [b, rank](const std::vector<Value>&) {
    return std::vector<Value>(rank, b->Constant(DType::kI32, 0));
  };
}

// The program that loads each of `arrays`, whole, and stores what `body` makes of them.
inline Program Whole(const std::vector<Array>& arrays, const Type& result,
                     const std::function<Value(Builder*, const std::vector<Value>&)>& body) {
  Builder b("whole");
  b.Grid({1});
  std::vector<Ref> refs;
  for (size_t i = 0; i < arrays.size(); ++i) {
    refs.push_back(b.InputVmem("in" + std::to_string(i), arrays[i].dtype(), arrays[i].shape()));
  }
  const Ref out =
      b.Output("out", result.dtype, result.shape, result.shape, ZeroMap(&b, result.shape.size()));
  std::vector<Value> values;
  for (const Ref& ref : refs) values.push_back(Load(ref));
  Store(out, body(&b, values));
  return b.Take();
}

inline Array RunWhole(const std::vector<Array>& arrays, DType dtype, const Shape& shape,
                      const std::function<Value(Builder*, const std::vector<Value>&)>& body,
                      const EvaluateOptions& options = {}) {
  return Evaluate(Whole(arrays, {dtype, shape}, body), arrays, options)[0];
}

// --- A reference of its own for rounding: arithmetic on doubles ---

// `x` rounded to nearest even at `digits` significant binary digits, with the exponents of fp32;
// subnormal results are zero.
inline double RoundTo(double x, int digits) {
  if (!std::isfinite(x) || x == 0) return x;
  int exponent;
  const double fraction = std::frexp(x, &exponent);  // [0.5, 1)
  const double rounded =
      std::ldexp(std::nearbyint(std::ldexp(fraction, digits)), exponent - digits);
  if (std::fabs(rounded) >= std::ldexp(1.0, 128)) return std::copysign(INFINITY, x);
  // fp32 rounds before it looks whether the result is subnormal; bf16 here sees what fp32 left.
  if (std::fabs(rounded) < std::ldexp(1.0, -126)) return std::copysign(0.0, x);
  return rounded;
}

inline int DigitsOf(DType dtype) { return dtype == DType::kBF16 ? 8 : 24; }

// Subnormal operands are zero.
inline double Operand(double x) {
  return std::fabs(x) < std::ldexp(1.0, -126) ? std::copysign(0.0, x) : x;
}

// Same value, same sign of zero, or both NaN.
inline bool Same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

// A NaN that bf16 must not make an infinity of by dropping bits.
inline float NaNOfLowBits() {
  const uint32_t bits = 0x7f800001u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::vector<float> Edges() {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> edges = {0.0f,   1.0f,   3.0f, 0.1f, 1.5e-5f,
                              255.5f, 1e-40f, inf,  NAN,  NaNOfLowBits()};
  for (float x :
       {0x1.01p0f, 0x1.03p0f, 0x1.008p0f, 0x1.018p0f, 0x1.00ffp0f,  // ties of bf16, and beside
        0x1p-126f, 0x1.fep-127f, 0x1.fffffep-127f, 0x1p-149f, 0x1.fffffep127f, 0x1.ffp127f,
        0x1.fep127f, 0x1p64f, 0x1.8p-64f, 2147483520.0f, 2147483648.0f}) {
    edges.push_back(x);
  }
  const size_t n = edges.size();
  for (size_t i = 0; i < n; ++i) edges.push_back(-edges[i]);
  return edges;
}

inline std::vector<float> Normal(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

inline Array NormalArray(DType dtype, const Shape& shape, uint32_t seed, float scale = 1.0f) {
  return Array::From(dtype, shape, Normal(static_cast<size_t>(ElementCount(shape)), seed, scale));
}

// Element i of row-major order as indices.
inline Shape IndexOf(int64_t at, const Shape& shape) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

// The message of the error, or "" if there was none.
inline std::string ErrorOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const EvaluationError& error) {
    return error.what();
  }
  return "";
}

}  // namespace kda::tpu::ir

#endif  // KDA_TESTS_TPU_IR_PROGRAMS_H_
