#include "tpu/ir/counter.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tpu/ir_programs.h"

namespace kda::tpu::ir {
namespace {

TEST(Counter, WorkOfVectors) {
  Builder b("vectors");
  b.Grid({1});
  const Ref x = b.InputVmem("x", DType::kF32, {16, 32}), y = b.InputVmem("y", DType::kF32, {32, 8});
  const Ref s = b.Scratch("s", DType::kBF16, {16, 8});
  Value product, sum;
  {
    const Builder::Label label(&b, "products", 2);
    product = Dot(Load(x), Load(y));
    Dot(Load(x), Load(y), Precision::kF32);
  }
  {
    const Builder::Label label(&b, "elements");
    Value v = Exp2(product) + product;                                // 2 x 128
    v = Select(v > 0.0, v, 0.0);                                      // 2 x 128
    v = Reshape(Transpose(v), {16, 8});                               // nothing
    sum = ReduceSum(v, 1);                                            // reads 128
    v = v * BroadcastTo(sum, {16, 8});                                // 128
    Store(s, Cast(v, DType::kBF16));                                  // 128
    Reciprocal(sum, true);                                            // 16
    (b.Constant(DType::kI32, 3) + b.Constant(DType::kI32, 4)) * 2.0;  // scalars: nothing
  }
  const Counts c = Count(b.Take());
  Work products, elements;
  products.matmul_flops = 2 * 2 * 16 * 8 * 32;
  products.mxu_rows = 16 + 6 * 16;
  products.mxu_weights = 32 + 6 * 32;
  products.loaded = 2 * 4 * (16 * 32 + 32 * 8);
  elements.transcendentals = 128 + 16;
  elements.elementwise = 128 + 2 * 128 + 128 + 128 + 128;
  elements.stored = 128 * 2;
  EXPECT_TRUE(c.by_label.at("products:h2") == products);
  EXPECT_TRUE(c.by_label.at("elements") == elements);
  products.Add(elements);
  EXPECT_TRUE(c.total == products);
  EXPECT_EQ(c.steps, 1);
  EXPECT_EQ(c.BytesIn(), 4 * (16 * 32 + 32 * 8));
  EXPECT_EQ(c.vmem_bytes, 4 * (16 * 128 + 32 * 128) + 2 * 16 * 128);
}

TEST(Counter, ProductsWiderThanTheMatrixUnit) {
  Builder b("wide");
  b.Grid({1});
  const Ref x = b.InputVmem("x", DType::kBF16, {40, 300}),
            y = b.InputVmem("y", DType::kBF16, {130, 300});
  DotNT(Load(x), Load(y));
  const Program program = b.Take();
  const Work v6e = Count(program).total, v5e = Count(program, {}, {128}).total;
  EXPECT_EQ(v6e.mxu_rows, 40 * 2 * 1);
  EXPECT_EQ(v6e.mxu_weights, 300 * 1);
  EXPECT_EQ(v5e.mxu_rows, 40 * 3 * 2);
  EXPECT_EQ(v5e.mxu_weights, 300 * 2);
  EXPECT_EQ(v6e.matmul_flops, 2 * 40 * 130 * 300);
}

// 7 rows in blocks of 4: the second has 3. The input's block changes every second step.
TEST(Counter, WindowsMoveWhatLiesInTheArray) {
  Builder b("windows");
  b.Grid({2, 2});
  const auto rows = [&](const std::vector<Value>& grid) {
    return std::vector<Value>{grid[0], b.Constant(DType::kI32, 0)};
  };
  const auto columns = [&](const std::vector<Value>& grid) {
    return std::vector<Value>{b.Constant(DType::kI32, 0), grid[1]};
  };
  b.Input("x", DType::kF32, {7, 6}, {4, 6}, rows);
  b.Output("y", DType::kBF16, {7, 6}, {7, 4}, columns);
  const Counts c = Count(b.Take());
  ASSERT_EQ(c.windows.size(), 2u);
  EXPECT_EQ(c.windows[0].name, "x");
  EXPECT_EQ(c.windows[0].blocks, 2);
  EXPECT_EQ(c.windows[0].bytes, 4 * 7 * 6);
  EXPECT_TRUE(c.windows[1].output);
  EXPECT_EQ(c.windows[1].blocks, 4);
  EXPECT_EQ(c.windows[1].bytes, 2 * 2 * 7 * 6);
  EXPECT_EQ(c.BytesIn(), 4 * 7 * 6);
  EXPECT_EQ(c.BytesOut(), 2 * 2 * 7 * 6);
  EXPECT_EQ(c.steps, 4);
}

// Chunks of 4 tokens of each sequence, from cu_seqlens, through a table in SMEM.
Program Chunks() {
  Builder b("chunks");
  b.Grid({1});
  const Ref cu = b.Prefetch("cu", DType::kI32, {4});
  const Ref x = b.Input("x", DType::kBF16, {64, 128}), y = b.Output("y", DType::kBF16, {64, 128});
  const Ref s = b.Scratch("s", DType::kBF16, {4, 128}), semaphore = b.Semaphores("semaphore", 1);
  const Ref table = b.ScratchSmem("table", DType::kI32, {32}),
            count = b.ScratchSmem("count", DType::kI32, {1});
  Store(count.At(0), 0);
  const Builder::Label outer(&b, "walk");
  b.For(0, 3, [&](Value n) {
    const Value length = Load(cu.At(Index(n + 1.0))) - Load(cu.At(Index(n)));
    b.For(0, Index((length + 3.0) / 4.0), [&](Value i) {
      Store(table.At(Index(Load(count.At(0)))), Min(length - i * 4.0, 4.0));
      Store(count.At(0), Load(count.At(0)) + 1.0);
    });
  });
  const Builder::Label inner(&b, "chunk");
  b.For(0, Index(Load(count.At(0))), [&](Value i) {
    StartCopy(x.Rows(Index(i * 4.0), 4), s, semaphore.At(0));
    WaitCopy(x.Rows(Index(i * 4.0), 4), s, semaphore.At(0));
    const Builder::Label tail(&b, "tail");
    b.If(
        Load(table.At(Index(i))) == 4, [&] { Store(s, Load(s) * 2.0); },
        [&] { Store(s.Rows(0, 2), Load(s.Rows(0, 2)) * 2.0); });
    StartCopy(s, y.Rows(Index(i * 4.0), 4), semaphore.At(0));
    WaitCopy(s, y.Rows(Index(i * 4.0), 4), semaphore.At(0));
  });
  return b.Take();
}

TEST(Counter, FollowsTablesInSmem) {
  const Counts c = Count(Chunks(), {Array::I32({4}, {0, 8, 8, 21})});  // 2, 0 and 4 chunks
  const Work& tail = c.by_label.at("tail");
  std::map<std::string, int64_t> taken;
  for (const Branch& b : c.branches) taken[b.label] += b.taken;
  EXPECT_EQ(taken["walk"], 3 + 6);
  EXPECT_EQ(taken["chunk"], 6);
  EXPECT_EQ(taken["tail"], 5);
  EXPECT_EQ(tail.elementwise, 5 * 4 * 128 + 2 * 128);
  EXPECT_EQ(tail.copied_out, 6 * 4 * 128 * 2);
  EXPECT_EQ(c.by_label.at("chunk").copied_in, 6 * 4 * 128 * 2);
  const Branch* branch = nullptr;
  for (const Branch& b : c.branches) {
    if (!b.loop) branch = &b;
  }
  ASSERT_NE(branch, nullptr);
  EXPECT_EQ(branch->label, "tail");
  EXPECT_EQ(branch->reached, 6);
  EXPECT_EQ(branch->taken, 5);
  EXPECT_EQ(branch->otherwise, 1);
}

// What runs is what the evaluator runs: every node as often.
TEST(Counter, AgreesWithTheEvaluator) {
  const Program program = Chunks();
  const Array cu = Array::I32({4}, {0, 5, 17, 30}), x = NormalArray(DType::kBF16, {64, 128}, 1);
  std::vector<int64_t> runs(program.nodes.size(), 0);
  EvaluateOptions options;
  options.hook = [&](int node, const std::vector<int64_t>&, const Array&) {
    ++runs[static_cast<size_t>(node)];
  };
  Evaluate(program, {cu, x}, options);
  const Counts c = Count(program, {cu});
  int compared = 0;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    for (int node : program.blocks[b].nodes) {
      const Node& n = program.nodes[static_cast<size_t>(node)];
      if (!n.has_result || n.type.IsMemory() || n.op == Op::kIota) continue;
      EXPECT_EQ(runs[static_cast<size_t>(node)], c.block_runs[b]) << "node " << node;
      ++compared;
    }
  }
  EXPECT_GT(compared, 15);
}

TEST(Counter, IntegersAreTheEvaluators) {
  const int32_t low = std::numeric_limits<int32_t>::min();
  const std::vector<int32_t> numbers = {0, 1, -1, 7, -7, 30, low, low + 1, 0x7fffffff};
  for (int32_t x : numbers) {
    for (int32_t y : numbers) {
      Builder b("integers");
      b.Grid({1});
      const Ref in = b.Prefetch("in", DType::kI32, {2});
      const Ref out = b.Output("out", DType::kI32, {1, 20}, {1, 20}, ZeroMap(&b, 2));
      const Value u = Load(in.At(0)), v = Load(in.At(1)), w = v | b.Constant(DType::kI32, 1);
      std::vector<Value> results = {u + v,
                                    u - v,
                                    u * v,
                                    u / w,
                                    u % w,
                                    Min(u, v),
                                    Max(u, v),
                                    u & v,
                                    u ^ v,
                                    u << 3,
                                    ShiftRight(u, 5),
                                    AssumeMultiple(u, 1),
                                    Select(u < v, u, v)};
      for (const Value& mask : {u == v, u != v, u<v, u <= v, u> v, u >= v, ~(u < v)}) {
        results.push_back(Cast(mask, DType::kI32));
      }
      ASSERT_EQ(results.size(), 20u);
      for (size_t i = 0; i < results.size(); ++i) {
        Store(out.Slice(1, static_cast<int64_t>(i), 1), BroadcastTo(results[i], {1, 1}));
        // As many rounds as the low bits say, and whether it is negative.
        b.For(0, Index(results[i] & 31u), [](Value) {});
        b.If(results[i] < 0, [] {});
      }
      const Program program = b.Take();
      const Array args = Array::I32({2}, {x, y});
      const Array want = Evaluate(program, {args})[0];
      const std::vector<Branch> branches = Count(program, {args}).branches;
      ASSERT_EQ(branches.size(), 40u);
      for (int64_t i = 0; i < 20; ++i) {
        const size_t at = static_cast<size_t>(2 * i);
        EXPECT_EQ(branches[at].taken, want.i32()[i] & 31) << i << " of " << x << ", " << y;
        EXPECT_EQ(branches[at + 1].taken, want.i32()[i] < 0 ? 1 : 0)
            << i << " of " << x << ", " << y;
      }
    }
  }
}

std::string CountError(const Program& program, const std::vector<Array>& arguments = {}) {
  return ErrorOf([&] { Count(program, arguments); });
}

TEST(Counter, SaysWhatItCannotKnow) {
  EXPECT_NE(CountError(Chunks()).find("counting kernel chunks, For (walk), node "),
            std::string::npos);
  EXPECT_NE(CountError(Chunks(), {Array()}).find("a loop depends on a value that is not known"),
            std::string::npos);
  EXPECT_NE(CountError(Chunks(), {Array::I32({3}, {0, 1, 2})}).find("argument cu is i32 4"),
            std::string::npos);
  const auto on = [](const std::function<Value(Builder*)>& condition) {
    Builder b("unknown");
    b.Grid({1});
    b.If(condition(&b), [] {});
    return CountError(b.Take());
  };
  const auto scratch = [](Builder* b) { return b->ScratchSmem("s", DType::kI32, {4}); };
  EXPECT_NE(on([&](Builder* b) { return Load(scratch(b).At(0)) == 0; }), "");  // never written
  EXPECT_NE(on([&](Builder* b) { return b->Constant(DType::kF32, 1) > 0.0; }), "");
  // Something is written, who knows where: nothing is known of any element.
  const auto written = [&](Builder* b, bool known) {
    const Ref in = b->Prefetch("in", DType::kI32, {1}), s = scratch(b);
    Store(s.At(0), 3);
    Store(s.At(Index(known ? b->Constant(DType::kI32, 1) : Load(in.At(0)))), 4);
    return Load(s.At(0)) == 3;
  };
  EXPECT_EQ(on([&](Builder* b) { return written(b, true); }), "");
  EXPECT_NE(on([&](Builder* b) { return written(b, false); }), "");
  // Copies into SMEM bring what is not known.
  EXPECT_NE(on([&](Builder* b) {
              const Ref in = b->Input("in", DType::kI32, {4});
              const Ref s = scratch(b), semaphore = b->Semaphores("semaphore", 1);
              Store(s.At(0), 3);
              StartCopy(in.Rows(0, 2), s.Rows(2, 2), semaphore);
              WaitCopy(in.Rows(0, 2), s.Rows(2, 2), semaphore);
              return Load(s.At(0)) == 3;
            }),
            "");
  // What decides nothing may be unknown.
  EXPECT_EQ(on([&](Builder* b) {
              const Ref s = scratch(b);
              return (Load(s.At(0)) == 0) & (b->Constant(DType::kI32, 1) == 2);
            }),
            "");
}

TEST(Counter, InputsInSmemAreRead) {
  Builder b("smem");
  b.Grid({1});
  const Ref n = b.InputSmem("n", DType::kI32, {2});
  b.For(Index(Load(n.At(0))), Index(Load(n.At(1))), [](Value) {});
  EXPECT_EQ(Count(b.Take(), {Array::I32({2}, {3, 10})}).branches[0].taken, 7);
}

TEST(Counter, ErrorsOfPlaces) {
  Builder b("bounds");
  b.Grid({3});
  const Ref s = b.ScratchSmem("s", DType::kI32, {2});
  Store(s.At(Index(b.GridIndex(0))), 1);
  const std::string message = CountError(b.Take());
  EXPECT_NE(message.find("counting kernel bounds, Store, node "), std::string::npos) << message;
  EXPECT_NE(message.find("grid step (2): out of bounds: [2, 3)"), std::string::npos) << message;
}

// .. also where only the inputs say how long it is.
TEST(Counter, RefusesALoopThatTakesTooLong) {
  Builder b("endless");
  b.Grid({1});
  const Ref n = b.InputSmem("n", DType::kI32, {1});
  const Ref s = b.ScratchSmem("s", DType::kI32, {1});
  b.For(0, Index(Load(n.At(0))), [&](Value) { Store(s.At(0), 1); });
  const Program program = b.Take();
  CountOptions options;
  options.most_block_runs = 1000;
  EXPECT_NO_THROW(Count(program, {Array::I32({1}, {900})}, options));
  EXPECT_THROW(Count(program, {Array::I32({1}, {1100})}, options), BuildError);
}

// What would be counted for hours is refused.
TEST(Counter, RefusesWhatTakesTooLong) {
  Builder b("endless");
  b.Grid({1 << 20, 1 << 20});
  const Ref s = b.ScratchSmem("s", DType::kI32, {1});
  Store(s.At(0), 1);
  const Program program = b.Take();
  CountOptions options;
  options.most_block_runs = 1000;
  try {
    Count(program, {}, options);
    ADD_FAILURE() << "counted";
  } catch (const BuildError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.rfind("endless: the blocks of code that it runs are more than", 0), 0U) << text;
    EXPECT_NE(text.find("1000"), std::string::npos) << text;
  }
}

