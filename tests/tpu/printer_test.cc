// The text of small kernel programs, and whether libtpu, where there is one, takes every operation.
#include "tpu/ir/printer.h"

#include <gtest/gtest.h>

#include <iterator>

#include "tpu/hlo/module.h"
#include "tpu/hlo/printer.h"
#include "tpu/ir_programs.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu::ir {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kI32 = DType::kI32, kI1 = DType::kI1;

// --- Through libtpu ---

// What libtpu says of the program; empty if it takes it.
std::string CompileError(Program program) {
  hlo::Module module("m");
  std::vector<hlo::Value> operands;
  for (const Argument& a : program.arguments) {
    if (a.role == Role::kPrefetch || a.role == Role::kInput) {
      operands.push_back(module.Input(a.name, {a.array.dtype, a.array.shape}));
    }
  }
  std::vector<std::string> outputs;
  for (const Argument& a : program.arguments) {
    if (a.role == Role::kOutput) outputs.push_back(a.name);
  }
  const std::vector<hlo::Value> results = module.Call(std::move(program), operands);
  for (size_t i = 0; i < outputs.size(); ++i) module.Output(outputs[i], results[i]);
  CompileRequest request = TinyRequest();
  request.module = hlo::Print(module);
  const CompileResult result = Compile(request);
  return result.ok() ? "" : result.message + "\n" + result.details;
}

// One operation on vectors, from VMEM and back.
struct Operation {
  const char* name;
  DType dtype;  // of the result
  Shape shape;
  Value (*build)(Builder*, Value f, Value g, Value h, Value i);  // f32 [16, 128] twice, bf16, i32
};

const Shape kTile = {16, 128};

