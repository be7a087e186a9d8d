// Every operation on values, against a plain reference.
#include "tpu/ir/evaluator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tpu/ir_programs.h"

namespace kda::tpu::ir {
namespace {

using Double1 = double (*)(double);
using Double2 = double (*)(double, double);

// All pairs of edges, and random ones.
std::pair<Array, Array> Pairs(DType dtype) {
  const std::vector<float> edges = Edges();
  std::vector<float> a, b;
  for (float x : edges) {
    for (float y : edges) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  const std::vector<float> x = Normal(500, 1), y = Normal(500, 2);
  a.insert(a.end(), x.begin(), x.end());
  b.insert(b.end(), y.begin(), y.end());
  const Shape shape = {1, static_cast<int64_t>(a.size())};
  return {Array::From(dtype, shape, a), Array::From(dtype, shape, b)};
}

double IeeeMin(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
double IeeeMax(double a, double b) { return -IeeeMin(-a, -b); }

struct BinaryCase {
  const char* name;
  Value (*build)(Value, Value);
  Double2 reference;
};

const BinaryCase kBinary[] = {
    {"+", [](Value a, Value b) { return a + b; }, [](double a, double b) { return a + b; }},
    {"-", [](Value a, Value b) { return a - b; }, [](double a, double b) { return a - b; }},
    {"*", [](Value a, Value b) { return a * b; }, [](double a, double b) { return a * b; }},
    {"/", [](Value a, Value b) { return a / b; }, [](double a, double b) { return a / b; }},
    {"Min", [](Value a, Value b) { return Min(a, b); }, IeeeMin},
    {"Max", [](Value a, Value b) { return Max(a, b); }, IeeeMax},
};

// fp32 first and then bf16, as results of the vector unit are: exact
// doubles do not round twice here.
double Result(double exact, DType dtype) {
  const double single = RoundTo(exact, 24);
  return dtype == DType::kBF16 ? RoundTo(single, 8) : single;
}

TEST(Evaluator, ArithmeticOfFloats) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto [a, b] = Pairs(dtype);
    for (const BinaryCase& c : kBinary) {
      const Array out =
          RunWhole({a, b}, dtype, a.shape(),
                   [&](Builder*, const std::vector<Value>& v) { return c.build(v[0], v[1]); });
      for (int64_t i = 0; i < a.size(); ++i) {
        const double want = Result(c.reference(Operand(a.Get(i)), Operand(b.Get(i))), dtype);
        ASSERT_TRUE(Same(out.Get(i), want))
            << ToString(dtype) << ": " << a.Get(i) << " " << c.name << " " << b.Get(i) << " = "
            << out.Get(i) << ", not " << want;
      }
    }
  }
}

// Constants take another path: on either side.
TEST(Evaluator, ArithmeticWithConstants) {
  const Array a = Array::F32({1, static_cast<int64_t>(Edges().size())}, Edges());
  for (const double constant : {1.5, -0.0, 1e-40}) {
    for (const BinaryCase& c : kBinary) {
      for (const bool left : {false, true}) {
        const Array out =
            RunWhole({a}, DType::kF32, a.shape(), [&](Builder* b, const std::vector<Value>& v) {
              const Value k = b->Constant(DType::kF32, constant, a.shape());
              return left ? c.build(k, v[0]) : c.build(v[0], k);
            });
        for (int64_t i = 0; i < a.size(); ++i) {
          const double x = Operand(a.Get(i)), k = Operand(static_cast<float>(constant));
          const double want = RoundTo(left ? c.reference(k, x) : c.reference(x, k), 24);
          ASSERT_TRUE(Same(out.Get(i), want)) << c.name << " " << a.Get(i) << " " << constant;
        }
      }
    }
  }
}

struct UnaryCase {
  const char* name;
  Value (*build)(Value);
  Double1 reference;
};

// libm is within 2 units of the last place; bf16 hides that but for a tie.
TEST(Evaluator, Functions) {
  const UnaryCase cases[] = {
      {"Exp2", [](Value a) { return Exp2(a); }, [](double a) { return std::exp2(a); }},
      {"Log", [](Value a) { return Log(a); }, [](double a) { return std::log(a); }},
      {"Tanh", [](Value a) { return Tanh(a); }, [](double a) { return std::tanh(a); }},
      {"Rsqrt", [](Value a) { return Rsqrt(a); }, [](double a) { return 1 / std::sqrt(a); }},
      {"Reciprocal", [](Value a) { return Reciprocal(a, false); }, [](double a) { return 1 / a; }},
  };
  std::vector<float> inputs = Edges();
  for (float x : Normal(300, 3, 10.0f)) inputs.push_back(x);
  for (float x : {-126.0f, -126.5f, -130.0f, -149.0f, -200.0f, 127.9f, 128.0f}) inputs.push_back(x);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Array a = Array::From(dtype, {1, static_cast<int64_t>(inputs.size())}, inputs);
    for (const UnaryCase& c : cases) {
      const Array out = RunWhole({a}, dtype, a.shape(), [&](Builder*, const std::vector<Value>& v) {
        return c.build(v[0]);
      });
      for (int64_t i = 0; i < a.size(); ++i) {
        const double want = Result(c.reference(Operand(a.Get(i))), dtype), got = out.Get(i);
        if (!std::isfinite(want) || want == 0) {
          ASSERT_TRUE(Same(got, want)) << c.name << " " << a.Get(i) << " = " << got;
        } else {
          const double unit = std::ldexp(std::fabs(want), 1 - DigitsOf(dtype));
          ASSERT_NEAR(got, want, (dtype == DType::kBF16 ? 1 : 2) * unit) << c.name << a.Get(i);
        }
      }
    }
  }
}

// JAX emulates it so: 1 / bf16(x), rounded to bf16.
TEST(Evaluator, ApproximateReciprocal) {
  const Array a =
      Array::F32({1, 8}, {3.0f, 0.1f, 1.00390625f, 1.01171875f, -7.77f, 0.0f, 1e-40f, NAN});
  const Array out =
      RunWhole({a}, DType::kF32, a.shape(),
               [](Builder*, const std::vector<Value>& v) { return Reciprocal(v[0], true); });
  for (int64_t i = 0; i < a.size(); ++i) {
    const double want = RoundTo(1 / RoundTo(Operand(a.Get(i)), 8), 8);
    EXPECT_TRUE(Same(out.Get(i), want)) << a.Get(i) << " " << out.Get(i) << " " << want;
  }
  EXPECT_NE(out.Get(0), static_cast<double>(1.0f / 3.0f));
}

// The sign bit is cleared, nothing else: not even a subnormal is flushed.
TEST(Evaluator, AbsKeepsBits) {
  const Array a = Array::F32({1, 5}, {-1e-40f, -2.5f, -0.0f, -INFINITY, 3.0f});
  const Array out = RunWhole({a}, DType::kF32, a.shape(),
                             [](Builder*, const std::vector<Value>& v) { return Abs(v[0]); });
  EXPECT_EQ(out, Array::F32({1, 5}, {1e-40f, 2.5f, 0.0f, INFINITY, 3.0f}));
}

std::pair<Array, Array> IntegerPairs() {
  const int32_t low = std::numeric_limits<int32_t>::min(),
                high = std::numeric_limits<int32_t>::max();
  const std::vector<int32_t> edges = {0,  1,    -1,  2,       -2,   7,       -7,
                                      64, 1000, low, low + 1, high, high - 1};
  std::vector<int32_t> a, b;
  for (int32_t x : edges) {
    for (int32_t y : edges) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    a.push_back(static_cast<int32_t>(random()));
    b.push_back(static_cast<int32_t>(random() >> (i % 32)));
  }
  const Shape shape = {1, static_cast<int64_t>(a.size())};
  return {Array::I32(shape, a), Array::I32(shape, b)};
}

int32_t Wrap(int64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }

TEST(Evaluator, ArithmeticOfIntegers) {
  struct Case {
    const char* name;
    Value (*build)(Value, Value);
    int64_t (*reference)(int64_t, int64_t);
    bool divides;
  };
  const Case cases[] = {
      {"+", [](Value a, Value b) { return a + b; }, [](int64_t a, int64_t b) { return a + b; },
       false},
      {"-", [](Value a, Value b) { return a - b; }, [](int64_t a, int64_t b) { return a - b; },
       false},
      {"*", [](Value a, Value b) { return a * b; }, [](int64_t a, int64_t b) { return a * b; },
       false},
      {"/", [](Value a, Value b) { return a / b; }, [](int64_t a, int64_t b) { return a / b; },
       true},
      {"%", [](Value a, Value b) { return a % b; }, [](int64_t a, int64_t b) { return a % b; },
       true},
      {"&", [](Value a, Value b) { return a & b; }, [](int64_t a, int64_t b) { return a & b; },
       false},
      {"|", [](Value a, Value b) { return a | b; }, [](int64_t a, int64_t b) { return a | b; },
       false},
      {"^", [](Value a, Value b) { return a ^ b; }, [](int64_t a, int64_t b) { return a ^ b; },
       false},
      {"Min", [](Value a, Value b) { return Min(a, b); },
       [](int64_t a, int64_t b) { return std::min(a, b); }, false},
      {"Max", [](Value a, Value b) { return Max(a, b); },
       [](int64_t a, int64_t b) { return std::max(a, b); }, false},
  };
  auto [a, b] = IntegerPairs();
  for (const Case& c : cases) {
    Array divisor = b;
    for (int64_t i = 0; c.divides && i < b.size(); ++i) {
      if (b.Get(i) == 0) divisor.Set(i, 3);
    }
    const Array out =
        RunWhole({a, divisor}, DType::kI32, a.shape(),
                 [&](Builder*, const std::vector<Value>& v) { return c.build(v[0], v[1]); });
    for (int64_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(out.i32()[i], Wrap(c.reference(a.i32()[i], divisor.i32()[i])))
          << a.i32()[i] << " " << c.name << " " << divisor.i32()[i];
    }
  }
}

TEST(Evaluator, Shifts) {
  const Array a = IntegerPairs().first;
  for (const int bits : {0, 1, 16, 31}) {
    const Array left =
        RunWhole({a}, DType::kI32, a.shape(),
                 [&](Builder*, const std::vector<Value>& v) { return v[0] << bits; });
    const Array right =
        RunWhole({a}, DType::kI32, a.shape(),
                 [&](Builder*, const std::vector<Value>& v) { return ShiftRight(v[0], bits); });
    for (int64_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<uint32_t>(a.i32()[i]);
      ASSERT_EQ(static_cast<uint32_t>(left.i32()[i]), x << bits);
      ASSERT_EQ(static_cast<uint32_t>(right.i32()[i]), x >> bits);
    }
  }
}

TEST(Evaluator, Comparisons) {
  Value (*const build[])(Value, Value) = {
      [](Value a, Value b) { return a == b; }, [](Value a, Value b) { return a != b; },
      [](Value a, Value b) { return a < b; },  [](Value a, Value b) { return a <= b; },
      [](Value a, Value b) { return a > b; },  [](Value a, Value b) { return a >= b; }};
  bool (*const reference[])(double, double) = {
      [](double a, double b) { return a == b; }, [](double a, double b) { return a != b; },
      [](double a, double b) { return a < b; },  [](double a, double b) { return a <= b; },
      [](double a, double b) { return a > b; },  [](double a, double b) { return a >= b; }};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
    const auto [a, b] = dtype == DType::kI32 ? IntegerPairs() : Pairs(dtype);
    for (int how = 0; how < 6; ++how) {
      const Array out =
          RunWhole({a, b}, DType::kI32, a.shape(), [&](Builder*, const std::vector<Value>& v) {
            return Cast(build[how](v[0], v[1]), DType::kI32);
          });
      for (int64_t i = 0; i < a.size(); ++i) {
        const bool want = dtype == DType::kI32
                              ? reference[how](a.Get(i), b.Get(i))
                              : reference[how](Operand(a.Get(i)), Operand(b.Get(i)));
        ASSERT_EQ(out.i32()[i], want ? 1 : 0) << how << " " << a.Get(i) << " " << b.Get(i);
      }
    }
  }
}

