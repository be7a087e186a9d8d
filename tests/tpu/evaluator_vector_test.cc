// Operations on shapes, reductions, matrix products and control flow, against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tpu/ir_programs.h"

namespace kda::tpu::ir {
namespace {

// Checks out[index] = in[map(index)] for all elements.
void ExpectMoved(const Array& in, const Array& out, const std::function<Shape(const Shape&)>& map) {
  for (int64_t i = 0; i < out.size(); ++i) {
    const Shape index = IndexOf(i, out.shape());
    ASSERT_EQ(out.Get(i), in.At(map(index))) << "element " << i << " of " << ToString(out.shape());
  }
}

Array Counting(DType dtype, const Shape& shape) {  // distinct, exact in bf16 up to 256
  std::vector<float> values(static_cast<size_t>(ElementCount(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return Array::From(dtype, shape, values);
}

TEST(EvaluatorVector, Iota) {
  for (int d = 0; d < 3; ++d) {
    const Array out =
        RunWhole({}, DType::kI32, {3, 4, 5}, [&](Builder* b, const std::vector<Value>&) {
          return b->Iota({3, 4, 5}, d);
        });
    for (int64_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out.Get(i), IndexOf(i, out.shape())[static_cast<size_t>(d)]);
    }
  }
}

TEST(EvaluatorVector, Broadcast) {
  const Shape to = {2, 3, 4};
  for (const Shape& from : {Shape{2, 3, 1}, Shape{2, 1, 4}, Shape{1, 3, 4}, Shape{1, 1, 4},
                            Shape{2, 1, 1}, Shape{3, 4}, Shape{4}, Shape{1}, Shape{3, 1}}) {
    const Array in = Counting(DType::kF32, from);
    const Array out = RunWhole({in}, DType::kF32, to, [&](Builder*, const std::vector<Value>& v) {
      return BroadcastTo(v[0], to);
    });
    ExpectMoved(in, out, [&](Shape index) {
      index.erase(index.begin(), index.begin() + static_cast<int64_t>(to.size() - from.size()));
      for (size_t d = 0; d < from.size(); ++d) index[d] = from[d] == 1 ? 0 : index[d];
      return index;
    });
  }
  const Array scalar = RunWhole({}, DType::kF32, to, [&](Builder* b, const std::vector<Value>&) {
    return BroadcastTo(Cast(b->Constant(DType::kI32, 7) * b->Constant(DType::kI32, 3), DType::kF32),
                       to);
  });
  EXPECT_EQ(scalar, Array::Full(DType::kF32, to, 21));
}

TEST(EvaluatorVector, ReshapeKeepsRowMajorOrder) {
  const Array in = Counting(DType::kBF16, {4, 6});
  const Array out =
      RunWhole({in}, DType::kBF16, {2, 3, 4}, [](Builder*, const std::vector<Value>& v) {
        return Reshape(v[0], {2, 3, 4});
      });
  EXPECT_EQ(out.Floats(), in.Floats());
}

TEST(EvaluatorVector, Slice) {
  const Shape shape = {3, 4, 5};
  const Array in = Counting(DType::kF32, shape);
  for (int d = 0; d < 3; ++d) {
    const auto at = static_cast<size_t>(d);
    for (int64_t start = 0; start < shape[at]; ++start) {
      for (int64_t size = 1; start + size <= shape[at]; ++size) {
        Shape part = shape;
        part[at] = size;
        const Array out = RunWhole(
            {in}, DType::kF32, part,
            [&](Builder*, const std::vector<Value>& v) { return Slice(v[0], d, start, size); });
        ExpectMoved(in, out, [&](Shape index) {
          index[at] += start;
          return index;
        });
      }
    }
  }
  // A part of a part: neither lies at the start.
  const Array out = RunWhole(
      {in}, DType::kF32, {1, 2, 5},
      [](Builder*, const std::vector<Value>& v) { return Slice(Slice(v[0], 0, 2, 1), 1, 1, 2); });
  ExpectMoved(in, out, [](const Shape& i) { return Shape{i[0] + 2, i[1] + 1, i[2]}; });
}

TEST(EvaluatorVector, Concat) {
  for (int d = 0; d < 3; ++d) {
    const auto at = static_cast<size_t>(d);
    std::vector<Array> parts;
    Shape whole = {2, 3, 4};
    whole[at] = 0;
    for (const int64_t size : {1, 3, 2}) {
      Shape shape = {2, 3, 4};
      shape[at] = size;
      whole[at] += size;
      parts.push_back(NormalArray(DType::kF32, shape, static_cast<uint32_t>(size)));
    }
    const Array out = RunWhole(parts, DType::kF32, whole,
                               [&](Builder*, const std::vector<Value>& v) { return Concat(v, d); });
    int64_t before = 0;
    for (const Array& part : parts) {
      for (int64_t i = 0; i < part.size(); ++i) {
        Shape index = IndexOf(i, part.shape());
        index[at] += before;
        ASSERT_EQ(part.Get(i), out.At(index));
      }
      before += part.shape()[at];
    }
  }
}

TEST(EvaluatorVector, RotateByAnyAmount) {
  const Array in = Counting(DType::kF32, {4, 6, 5});
  for (int d = 0; d < 3; ++d) {
    const auto at = static_cast<size_t>(d);
    const int64_t n = in.shape()[at];
    for (const int64_t amount : {0, 1, 2, 5, 13, -1}) {
      const Array by = Array::I32({1}, {static_cast<int32_t>(amount)});
      Builder b("rotate");
      b.Grid({1});
      const Ref x = b.InputVmem("x", DType::kF32, in.shape());
      const Ref amounts = b.InputSmem("by", DType::kI32, {1});
      const Ref out = b.Output("out", DType::kF32, in.shape(), in.shape(), ZeroMap(&b, 3));
      Store(out, Rotate(Load(x), Index(Load(amounts.At(0))), d));
      const Array result = Evaluate(b.Take(), {in, by})[0];
      ExpectMoved(in, result, [&](Shape index) {
        index[at] = ((index[at] - amount) % n + n) % n;
        return index;
      });
    }
  }
}

TEST(EvaluatorVector, Transpose) {
  const Array in = Counting(DType::kF32, {3, 4, 5});
  std::vector<int64_t> permutation = {0, 1, 2};
  do {
    Shape shape;
    for (int64_t p : permutation) shape.push_back(in.shape()[static_cast<size_t>(p)]);
    const Array out = RunWhole(
        {in}, DType::kF32, shape,
        [&](Builder*, const std::vector<Value>& v) { return Transpose(v[0], permutation); });
    ExpectMoved(in, out, [&](const Shape& index) {
      Shape from(3);
      for (size_t d = 0; d < 3; ++d) from[static_cast<size_t>(permutation[d])] = index[d];
      return from;
    });
  } while (std::next_permutation(permutation.begin(), permutation.end()));
  const Array column = Counting(DType::kF32, {7, 1});
  const Array row = RunWhole({column}, DType::kF32, {1, 7},
                             [](Builder*, const std::vector<Value>& v) { return Transpose(v[0]); });
  EXPECT_EQ(row.Floats(), column.Floats());
}

// Sums go up in index, in fp32, for bf16 too.
TEST(EvaluatorVector, Reductions) {
  const Shape shape = {3, 5, 7};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Array in = NormalArray(dtype, shape, 5);
    for (int d = 0; d < 3; ++d) {
      const auto at = static_cast<size_t>(d);
      Shape kept = shape;
      kept[at] = 1;
      for (const bool sum : {true, false}) {
        const Array out = RunWhole({in}, dtype, kept, [&](Builder*, const std::vector<Value>& v) {
          return sum ? ReduceSum(v[0], d) : ReduceMax(v[0], d);
        });
        for (int64_t i = 0; i < out.size(); ++i) {
          Shape index = IndexOf(i, kept);
          float total = sum ? 0.0f : -INFINITY;
          for (index[at] = 0; index[at] < shape[at]; ++index[at]) {
            const auto x = static_cast<float>(in.At(index));
            total = sum ? total + x : std::max(total, x);
          }
          ASSERT_EQ(out.Get(i), RoundTo(static_cast<double>(total), DigitsOf(dtype)));
        }
      }
    }
  }
}

TEST(EvaluatorVector, ReductionsSeeNaNAndFlush) {
  const Array in =
      Array::F32({3, 3}, {1, NAN, 3, -INFINITY, -INFINITY, -INFINITY, -1e-40f, 1e-40f, -1e-40f});
  for (const bool sum : {true, false}) {
    const Array out =
        RunWhole({in}, DType::kF32, {3, 1}, [&](Builder*, const std::vector<Value>& v) {
          return sum ? ReduceSum(v[0], 1) : ReduceMax(v[0], 1);
        });
    EXPECT_TRUE(std::isnan(out.Get(0)));
    EXPECT_EQ(out.Get(1), -INFINITY);
    EXPECT_TRUE(Same(out.Get(2), 0.0));
  }
}

TEST(EvaluatorVector, PackedPairs) {
  // A tie, a carry into the exponent, a NaN whose payload lies in the low bits, a subnormal, -0.
  const std::vector<float> low = {1.0f, 0x1.01p0f, 0x1.ffp0f, -0.0f, NaNOfLowBits(), 1e-40f};
  const std::vector<float> high = {-2.0f, 0x1.03p0f, 3.4e38f, 7.0f, INFINITY, -1.0f};
  const Array a = Array::F32({1, 6}, low), b = Array::F32({1, 6}, high);
  const Array words =
      RunWhole({a, b}, DType::kI32, {1, 6},
               [](Builder*, const std::vector<Value>& v) { return PackPair(v[0], v[1]); });
  const Array rows =
      RunWhole({words}, DType::kBF16, {2, 6},
               [](Builder*, const std::vector<Value>& v) { return Bits(v[0], DType::kBF16); });
  for (int64_t i = 0; i < 6; ++i) {
    const auto word = static_cast<uint32_t>(words.i32()[i]);
    EXPECT_EQ(rows.bf16()[i], word & 0xffffu);
    EXPECT_EQ(rows.bf16()[6 + i], word >> 16);
    EXPECT_TRUE(Same(rows.At({0, i}), RoundTo(Operand(a.Get(i)), 8))) << a.Get(i);
    EXPECT_TRUE(Same(rows.At({1, i}), RoundTo(Operand(b.Get(i)), 8))) << b.Get(i);
  }
  const Array back =
      RunWhole({rows}, DType::kI32, {1, 6},
               [](Builder*, const std::vector<Value>& v) { return Bits(v[0], DType::kI32); });
  EXPECT_EQ(back, words);
}

TEST(EvaluatorVector, BitsOfManyRows) {
  const Array in = Counting(DType::kBF16, {2, 6, 3});
  const Array words =
      RunWhole({in}, DType::kI32, {2, 3, 3},
               [](Builder*, const std::vector<Value>& v) { return Bits(v[0], DType::kI32); });
  for (int64_t i = 0; i < words.size(); ++i) {
    const Shape at = IndexOf(i, words.shape());
    const auto word = static_cast<uint32_t>(words.i32()[i]);
    ASSERT_EQ(word & 0xffffu, ToBF16(static_cast<float>(in.At({at[0], 2 * at[1], at[2]}))));
    ASSERT_EQ(word >> 16, ToBF16(static_cast<float>(in.At({at[0], 2 * at[1] + 1, at[2]}))));
  }
  const Array f = NormalArray(DType::kF32, {2, 4}, 1);
  const Array bits = RunWhole({f}, DType::kI32, {2, 4}, [](Builder*, const std::vector<Value>& v) {
    return Bits(v[0], DType::kI32);
  });
  EXPECT_EQ(std::memcmp(bits.data(), f.data(), 32), 0);
}

// --- Matrix products ---

Array Rounded(const Array& a) {
  return Array::From(DType::kF32, a.shape(), Array::BF16(a.shape(), a.Floats()).Floats());
}

float PlainDot(const Array& a, const Array& b, bool ta, bool tb, int64_t i, int64_t j,
               int64_t depth) {
  float sum = 0;
  for (int64_t k = 0; k < depth; ++k) {
    const float x = a.f32()[ta ? a.Offset({k, i}) : a.Offset({i, k})];
    const float y = b.f32()[tb ? b.Offset({j, k}) : b.Offset({k, j})];
    sum += x * y;
  }
  return sum;
}

struct MatMulCase {
  DType dtype;
  Precision precision;
  int64_t m, n, k;
};

TEST(EvaluatorVector, MatrixProducts) {
  const MatMulCase cases[] = {
      {DType::kBF16, Precision::kBF16, 64, 128, 32}, {DType::kBF16, Precision::kF32, 8, 8, 16},
      {DType::kF32, Precision::kBF16, 33, 17, 65},   {DType::kF32, Precision::kF32, 33, 17, 65},
      {DType::kF32, Precision::kF32, 1, 1, 1},       {DType::kF32, Precision::kBF16, 5, 9, 128}};
  for (const MatMulCase& c : cases) {
    for (int form = 0; form < 3; ++form) {
      const bool ta = form == 2, tb = form == 1;
      const Array a = NormalArray(c.dtype, ta ? Shape{c.k, c.m} : Shape{c.m, c.k}, 7);
      const Array b = NormalArray(c.dtype, tb ? Shape{c.n, c.k} : Shape{c.k, c.n}, 8);
      const Array out =
          RunWhole({a, b}, DType::kF32, {c.m, c.n}, [&](Builder*, const std::vector<Value>& v) {
            return ta   ? DotTN(v[0], v[1], c.precision)
                   : tb ? DotNT(v[0], v[1], c.precision)
                        : Dot(v[0], v[1], c.precision);
          });
      const bool round = c.precision == Precision::kBF16 || c.dtype == DType::kBF16;
      const Array x = round ? Rounded(a) : a, y = round ? Rounded(b) : b;
      for (int64_t i = 0; i < c.m; ++i) {
        for (int64_t j = 0; j < c.n; ++j) {
          ASSERT_EQ(out.f32()[out.Offset({i, j})], PlainDot(x, y, ta, tb, i, j, c.k));
        }
      }
    }
  }
}

TEST(EvaluatorVector, MatrixProductAddsItsAccumulatorLast) {
  const Array a = NormalArray(DType::kF32, {8, 16}, 1), b = NormalArray(DType::kF32, {16, 8}, 2);
  const Array c = NormalArray(DType::kF32, {8, 8}, 3, 100.0f);
  const Array out =
      RunWhole({a, b, c}, DType::kF32, {8, 8}, [](Builder* builder, const std::vector<Value>& v) {
        return builder->Emit(Op::kMatMul, v[2].type(), {v[0].node(), v[1].node(), v[2].node()},
                             {0, 0, static_cast<int64_t>(Precision::kF32)});
      });
  for (int64_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out.f32()[i], c.f32()[i] + PlainDot(a, b, false, false, i / 8, i % 8, 16));
  }
}

TEST(EvaluatorVector, MatrixProductsKeepNaNAndFlush) {
  const Array a = Array::F32({1, 2}, {0.0f, 1e-39f}), nan = Array::F32({2, 1}, {NAN, 1.0f});
  const Array large = Array::F32({2, 1}, {1.0f, 1e38f});
  const auto dot = [](Builder*, const std::vector<Value>& v) {
    return Dot(v[0], v[1], Precision::kF32);
  };
  EXPECT_TRUE(std::isnan(RunWhole({a, nan}, DType::kF32, {1, 1}, dot).Get(0)));  // 0 * NaN
  EXPECT_EQ(RunWhole({a, large}, DType::kF32, {1, 1}, dot).Get(0), 0);  // 1e-39 is no operand
}

// --- Control flow, and the places values lie in ---

TEST(EvaluatorVector, LoopsAndBranches) {
  const Array in = Array::I32({1}, {5});
  Builder b("loops");
  b.Grid({1});
  const Ref n = b.InputSmem("n", DType::kI32, {1});
  const Ref out = b.Output("out", DType::kI32, {1, 4}, {1, 4}, ZeroMap(&b, 2));
  const Ref sum = b.ScratchSmem("sum", DType::kI32, {2});
  Store(sum.At(0), 0);
  Store(sum.At(1), 0);
  const Value outside = b.Iota({1, 4}, 1) * 2.0 + 1.0;
  b.For(1, Index(Load(n.At(0)) + 1.0), [&](Value i) {
    b.For(0, Index(i), [&](Value j) { Store(sum.At(0), Load(sum.At(0)) + j * 10.0 + i); });
    b.If(
        i % 2 == 0, [&] { Store(sum.At(1), Load(sum.At(1)) + 1.0); },
        [&] { Store(sum.At(1), Load(sum.At(1)) + 100.0); });
  });
  b.For(3, 3, [&](Value) { Store(sum.At(0), -1.0); });
  b.If(Load(n.At(0)) > 7, [&] { Store(sum.At(0), -2.0); });
  Store(out, outside + Load(sum.At(0)) * Load(sum.At(1)));
  int64_t total = 0, odd_even = 0;
  for (int64_t i = 1; i <= 5; ++i) {
    for (int64_t j = 0; j < i; ++j) total += 10 * j + i;
    odd_even += i % 2 == 0 ? 1 : 100;
  }
  const Array result = Evaluate(b.Take(), {in})[0];
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(result.Get(i), 2 * i + 1 + total * odd_even);
}

// Values in a random program are kept for long and short, cut, joined and used again inside loops:
// no buffer may be given away too early. The reference keeps every value.
class RandomProgram {
 public:
  RandomProgram(uint32_t seed, const Array& input) : random_(seed), input_(input) {}