const Operation kOperations[] = {
    {"+", kF32, kTile, [](Builder*, Value f, Value g, Value, Value) { return f + g; }},
    {"+ bf16", kBF16, kTile, [](Builder*, Value, Value, Value h, Value) { return h + h; }},
    {"+ i32", kI32, kTile, [](Builder*, Value, Value, Value, Value i) { return i + i; }},
    {"-", kF32, kTile, [](Builder*, Value f, Value g, Value, Value) { return f - g; }},
    {"- i32", kI32, kTile, [](Builder*, Value, Value, Value, Value i) { return -i; }},
    {"*", kF32, kTile, [](Builder*, Value f, Value g, Value, Value) { return f * g; }},
    {"* i32", kI32, kTile, [](Builder*, Value, Value, Value, Value i) { return i * 3.0; }},
    {"/", kF32, kTile, [](Builder*, Value f, Value g, Value, Value) { return f / g; }},
    {"min max", kF32, kTile,
     [](Builder*, Value f, Value g, Value, Value) { return Min(Max(f, 1.0), g); }},
    {"min max i32", kI32, kTile,
     [](Builder*, Value, Value, Value, Value i) { return Min(Max(i, 1.0), 5.0); }},
    {"& | ^ ~", kI32, kTile,
     [](Builder*, Value, Value, Value, Value i) { return ~((i & 7u) | (i ^ i)); }},
    {"shifts", kI32, kTile,
     [](Builder*, Value, Value, Value, Value i) { return (i << 3) + ShiftRight(i, 5); }},
    {"select", kF32, kTile,
     [](Builder*, Value f, Value g, Value, Value) {
       return Select((f < g) & ~(f == g), f, Select(f != g, f, 2.0)) + Select(f >= g, f, g) +
              Select(f <= g, g, f);
     }},
    {"select i32", kI32, kTile,
     [](Builder*, Value, Value, Value, Value i) {
       return Select((i > 3) | (i == 1), i, Select(i != 2, i, 0.0)) + Select(i <= 7, i, 1.0) +
              Select(i >= 8, i, 2.0);
     }},
    {"exp2", kF32, kTile, [](Builder*, Value f, Value, Value, Value) { return Exp2(f); }},
    {"log", kF32, kTile, [](Builder*, Value f, Value, Value, Value) { return Log(f); }},
    {"tanh", kF32, kTile, [](Builder*, Value f, Value, Value, Value) { return Tanh(f); }},
    {"rsqrt", kF32, kTile, [](Builder*, Value f, Value, Value, Value) { return Rsqrt(f); }},
    {"abs", kF32, kTile, [](Builder*, Value f, Value, Value, Value) { return Abs(f); }},
    {"reciprocal", kF32, kTile,
     [](Builder*, Value f, Value g, Value, Value) {
       return Reciprocal(f, true) + Reciprocal(g, false);
     }},
    {"exp2 bf16", kBF16, kTile, [](Builder*, Value, Value, Value h, Value) { return Exp2(h); }},
    {"i1 to f32", kF32, kTile,
     [](Builder*, Value f, Value g, Value, Value) { return Cast(f < g, kF32); }},
    {"i1 to i32", kI32, kTile,
     [](Builder*, Value f, Value g, Value, Value) { return Cast(f < g, kI32); }},
    {"i32 to f32", kF32, kTile,
     [](Builder*, Value, Value, Value, Value i) { return Cast(i, kF32); }},
    {"f32 to i32", kI32, kTile,
     [](Builder*, Value f, Value, Value, Value) { return Cast(f, kI32); }},
    {"f32 to bf16", kBF16, kTile,
     [](Builder*, Value f, Value, Value, Value) { return Cast(f, kBF16); }},
    {"bf16 to f32", kF32, kTile,
     [](Builder*, Value, Value, Value h, Value) { return Cast(h, kF32); }},
    {"bits of f32", kI32, kTile,
     [](Builder*, Value f, Value, Value, Value) { return Bits(f, kI32); }},
    {"bits of bf16",
     kI32,
     {8, 128},
     [](Builder*, Value, Value, Value h, Value) { return Bits(h, kI32); }},
    {"bf16 of bits",
     kBF16,
     {32, 128},
     [](Builder*, Value, Value, Value, Value i) { return Bits(i, kBF16); }},
    {"broadcast row", kF32, kTile,
     [](Builder*, Value f, Value g, Value, Value) { return g + Rows(f, 3, 1); }},
    {"broadcast column", kF32, kTile,
     [](Builder*, Value f, Value g, Value, Value) { return g + Cols(f, 3, 1); }},
    {"reshape",
     kF32,
     {2, 8, 128},
     [](Builder*, Value f, Value, Value, Value) {
       return Reshape(f, {2, 8, 128});
     }},
    {"rows", kF32, {8, 128}, [](Builder*, Value f, Value, Value, Value) { return Rows(f, 8, 8); }},
    {"concat",
     kF32,
     {32, 128},
     [](Builder*, Value f, Value g, Value, Value) {
       return Concat({f, g}, 0);
     }},
    {"concat lanes",
     kF32,
     {16, 256},
     [](Builder*, Value f, Value g, Value, Value) {
       return Concat({f, g}, 1);
     }},
    {"rotate", kF32, kTile,
     [](Builder*, Value f, Value, Value, Value) { return Rotate(Rotate(f, 3, 0), 5, 1); }},
    {"transpose",
     kF32,
     {128, 16},
     [](Builder*, Value f, Value, Value, Value) { return Transpose(f); }},
    {"reduce rows",
     kF32,
     {1, 128},
     [](Builder*, Value f, Value g, Value, Value) { return ReduceSum(f, 0) + ReduceMax(g, 0); }},
    {"reduce lanes",
     kF32,
     {16, 1},
     [](Builder*, Value f, Value g, Value, Value) { return ReduceSum(f, 1) + ReduceMax(g, 1); }},
    {"pack", kI32, kTile, [](Builder*, Value f, Value g, Value, Value) { return PackPair(f, g); }},
    {"iota", kI32, kTile,
     [](Builder* b, Value, Value, Value, Value) { return b->Iota(kTile, 0) + b->Iota(kTile, 1); }},
    {"A B^T",
     kF32,
     {16, 16},
     [](Builder*, Value f, Value g, Value h,
        Value) { return DotNT(f, g) + DotNT(f, g, Precision::kF32) + DotNT(h, h); }},
    {"A^T B",
     kF32,
     {128, 128},
     [](Builder*, Value f, Value g, Value h, Value) { return DotTN(f, g) + DotTN(h, h); }},
    {"A B", kF32, kTile,
     [](Builder*, Value f, Value g, Value, Value) { return Dot(DotNT(f, g, Precision::kF32), g); }},
};

// The operations, each stored to an output of its own.
Program Using(const Operation* first, size_t count) {
  Builder b("operations");
  b.Grid({1});
  const Ref f = b.InputVmem("f", kF32, kTile), g = b.InputVmem("g", kF32, kTile);
  const Ref h = b.InputVmem("h", kBF16, kTile), i = b.InputVmem("i", kI32, kTile);
  std::vector<Ref> outputs;
  for (size_t k = 0; k < count; ++k) {
    outputs.push_back(b.Output("out_" + std::to_string(k), first[k].dtype, first[k].shape,
                               first[k].shape, ZeroMap(&b, first[k].shape.size())));
  }
  for (size_t k = 0; k < count; ++k) {
    Store(outputs[k], first[k].build(&b, Load(f), Load(g), Load(h), Load(i)));
  }
  return b.Take();
}

