// Memory: packed bf16, views, windows, and the errors of reading and writing where one must not.
#include <gtest/gtest.h>

#include "tpu/ir_programs.h"

namespace kda::tpu::ir {
namespace {

using ::testing::AssertionResult;

// Whether running the program fails with a message that holds all of `parts`.
AssertionResult Fails(const Program& program, const std::vector<Array>& arguments,
                      const std::vector<std::string>& parts) {
  const std::string message = ErrorOf([&] { Evaluate(program, arguments); });
  if (message.empty()) return ::testing::AssertionFailure() << "no error";
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "'" << message << "' lacks '" << part << "'";
    }
  }
  return ::testing::AssertionSuccess();
}

uint32_t Word(float low, float high) {
  return static_cast<uint32_t>(ToBF16(low)) | static_cast<uint32_t>(ToBF16(high)) << 16;
}

// --- The packed layout ---

TEST(EvaluatorMemory, WordsOfBF16HoldPairsOfRows) {
  const Array in = NormalArray(DType::kBF16, {3, 8, 5}, 1);
  Builder b("words");
  b.Grid({1});
  const Ref x = b.InputVmem("x", DType::kBF16, in.shape());
  const Ref out = b.Output("out", DType::kI32, {3, 4, 5}, {3, 4, 5}, ZeroMap(&b, 3));
  const Ref part = b.Output("part", DType::kI32, {2, 5}, {2, 5}, ZeroMap(&b, 2));
  const Ref scratch = b.Scratch("scratch", DType::kBF16, in.shape());
  Store(scratch, Load(x));
  Store(out, Load(scratch.Words()));
  Store(part, Load(scratch.At(1).Rows(2, 4).Words()));
  const std::vector<Array> result = Evaluate(b.Take(), {in});
  const auto want = [&](int64_t i, int64_t r, int64_t c) {
    return static_cast<int32_t>(Word(static_cast<float>(in.At({i, 2 * r, c})),
                                     static_cast<float>(in.At({i, 2 * r + 1, c}))));
  };
  for (int64_t k = 0; k < result[0].size(); ++k) {
    const Shape i = IndexOf(k, {3, 4, 5});
    ASSERT_EQ(result[0].i32()[k], want(i[0], i[1], i[2]));
  }
  for (int64_t k = 0; k < 10; ++k) ASSERT_EQ(result[1].i32()[k], want(1, 1 + k / 5, k % 5));
}

TEST(EvaluatorMemory, WordsAreWrittenAndRowsRead) {
  const Array low = NormalArray(DType::kF32, {2, 4}, 1), high = NormalArray(DType::kF32, {2, 4}, 2);
  Builder b("words");
  b.Grid({1});
  const Ref x = b.InputVmem("x", DType::kF32, {2, 4}), y = b.InputVmem("y", DType::kF32, {2, 4});
  const Ref out = b.Output("out", DType::kBF16, {4, 4}, {4, 4}, ZeroMap(&b, 2));
  Store(out.Words(), PackPair(Load(x), Load(y)));
  const Array result = Evaluate(b.Take(), {low, high})[0];
  for (int64_t k = 0; k < 8; ++k) {
    ASSERT_EQ(result.At({k / 4 * 2, k % 4}), RoundTo(low.Get(k), 8));
    ASSERT_EQ(result.At({k / 4 * 2 + 1, k % 4}), RoundTo(high.Get(k), 8));
  }
}