// .. before anything is counted, where the grid and loops of constant length alone are too much;
// and not where they are just as much as may be counted.
TEST(Counter, RefusesClosedBoundsAtOnce) {
  const auto nested = [](int64_t steps, int64_t outer, int64_t inner) {
    Builder b("nested");
    b.Grid({steps});
    const Ref s = b.ScratchSmem("s", DType::kI32, {1});
    b.For(0, outer, [&](Value) { b.For(0, inner, [&](Value) { Store(s.At(0), 1); }); });
    return b.Take();
  };
  CountOptions options;
  options.most_block_runs = 4 * (1 + 5 * (1 + 6));
  EXPECT_EQ(Count(nested(4, 5, 6), {}, options).steps, 4);
  EXPECT_EQ(Count(nested(4, 0, 6), {}, options).steps, 4);
  EXPECT_THROW(Count(nested(4, 5, 7), {}, options), BuildError);
  EXPECT_THROW(Count(nested(5, 5, 6), {}, options), BuildError);
  options.most_block_runs = int64_t{1} << 61;  // would be counted for years
  EXPECT_THROW(Count(nested(1 << 30, 1 << 30, 1 << 30), {}, options), BuildError);
}

// The loops of a long sequence: no vector is touched, or this would take hours.
TEST(Counter, TouchesNoVector) {
  Builder b("long");
  b.Grid({1000});
  const Ref s = b.ScratchSmem("s", DType::kI32, {64}),
            v = b.Scratch("v", DType::kF32, {4096, 4096});
  Store(s.At(0), 0);
  b.For(0, 100, [&](Value i) {
    Store(s.At(Index(i % 64)), i);
    b.If(Load(s.At(Index(i % 64))) % 3 == 0, [&] { Store(v, Exp2(Load(v))); });
  });
  const Counts c = Count(b.Take());
  EXPECT_EQ(c.total.transcendentals, int64_t{1000} * 34 * 4096 * 4096);
}

}  // namespace
}  // namespace kda::tpu::ir