TEST(PrinterCompile, OperationsOfVectors) {
  KDA_NEEDS_LIBTPU();
  const std::string error = CompileError(Using(kOperations, std::size(kOperations)));
  if (error.empty()) return;
  ADD_FAILURE() << error.substr(0, 1500);
  for (const Operation& o : kOperations) {  // which one is it?
    EXPECT_EQ(CompileError(Using(&o, 1)).substr(0, 1500), "") << o.name;
  }
}

// Memory of every kind, copies, control flow and scalars.
Program Memory() {
  Builder b("memory");
  b.Grid({2, 3});
  const Ref table = b.Prefetch("table", kI32, {8});
  const Ref x = b.Input("x", kBF16, {96, 8, 128});
  const Ref blocks = b.Input("blocks", kF32, {48, 128}, {8, 128}, [&](const std::vector<Value>& g) {
    return std::vector<Value>{g[0] * 3.0 + Load(table.At(Index(g[1]))), b.Constant(kI32, 0)};
  });
  const Ref small = b.InputSmem("small", kI32, {2, 4});
  const Ref y = b.Output("y", kBF16, {96, 8, 128});
  const Ref z = b.Output("z", kF32, {48, 128}, {8, 128}, [](const std::vector<Value>& g) {
    return std::vector<Value>{g[0] * 3.0 + g[1], g[0] * 0.0};
  });
  const Ref buffer = b.Scratch("buffer", kBF16, {2, 16, 8, 128});
  const Ref rows = b.Scratch("rows", kF32, {4, 16, 128});
  const Ref count = b.ScratchSmem("count", kI32, {2});
  const Ref semaphores = b.Semaphores("semaphores", 2);

  const Value step = b.GridIndex(0) * 3.0 + b.GridIndex(1), slot = step & 1u;
  const Builder::Label label(&b, "stage", 2);
  const Value first = AssumeMultiple(step * 16.0, 16);
  const Ref from = x.Rows(Index(first), 16), half = buffer.At(Index(slot));
  const Ref semaphore = semaphores.At(Index(slot));
  StartCopy(from, half, semaphore);
  WaitCopy(from, half, semaphore);
  Store(count.At(0), Load(small.At({1, Index(slot)})) / 3.0 % 4 + Min(step, 2.0));
  b.For(0, Index(Load(count.At(0))), [&](Value i) {
    Store(rows.At(Index(i & 3u)), Load(rows.At(Index(i & 3u))) + Cast(i, kF32));
    b.If((i == 0) | (i > 3), [&] { Store(rows.At(0), 0.0); },
         [&] { Store(count.At(1), Select(i != 2, i, step)); });
  });
  const Ref words = half.Words().Reshape({64, 128});
  const Value pair = LoadStrided(words, 1, 16, 4);
  StoreStrided(words, 2, 4, pair ^ Bits(Load(rows.At(1)), kI32));
  Store(z, Load(blocks) * 2.0 + Load(rows.At(2).Rows(8, 8)));
  StartCopy(half, y.Rows(Index(first), 16), semaphore);
  WaitCopy(half, y.Rows(Index(first), 16), semaphore);
  return b.Take();
}

TEST(PrinterCompile, MemoryAndControl) {
  KDA_NEEDS_LIBTPU();
  EXPECT_EQ(CompileError(Memory()).substr(0, 3000), "");
}

// --- The text itself ---

// One statement of each kind, in an order that does not hang on how C++ evaluates arguments.
Program Small() {
  Builder b("small");
  b.Grid({4});
  const Ref table = b.Prefetch("table", kI32, {4});
  const Ref x = b.Input("x", kF32, {32, 128}, {8, 128}, [&](const std::vector<Value>& g) {
    const Value block = Load(table.At(Index(g[0])));
    return std::vector<Value>{block, b.Constant(kI32, 0)};
  });
  const Ref w = b.InputVmem("w", kBF16, {128, 128});
  const Ref y = b.Output("y", kF32, {32, 128});
  const Ref s = b.Scratch("s", kF32, {2, 8, 128}), semaphores = b.Semaphores("done", 1);
  const Value step = b.GridIndex(0), slot = step & 1u;
  {
    const Builder::Label label(&b, "product", 1);
    const Value bf = Cast(Load(x), kBF16);
    Store(s.At(Index(slot)), Dot(bf, Load(w)));
  }
  b.If(
      step == 3,
      [&] {
        b.For(0, Index(step), [&](Value i) {
          const Value first = AssumeMultiple(i * 8.0, 8);
          const Ref to = y.Rows(Index(first), 8);
          StartCopy(s.At(0), to, semaphores);
        });
      },
      [&] { Store(s.At(1), 0.5); });
  return b.Take();
}