// Rows from any start, of an odd number of rows, one by one.
TEST(EvaluatorMemory, OddRowsOfBF16) {
  const Array in = NormalArray(DType::kBF16, {2, 7, 3}, 3);
  Builder b("odd");
  b.Grid({1});
  const Ref x = b.InputVmem("x", DType::kBF16, in.shape());
  const Ref out = b.Output("out", DType::kBF16, {2, 5, 3}, {2, 5, 3}, ZeroMap(&b, 3));
  const Ref last = b.Output("last", DType::kBF16, {3}, {3}, ZeroMap(&b, 1));
  const Ref scratch = b.Scratch("scratch", DType::kBF16, in.shape());
  for (int64_t r = 6; r >= 0; --r) Store(scratch.Slice(1, r, 1), Load(x.Slice(1, r, 1)));
  Store(out, Load(scratch.Slice(1, 1, 5)));
  Store(last, Load(scratch.At({1, 6})));
  const std::vector<Array> result = Evaluate(b.Take(), {in});
  for (int64_t k = 0; k < 30; ++k) {
    const Shape i = IndexOf(k, {2, 5, 3});
    ASSERT_EQ(result[0].Get(k), in.At({i[0], i[1] + 1, i[2]}));
  }
  for (int64_t c = 0; c < 3; ++c) ASSERT_EQ(result[1].Get(c), in.At({1, 6, c}));
}

// A part that begins at an odd row, and a part of it.
TEST(EvaluatorMemory, OddRowsOfOddRows) {
  const Array in = NormalArray(DType::kBF16, {8, 3}, 3);
  for (const int64_t start : {0, 1, 2}) {
    Builder b("odd");
    b.Grid({1});
    const Ref x = b.InputVmem("x", DType::kBF16, in.shape());
    const Ref out = b.Output("out", DType::kBF16, {2, 3}, {2, 3}, ZeroMap(&b, 2));
    const Ref part(
        &b, b.Emit(Op::kRefSlice, {DType::kBF16, {5, 3}, Space::kVmem}, {x.Node(), -1, -1}, {3, 0})
                .node());
    Store(out, Load(part.Rows(start, 2)));
    const Array result = Evaluate(b.Take(), {in})[0];
    for (int64_t i = 0; i < 6; ++i) ASSERT_EQ(result.Get(i), in.At({3 + start + i / 3, i % 3}));
  }
}

TEST(EvaluatorMemory, ReshapedWordsAndStrides) {
  // Two tokens of 8 heads: words [token, pair of heads, c]; every fourth row is one pair.
  const Array in = NormalArray(DType::kBF16, {3, 8, 4}, 4);
  Builder b("strides");
  b.Grid({1});
  const Ref x = b.InputVmem("x", DType::kBF16, in.shape());
  const Ref out = b.Output("out", DType::kI32, {2, 4}, {2, 4}, ZeroMap(&b, 2));
  const Ref back = b.Output("back", DType::kBF16, {3, 8, 4}, {3, 8, 4}, ZeroMap(&b, 3));
  Store(out, LoadStrided(x.Words().Reshape({12, 4}), 5, 2, 4));
  const Ref words = back.Words().Reshape({12, 4});
  for (int64_t pair = 0; pair < 4; ++pair) {
    StoreStrided(words, pair, 4, LoadStrided(x.Words().Reshape({12, 4}), pair, 3, 4));
  }
  const std::vector<Array> result = Evaluate(b.Take(), {in});
  for (int64_t k = 0; k < 8; ++k) {
    const int64_t token = 1 + k / 4, c = k % 4;
    ASSERT_EQ(result[0].i32()[k],
              static_cast<int32_t>(Word(static_cast<float>(in.At({token, 2, c})),
                                        static_cast<float>(in.At({token, 3, c})))));
  }
  EXPECT_EQ(result[1], in);
}