  void Check() {
    const Program program =
        Whole({input_}, {DType::kF32, input_.shape()},
              [&](Builder* b, const std::vector<Value>& v) { return Build(b, v[0]); });
    EvaluateOptions options;
    int checked = 0;
    options.hook = [&](int node, const std::vector<int64_t>&, const Array& value) {
      const auto found = expected_.find(node);
      if (found == expected_.end()) return;
      ++checked;
      ASSERT_EQ(value.Floats(), found->second) << "node " << node;
    };
    Evaluate(program, {input_}, options);
    EXPECT_GE(checked, 120);
  }

 private:
  struct Known {
    Value value;
    std::vector<float> numbers;
  };

  Value Build(Builder* b, Value input) {
    std::vector<Known> known = {{input, input_.Floats()}};
    for (int i = 0; i < 60; ++i) Grow(&known);
    // Inside, everything from outside is still there, every time round.
    b->For(0, 3, [&](Value) {
      std::vector<Known> inside = known;
      for (int i = 0; i < 20; ++i) Grow(&inside);
      b->If(b->Constant(DType::kI32, 1) == 1, [&] {
        std::vector<Known> deeper = inside;
        for (int i = 0; i < 20; ++i) Grow(&deeper);
      });
      for (int i = 0; i < 10; ++i) Grow(&inside);
    });
    for (int i = 0; i < 40; ++i) Grow(&known);
    return known.back().value;
  }