constexpr char kSmall[] = R"(module attributes {stable_mosaic.version = 15 : i64} {
  func.func @small(%g0: i32, %table: memref<4xi32, #tpu.memory_space<smem>>, %x: memref<8x128xf32, #tpu.memory_space<vmem>>, %w: memref<128x128xbf16, #tpu.memory_space<vmem>>, %y: memref<32x128xf32, #tpu.memory_space<hbm>>, %s: memref<2x8x128xf32, #tpu.memory_space<vmem>>, %done: memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) attributes {dimension_semantics = [#tpu.dimension_semantics<arbitrary>], iteration_bounds = array<i64: 4>, scalar_prefetch = 1 : i64, scratch_operands = 2 : i64, tpu.core_type = #tpu.core_type<tc>, window_params = [{transform_indices = @window_1, window_bounds = array<i64: 8, 128>}, {pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @window_2, window_bounds = array<i64: 128, 128>}, {}]} {
    %c0 = arith.constant 1 : i32
    %c1 = arith.constant 0 : index
    %c2 = arith.constant dense<0x00000000> : vector<8x128xf32>
    %c3 = arith.constant 3 : i32
    %c4 = arith.constant 0 : i32
    %c5 = arith.constant 8 : i32
    %c6 = arith.constant dense<0x3F000000> : vector<8x128xf32>
    %c7 = arith.constant 1 : index
    %13 = arith.andi %g0, %c0 : i32
    %14 = vector.load %x[%c1, %c1] : memref<8x128xf32, #tpu.memory_space<vmem>>, vector<8x128xf32> loc("product:h1":14:1)
    %15 = arith.truncf %14 : vector<8x128xf32> to vector<8x128xbf16> loc("product:h1":15:1)
    %16 = vector.load %w[%c1, %c1] : memref<128x128xbf16, #tpu.memory_space<vmem>>, vector<128x128xbf16> loc("product:h1":16:1)
    %18 = tpu.matmul %15, %16, %c2 {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs_hint = false} : vector<8x128xbf16>, vector<128x128xbf16>, vector<8x128xf32> -> vector<8x128xf32> loc("product:h1":18:1)
    %19 = vector.shape_cast %18 : vector<8x128xf32> to vector<1x8x128xf32> loc("product:h1":19:1)
    %i0 = arith.index_cast %13 : i32 to index loc("product:h1":20:1)
    tpu.vector_store %s[%i0, %c1, %c1], %19 {strides = array<i32>} : memref<2x8x128xf32, #tpu.memory_space<vmem>>, vector<1x8x128xf32>, loc("product:h1":20:1)
    %22 = arith.cmpi eq, %g0, %c3 : i32
    scf.if %22 {
      scf.for %27 = %c4 to %g0 step %c0 : i32 {
        %29 = arith.muli %27, %c5 : i32
        %30 = tpu.assume_multiple %29, 8 : i32
        %31 = tpu.memref_slice %s[%c4, %c4, %c4] : memref<2x8x128xf32, #tpu.memory_space<vmem>> -> memref<1x8x128xf32, #tpu.memory_space<vmem>>
        %32 = tpu.memref_squeeze %31 : memref<1x8x128xf32, #tpu.memory_space<vmem>> -> memref<8x128xf32, #tpu.memory_space<vmem>>
        %33 = tpu.memref_slice %y[%30, %c4] : memref<32x128xf32, #tpu.memory_space<hbm>> -> memref<8x128xf32, #tpu.memory_space<hbm>>
        %34 = tpu.memref_squeeze %done : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        tpu.enqueue_dma source(%32 : memref<8x128xf32, #tpu.memory_space<vmem>>) target(%33 : memref<8x128xf32, #tpu.memory_space<hbm>>) target_semaphore(%34 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
      }
    } else {
      %37 = vector.shape_cast %c6 : vector<8x128xf32> to vector<1x8x128xf32>
      tpu.vector_store %s[%c7, %c1, %c1], %37 {strides = array<i32>} : memref<2x8x128xf32, #tpu.memory_space<vmem>>, vector<1x8x128xf32>,
    }
    return
  }
  func.func @window_1(%g0: i32, %table: memref<4xi32, #tpu.memory_space<smem>>) -> (i32, i32) {
    %c0 = arith.constant 0 : i32
    %i0 = arith.index_cast %g0 : i32 to index
    %2 = memref.load %table[%i0] : memref<4xi32, #tpu.memory_space<smem>>
    return %2, %c0 : i32, i32
  }
  func.func @window_2(%g0: i32, %table: memref<4xi32, #tpu.memory_space<smem>>) -> (i32, i32) {
    %c0 = arith.constant 0 : i32
    return %c0, %c0 : i32, i32
  }
}
)";