TEST(EvaluatorMemory, ReshapesOfParts) {
  const Array in = NormalArray(DType::kF32, {4, 3, 2, 5}, 5);
  Builder b("reshape");
  b.Grid({1});
  const Ref x = b.InputVmem("x", DType::kF32, in.shape());
  const Ref out = b.Output("out", DType::kF32, {2, 30}, {2, 30}, ZeroMap(&b, 2));
  const Ref rows = b.Output("rows", DType::kBF16, {12, 5}, {12, 5}, ZeroMap(&b, 2));
  const Ref packed = b.Scratch("packed", DType::kBF16, {3, 4, 5});
  Store(out, Load(x.Slice(0, 1, 2).Reshape({2, 30})));
  Store(packed, Cast(Load(x.Reshape({12, 10}).Slice(1, 3, 5).Rows(0, 12).Reshape({3, 4, 5})),
                     DType::kBF16));
  Store(rows, Load(packed.Reshape({12, 5})));
  const std::vector<Array> result = Evaluate(b.Take(), {in});
  for (int64_t k = 0; k < 60; ++k) ASSERT_EQ(result[0].Get(k), in.Get(30 + k));
  for (int64_t k = 0; k < 60; ++k) {
    ASSERT_EQ(result[1].Get(k), RoundTo(in.Get(k / 5 * 10 + 3 + k % 5), 8));
  }
}

TEST(EvaluatorMemory, ViewsThatTheLayoutDoesNotAllow) {
  const Array in = NormalArray(DType::kBF16, {8, 6}, 1);
  const auto loads = [&](const std::function<Ref(const Ref&)>& view) {
    Builder b("views");
    b.Grid({1});
    const Ref x = b.InputVmem("x", DType::kBF16, in.shape());
    Load(view(x));
    return b.Take();
  };
  EXPECT_TRUE(Fails(loads([](const Ref& x) { return x.Rows(1, 4).Words(); }), {in}, {"odd row"}));
  EXPECT_TRUE(Fails(loads([](const Ref& x) { return x.Reshape({4, 12}); }), {in}, {"pairs"}));
  EXPECT_TRUE(Fails(loads([](const Ref& x) { return x.Slice(1, 0, 3).Words().Reshape({12}); }),
                    {in}, {"RefReshape", "do not lie in a row"}));
  EXPECT_EQ(ErrorOf([&] {
              Evaluate(loads([](const Ref& x) {
                         return x.Slice(1, 0, 3).Words().Reshape({2, 2, 3});
                       }),
                       {in});
            }),
            "");
}

// --- SMEM ---

TEST(EvaluatorMemory, ScalarsAtDynamicPlaces) {
  const Array table = Array::I32({2, 3}, {4, 1, 0, 2, 5, 3});
  Builder b("smem");
  b.Grid({1});
  const Ref x = b.InputSmem("x", DType::kI32, {2, 3});
  const Ref out = b.Output("out", DType::kI32, {1, 6}, {1, 6}, ZeroMap(&b, 2));
  const Ref inverse = b.ScratchSmem("inverse", DType::kI32, {6});
  b.For(0, 6, [&](Value i) {
    Store(inverse.At(Index(Load(x.At({Index(i / 3.0), Index(i % 3)})))), i);
  });
  for (int64_t i = 0; i < 6; ++i) {
    Store(out.Slice(1, i, 1), BroadcastTo(Load(inverse.At(i)), {1, 1}));
  }
  EXPECT_EQ(Evaluate(b.Take(), {table})[0], Array::I32({1, 6}, {2, 1, 3, 5, 0, 4}));
}

// --- Bounds ---

// Loads x[i : i + 2] and stores it at y[j].
Program Dynamic() {
  Builder b("dynamic");
  b.Grid({2, 2});
  const Ref i = b.InputSmem("i", DType::kI32, {3});
  const Ref x = b.InputVmem("x", DType::kF32, {8, 4});
  const Ref hbm = b.Input("hbm", DType::kF32, {8, 4});
  const Ref y = b.Scratch("y", DType::kF32, {6, 4});
  const Ref semaphore = b.Semaphores("semaphore", 1);
  const Builder::Label label(&b, "output", 3);
  b.If((b.GridIndex(0) == 1) & (b.GridIndex(1) == 0), [&] {
    const Value v = Load(x.Rows(Index(Load(i.At(0))), 2));
    Store(y.Rows(Index(Load(i.At(1))), 2), v);
    const Ref rows = hbm.Rows(Index(Load(i.At(2))), 2);
    StartCopy(rows, y.Rows(4, 2), semaphore);
    WaitCopy(rows, y.Rows(4, 2), semaphore);
  });
  return b.Take();
}