TEST(Evaluator, SelectAndMasks) {
  const auto [a, b] = Pairs(DType::kF32);
  const Array out =
      RunWhole({a, b}, DType::kF32, a.shape(), [](Builder*, const std::vector<Value>& v) {
        const Value less = v[0]<v[1], large = v[0]> 2.0;
        return Select((less & ~large) ^ (v[0] == v[1]), v[0], v[1]);
      });
  for (int64_t i = 0; i < a.size(); ++i) {
    const double x = Operand(a.Get(i)), y = Operand(b.Get(i));
    const bool mask = (x < y && !(x > 2)) != (x == y);
    ASSERT_TRUE(Same(out.Get(i), mask ? a.Get(i) : b.Get(i)));  // moves do not flush
  }
  const Array one = Array::F32({1, 2}, {1, 2}), two = Array::F32({1, 2}, {3, 4});
  for (const int64_t chosen : {0, 1}) {
    const Array scalar = RunWhole(
        {one, two}, DType::kF32, {1, 2}, [&](Builder* builder, const std::vector<Value>& v) {
          return Select(builder->Constant(DType::kI32, static_cast<double>(chosen)) == 0, v[0],
                        v[1]);
        });
    EXPECT_EQ(scalar, chosen == 0 ? one : two);
  }
}