TEST(Printer, SmallProgram) { EXPECT_EQ(Print(Small()), kSmall); }

TEST(Printer, WithoutLocations) {
  const std::string text = Print(Small(), false);
  EXPECT_EQ(text.find("loc("), std::string::npos);
  std::string with = Print(Small());
  for (size_t at; (at = with.find(" loc(")) != std::string::npos;) {
    with.erase(at, with.find('\n', at) - at);
  }
  EXPECT_EQ(text, with);
}

// The lines of the body that compute `build`'s result, without what comes before them.
std::string LinesOf(const std::function<void(Builder*)>& build) {
  Builder b("lines");
  build(&b);
  const std::string text = Print(b.Take(), false);
  const size_t from = text.find("{\n", text.find("window_params")) + 2;
  return text.substr(from, text.find("    return\n") - from);
}

TEST(Printer, Constants) {
  EXPECT_EQ(
      LinesOf([](Builder* b) {
        const Value f = b->Constant(kF32, 1.5, {8, 128}), h = b->Constant(kBF16, -0.0, {8, 128});
        f + f;
        h + h;
        const Value n = b->Constant(kI32, -7), t = b->Constant(kI1, 1);
        n + n;
        t& t;
      }),
      "    %c0 = arith.constant dense<0x3FC00000> : vector<8x128xf32>\n"
      "    %c1 = arith.constant dense<0x8000> : vector<8x128xbf16>\n"
      "    %c2 = arith.constant -7 : i32\n"
      "    %c3 = arith.constant true\n"
      "    %2 = arith.addf %c0, %c0 : vector<8x128xf32>\n"
      "    %3 = arith.addf %c1, %c1 : vector<8x128xbf16>\n"
      "    %6 = arith.addi %c2, %c2 : i32\n"
      "    %7 = arith.andi %c3, %c3 : i1\n");
}

TEST(Printer, ConversionsInSteps) {
  EXPECT_EQ(LinesOf([](Builder* b) {
              const Value mask = b->Constant(kI1, 1);
              Cast(mask, kBF16);
              Cast(Cast(b->Constant(kBF16, 1), kI32), kBF16);
            }),
            "    %c0 = arith.constant true\n"
            "    %c1 = arith.constant 0x3F80 : bf16\n"
            "    %w1_0 = arith.extui %c0 : i1 to i32\n"
            "    %w1_1 = arith.sitofp %w1_0 : i32 to f32\n"
            "    %1 = arith.truncf %w1_1 : f32 to bf16\n"
            "    %w3_0 = arith.extf %c1 : bf16 to f32\n"
            "    %3 = arith.fptosi %w3_0 : f32 to i32\n"
            "    %w4_0 = arith.sitofp %3 : i32 to f32\n"
            "    %4 = arith.truncf %w4_0 : f32 to bf16\n");
}

// The printer's precision is the builder's: what the evaluator computes is what is compiled.
TEST(Printer, PrecisionAndFormOfProducts) {
  const auto product = [](DType dtype, Precision precision, bool transpose_a, bool transpose_b) {
    return LinesOf([&](Builder* b) {
      const Value x = b->Constant(dtype, 1, {128, 128});
      transpose_a   ? DotTN(x, x, precision)
      : transpose_b ? DotNT(x, x, precision)
                    : Dot(x, x, precision);
    });
  };
  const auto holds = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const char* const full = "precision = #tpu.contract_precision<fp32>";
  EXPECT_TRUE(holds(product(kF32, Precision::kF32, false, false), full));
  EXPECT_FALSE(holds(product(kF32, Precision::kBF16, false, false), full));
  EXPECT_FALSE(holds(product(kBF16, Precision::kF32, false, false), full));
  EXPECT_TRUE(holds(product(kBF16, Precision::kBF16, false, false),
                    "<[1], [0], [0], [1], [0, 0, 1, 1], [], []>"));
  EXPECT_TRUE(holds(product(kBF16, Precision::kBF16, false, true),
                    "<[1], [1], [0], [0], [0, 0, 1, 0], [], []>"));
  EXPECT_TRUE(holds(product(kBF16, Precision::kBF16, true, false),
                    "<[0], [0], [1], [1], [0, 1, 1, 1], [], []>"));
}

}  // namespace
}  // namespace kda::tpu::ir