TEST(EvaluatorMemory, OutOfBounds) {
  const Array x = NormalArray(DType::kF32, {8, 4}, 1);
  const auto fails = [&](int32_t load, int32_t store, int32_t copy,
                         const std::vector<std::string>& parts) {
    return Fails(Dynamic(), {Array::I32({3}, {load, store, copy}), x, x}, parts);
  };
  EXPECT_EQ(ErrorOf([&] { Evaluate(Dynamic(), {Array::I32({3}, {6, 4, 6}), x, x}); }), "");
  EXPECT_TRUE(fails(7, 0, 0,
                    {"kernel dynamic", "Load (output:h3), node ", "grid step (1, 0)",
                     "out of bounds: [7, 9) of dimension 0 of 8x4"}));
  EXPECT_TRUE(fails(-1, 0, 0, {"Load", "[-1, 1)"}));
  EXPECT_TRUE(fails(0, 5, 0, {"Store", "[5, 7) of dimension 0 of 6x4"}));
  EXPECT_TRUE(fails(0, 0, 7, {"RefSlice", "[7, 9) of dimension 0 of 8x4"}));
}

TEST(EvaluatorMemory, OutOfBoundsScalars) {
  for (const int32_t at : {-1, 3}) {
    for (const bool store : {false, true}) {
      Builder b("smem");
      b.Grid({1});
      const Ref i = b.InputSmem("i", DType::kI32, {1});
      const Ref s = b.ScratchSmem("s", DType::kI32, {3});
      for (int64_t k = 0; k < 3; ++k) Store(s.At(k), 0);
      const Ref place = s.At(Index(Load(i.At(0))));
      store ? Store(place, 1) : static_cast<void>(Load(place));
      EXPECT_TRUE(Fails(b.Take(), {Array::I32({1}, {at})},
                        {store ? "Store" : "Load", "out of bounds: [" + std::to_string(at)}));
    }
  }
}

// --- Never written ---

TEST(EvaluatorMemory, UnwrittenMemoryIsNotRead) {
  Builder b("unwritten");
  b.Grid({1});
  const Ref out = b.Output("out", DType::kF32, {4, 4}, {4, 4}, ZeroMap(&b, 2));
  const Ref s = b.Scratch("s", DType::kF32, {4, 4});
  Store(s.Rows(0, 2), 1.0);
  Store(s.Rows(3, 1), 1.0);
  Store(out.Rows(3, 1), Load(s.Rows(3, 1)));
  Store(out, Load(s));
  const Program program = b.Take();
  EXPECT_TRUE(Fails(program, {}, {"Load", "reads s[2, 0] of f32 4x4, which was never written"}));
  EvaluateOptions options;
  options.check_unwritten = false;
  const Array result = Evaluate(program, {}, options)[0];
  for (int64_t k = 0; k < 16; ++k) EXPECT_TRUE(Same(result.Get(k), k / 4 == 2 ? NAN : 1.0));
}

TEST(EvaluatorMemory, HalfAWordIsNotAWord) {
  for (const bool both : {false, true}) {
    Builder b("half");
    b.Grid({1});
    const Ref s = b.Scratch("s", DType::kBF16, {4, 2});
    Store(s.Rows(2, 1), 1.0);
    if (both) Store(s.Rows(3, 1), 1.0);
    Load(s.Rows(2, 1));
    Load(s.Rows(2, 2).Words());
    if (both) {
      EXPECT_EQ(ErrorOf([&] { Evaluate(b.Take(), {}); }), "");
    } else {
      EXPECT_TRUE(Fails(b.Take(), {}, {"reads s[2, 0] of bf16 4x2, which was never written"}));
    }
  }
}