  const Known& Pick(const std::vector<Known>& known) { return known[random_() % known.size()]; }

  // One more value of the input's shape [rows, columns].
  void Grow(std::vector<Known>* known) {
    const Known a = Pick(*known), b = Pick(*known);
    const int64_t rows = input_.shape()[0], columns = input_.shape()[1];
    const auto cut = static_cast<int64_t>(1 + random_() % static_cast<uint32_t>(rows - 1));
    Known c;
    c.numbers.resize(a.numbers.size());
    const auto each = [&](const std::function<float(int64_t, int64_t)>& f) {
      for (int64_t i = 0; i < rows * columns; ++i) {
        c.numbers[static_cast<size_t>(i)] = f(i / columns, i % columns);
      }
    };
    const auto at = [&](const Known& x, int64_t r, int64_t k) {
      return x.numbers[static_cast<size_t>(r * columns + k)];
    };
    switch (random_() % 5) {
      case 0:
        c.value = (a.value + b.value) * 0.5;
        each([&](int64_t r, int64_t k) { return (at(a, r, k) + at(b, r, k)) * 0.5f; });
        break;
      case 1:  // rows: parts that share their whole's place
        c.value = Concat({Rows(a.value, cut, rows - cut), Rows(b.value, 0, cut)}, 0);
        each([&](int64_t r, int64_t k) {
          return r < rows - cut ? at(a, r + cut, k) : at(b, r - rows + cut, k);
        });
        break;
      case 2:
        c.value = Reshape(Rotate(Reshape(a.value, {columns, rows}), static_cast<int64_t>(1), 0),
                          {rows, columns});
        each([&](int64_t r, int64_t k) {
          const int64_t n = rows * columns, i = r * columns + k;
          return a.numbers[static_cast<size_t>((i - rows + n) % n)];
        });
        break;
      case 3:
        c.value = BroadcastTo(Rows(a.value, cut, 1), {rows, columns}) - b.value;
        each([&](int64_t r, int64_t k) { return at(a, cut, k) - at(b, r, k); });
        break;
      default:
        c.value = Bits(Bits(a.value, DType::kI32), DType::kF32);
        c.numbers = a.numbers;
    }
    expected_[c.value.node()] = c.numbers;
    known->push_back(c);
  }

  std::mt19937 random_;
  Array input_;
  std::map<int, std::vector<float>> expected_;
};

TEST(EvaluatorVector, BuffersAreKeptWhileTheyAreNeeded) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    RandomProgram(seed, NormalArray(DType::kF32, {6, 5}, seed)).Check();
  }
}

}  // namespace
}  // namespace kda::tpu::ir