TEST(Evaluator, Conversions) {
  std::vector<float> values = Edges();
  for (float x : {1.5f, -1.5f, 2.5f, 1e10f, -1e10f, 2147483520.0f, 16777217.0f})
    values.push_back(x);
  const Shape shape = {1, static_cast<int64_t>(values.size())};
  const Array f = Array::F32(shape, values);
  const auto cast = [&](const Array& from, DType dtype) {
    return RunWhole({from}, dtype, from.shape(),
                    [&](Builder*, const std::vector<Value>& v) { return Cast(v[0], dtype); });
  };
  const Array b = cast(f, DType::kBF16), i = cast(f, DType::kI32), ib = cast(b, DType::kI32);
  EXPECT_EQ(cast(b, DType::kF32), Array::F32(shape, b.Floats()));
  const auto truncated = [](double x) {
    if (std::isnan(x)) return 0.0;
    return std::min(std::max(std::trunc(x), -2147483648.0), 2147483647.0);
  };
  for (int64_t k = 0; k < f.size(); ++k) {
    ASSERT_TRUE(Same(b.Get(k), RoundTo(Operand(f.Get(k)), 8))) << f.Get(k) << " " << b.Get(k);
    ASSERT_EQ(i.Get(k), truncated(f.Get(k))) << f.Get(k);
    ASSERT_EQ(ib.Get(k), truncated(b.Get(k))) << b.Get(k);
  }
  const Array n = IntegerPairs().first, nf = cast(n, DType::kF32), nb = cast(n, DType::kBF16);
  for (int64_t k = 0; k < n.size(); ++k) {
    ASSERT_EQ(nf.Get(k), RoundTo(n.Get(k), 24));
    ASSERT_EQ(nb.Get(k), RoundTo(RoundTo(n.Get(k), 24), 8));
  }
}

TEST(Evaluator, MasksBecomeNumbers) {
  const Array a = Array::I32({1, 4}, {3, -1, 0, 5});
  for (const DType dtype : {DType::kI32, DType::kF32, DType::kBF16}) {
    const Array out = RunWhole({a}, dtype, a.shape(), [&](Builder*, const std::vector<Value>& v) {
      return Cast(v[0] > 0, dtype);
    });
    EXPECT_EQ(out, Array::From(dtype, {1, 4}, {1, 0, 0, 1}));
  }
}

}  // namespace
}  // namespace kda::tpu::ir