TEST(EvaluatorMemory, UnwrittenScalarsAndOutputs) {
  Builder b("unwritten");
  b.Grid({1});
  const Ref s = b.ScratchSmem("s", DType::kI32, {2});
  Store(s.At(0), 1);
  Load(s.At(1));
  EXPECT_TRUE(Fails(b.Take(), {}, {"reads s[1] of i32 2, which was never written"}));
  Builder c("outputs");
  c.Grid({1});
  const Ref out = c.Output("out", DType::kF32, {2, 2}, {2, 2}, ZeroMap(&c, 2));
  Load(out);
  EXPECT_TRUE(Fails(c.Take(), {}, {"reads out[0, 0]", "never written"}));
}

TEST(EvaluatorMemory, OutputsStartAsNaN) {
  Builder b("nan");
  b.Grid({1});
  const Ref out = b.Output("out", DType::kBF16, {2, 2}, {2, 2}, ZeroMap(&b, 2));
  b.Output("hbm", DType::kF32, {3});
  Store(out.Rows(1, 1), 2.0);
  const std::vector<Array> result = Evaluate(b.Take(), {});
  EXPECT_TRUE(std::isnan(result[0].Get(0)) && std::isnan(result[1].Get(2)));
  EXPECT_EQ(result[0].Get(2), 2.0);
}

TEST(EvaluatorMemory, InputsAreNotWritten) {
  const Array x = NormalArray(DType::kF32, {2, 2}, 1);
  Builder b("inputs");
  b.Grid({1});
  const Ref in = b.InputVmem("x", DType::kF32, {2, 2});
  Store(in, 0.0);
  EXPECT_TRUE(Fails(b.Take(), {x}, {"Store", "writes x, an input"}));
  Builder c("inputs");
  c.Grid({1});
  const Ref hbm = c.Input("x", DType::kF32, {2, 2});
  const Ref s = c.Scratch("s", DType::kF32, {2, 2}), semaphore = c.Semaphores("semaphore", 1);
  Store(s, 0.0);
  StartCopy(s, hbm, semaphore);
  EXPECT_TRUE(Fails(c.Take(), {x}, {"EnqueueDma", "copies to x, an input"}));
}

// --- Other errors ---

TEST(EvaluatorMemory, IntegersThatHaveNoResult) {
  const auto with = [](int32_t n, const std::function<void(Value)>& use) {
    Builder b("integers");
    b.Grid({1});
    const Ref x = b.InputSmem("x", DType::kI32, {1});
    use(Load(x.At(0)));
    const Program program = b.Take();
    return ErrorOf([&] { Evaluate(program, {Array::I32({1}, {n})}); });
  };
  const auto divides = [](Value n) { n.builder()->Constant(DType::kI32, 8) / n; };
  const auto remains = [](Value n) { n.builder()->Constant(DType::kI32, 8) % n; };
  const auto assumes = [](Value n) { AssumeMultiple(n, 8); };
  EXPECT_EQ(with(1, divides) + with(1, remains) + with(16, assumes) + with(-8, assumes), "");
  EXPECT_NE(with(0, divides).find("divides by zero"), std::string::npos);
  EXPECT_NE(with(0, remains).find("divides by zero"), std::string::npos);
  EXPECT_NE(with(12, assumes).find("12 is no multiple of 8"), std::string::npos);
}

TEST(EvaluatorMemory, ArgumentsMustFit) {
  Builder b("arguments");
  b.Grid({1});
  b.InputVmem("x", DType::kF32, {2, 2});
  const Program program = b.Take();
  EXPECT_TRUE(Fails(program, {}, {"kernel arguments: 0 arguments for 1"}));
  EXPECT_TRUE(Fails(program, {Array(DType::kF32, {2, 3})}, {"argument x is f32 2x2, not f32 2x3"}));
  EXPECT_TRUE(Fails(program, {Array(DType::kI32, {2, 2})}, {"not i32 2x2"}));
}

}  // namespace
}  // namespace kda::tpu::ir
