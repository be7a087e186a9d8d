// What cannot be is refused while a program is built, with a message that says what.
#include "tpu/ir/builder.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tpu/ir_programs.h"

namespace kda::tpu::ir {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kI32 = DType::kI32, kI1 = DType::kI1;

// What is at hand in every refused program.
struct Parts {
  Builder b{"parts"};
  Ref table = b.Prefetch("table", kI32, {4});
  Ref hbm = b.Input("hbm", kF32, {16, 8});
  Ref small = b.Input("small", kF32, {2, 8});
  Ref out = b.Output("out", kF32, {16, 8});
  Ref words = b.Scratch("words", kI32, {16, 8});
  Ref vmem = b.Scratch("vmem", kF32, {16, 8});
  Ref packed = b.Scratch("packed", kBF16, {16, 8});
  Ref odd = b.Scratch("odd", kBF16, {3, 8});
  Ref smem = b.ScratchSmem("smem", kI32, {4});
  Ref semaphores = b.Semaphores("semaphores", 2);
  Value f = b.Constant(kF32, 1, {16, 8});  // vectors
  Value g = b.Constant(kF32, 1, {8, 16});
  Value row = b.Constant(kF32, 1, {1, 8});
  Value h = b.Constant(kBF16, 1, {16, 8});
  Value i = b.Constant(kI32, 1, {16, 8});
  Value m = b.Constant(kI1, 1, {16, 8});
  Value n = b.Constant(kI32, 1);  // scalars
  Value r = b.Constant(kF32, 1);
  Value c = b.Constant(kI1, 1);
};

std::string Refusal(const std::function<void(Parts&)>& build) {
  Parts parts;
  try {
    build(parts);
  } catch (const BuildError& error) {
    return error.what();
  }
  return "";
}

struct Refused {
  const char* message;  // a part of it
  void (*build)(Parts&);
};

void ExpectRefused(const std::vector<Refused>& cases) {
  for (const Refused& c : cases) {
    const std::string message = Refusal(c.build);
    EXPECT_NE(message, "") << "allowed: " << c.message;
    EXPECT_NE(message.find(c.message), std::string::npos) << message << " for " << c.message;
  }
}

TEST(Builder, RefusesElementwise) {
  ExpectRefused({
      {"+: vector<16x8xf32> and vector<16x8xbf16>", [](Parts& p) { p.f + p.h; }},
      {"*: vector<16x8xf32> and vector<8x16xf32>", [](Parts& p) { p.f* p.g; }},
      {"+: vector<16x8xf32> and vector<8xf32>", [](Parts& p) { p.f + p.b.Constant(kF32, 1, {8}); }},
      {"% of vector<16x8xf32>", [](Parts& p) { p.f % p.f; }},
      {"& of vector<16x8xf32>", [](Parts& p) { p.f& p.f; }},
      {"| of vector<16x8xf32>", [](Parts& p) { p.f | p.f; }},
      {"^ of vector<16x8xf32>", [](Parts& p) { ~p.f; }},
      {"a shift of vector<16x8xf32>", [](Parts& p) { p.f << 1; }},
      {"a shift by 32 bits", [](Parts& p) { p.i << 32; }},
      {"a shift by -1 bits", [](Parts& p) { ShiftRight(p.i, -1); }},
      {"+ of i1", [](Parts& p) { p.m + p.m; }},
      {"Min of i1", [](Parts& p) { Min(p.m, p.m); }},
      {"comparison: vector<16x8xi32> and vector<16x8xf32>",
       [](Parts& p) { static_cast<void>(p.i == p.f); }},
      {"comparison: vector<16x8xf32> and vector<8x16xf32>",
       [](Parts& p) { static_cast<void>(p.f < p.g); }},
      {"Select: vector<16x8xi32> of", [](Parts& p) { Select(p.i, p.f, p.f); }},
      {"Select: vector<16x8xi1> of vector<16x8xf32> and vector<16x8xbf16>",
       [](Parts& p) { Select(p.m, p.f, p.h); }},
      {"Select: vector<16x8xi1> of", [](Parts& p) { Select(p.m, p.g, p.g); }},
      {"Exp2 of vector<16x8xi32>", [](Parts& p) { Exp2(p.i); }},
      {"Log of", [](Parts& p) { Log(p.i); }},
      {"Tanh of", [](Parts& p) { Tanh(p.i); }},
      {"Rsqrt of", [](Parts& p) { Rsqrt(p.i); }},
      {"Abs of", [](Parts& p) { Abs(p.i); }},
      {"Reciprocal of", [](Parts& p) { Reciprocal(p.i, true); }},
      {"Cast: to f32, bf16 or i32 only", [](Parts& p) { Cast(p.f, kI1); }},
      {"AssumeMultiple: vector<16x8xi32>", [](Parts& p) { AssumeMultiple(p.i, 8); }},
      {"AssumeMultiple: i32", [](Parts& p) { AssumeMultiple(p.n, 0); }},
      {"Constant: 0.500000 is no i32", [](Parts& p) { p.i * 0.5; }},
      {"is no i32", [](Parts& p) { p.b.Constant(kI32, 0x1p31); }},
      {"is no i32", [](Parts& p) { p.b.Constant(kI32, NAN); }},
      {"a value that was never computed", [](Parts& p) { Value() + p.f; }},
      {"a value that was never computed", [](Parts& p) { p.f + Value(); }},
  });
}

TEST(Array, RefusesShapesThatAreNone) {
  EXPECT_THROW(Array(kF32, {-4}), BuildError);
  EXPECT_THROW(Array(kF32, {-4, -4}), BuildError);
  EXPECT_THROW(Array(kF32, {int64_t{1} << 40, int64_t{1} << 40}), BuildError);
  EXPECT_EQ(Array(kF32, {4, 0}).size(), 0);
}

TEST(Builder, RefusesVectors) {
  ExpectRefused({
      {"Bits: of f32, i32 and bf16 only", [](Parts& p) { Bits(p.m, kI32); }},
      {"Bits: between 16 and 32 bits, a matrix is needed",
       [](Parts& p) { Bits(p.b.Constant(kBF16, 1, {8}), kI32); }},
      {"Bits: an even number of rows is needed",
       [](Parts& p) {
         Bits(p.b.Constant(kBF16, 1, {3, 8}), kI32);
       }},
      {"broadcast of vector<1x8xf32> to 16x4",
       [](Parts& p) {
         BroadcastTo(p.row, {16, 4});
       }},
      {"broadcast of vector<1x8xf32> to 8", [](Parts& p) { BroadcastTo(p.row, {8}); }},
      {"Reshape of vector<16x8xf32> to 16x9",
       [](Parts& p) {
         Reshape(p.f, {16, 9});
       }},
      {"Reshape: of vectors",
       [](Parts& p) {
         Reshape(p.b.Constant(kF32, 1, {1, 1}), {});
       }},
      {"Reshape: of vectors",
       [](Parts& p) {
         Reshape(p.r, {1, 1});
       }},
      {"Slice: [12, 17) of dimension 0 of vector<16x8xf32>", [](Parts& p) { Rows(p.f, 12, 5); }},
      {"Slice: [-1, 1)", [](Parts& p) { Cols(p.f, -1, 2); }},
      {"Slice: [0, 0)", [](Parts& p) { Rows(p.f, 0, 0); }},
      {"of dimension 2", [](Parts& p) { Slice(p.f, 2, 0, 1); }},
      {"of dimension -1", [](Parts& p) { Slice(p.f, -1, 0, 1); }},
      {"Concat of nothing", [](Parts&) { Concat({}, 0); }},
      {"Concat: no such dimension",
       [](Parts& p) {
         Concat({p.f, p.f}, 2);
       }},
      {"Concat: vector<16x8xf32> and vector<8x16xf32>",
       [](Parts& p) {
         Concat({p.f, p.g}, 0);
       }},
      {"Concat: vector<16x8xf32> and vector<16x8xbf16>",
       [](Parts& p) {
         Concat({p.f, p.h}, 0);
       }},
      {"Rotate: no such dimension", [](Parts& p) { Rotate(p.f, 1, 2); }},
      {"an index must be an i32 scalar, not f32", [](Parts& p) { Rotate(p.f, Index(p.r), 0); }},
      {"Transpose: one entry per dimension", [](Parts& p) { Transpose(p.f, {0}); }},
      {"Transpose: not a permutation",
       [](Parts& p) {
         Transpose(p.f, {0, 0});
       }},
      {"Transpose: not a permutation",
       [](Parts& p) {
         Transpose(p.f, {0, 2});
       }},
      {"ReduceSum: vector<16x8xi32>", [](Parts& p) { ReduceSum(p.i, 0); }},
      {"ReduceMax: vector<16x8xf32>", [](Parts& p) { ReduceMax(p.f, 2); }},
      {"PackPair: vector<16x8xf32> and vector<8x16xf32>", [](Parts& p) { PackPair(p.f, p.g); }},
      {"PackPair: vector<16x8xbf16>", [](Parts& p) { PackPair(p.h, p.h); }},
      {"Dot: vector<16x8xf32> and vector<16x8xf32>", [](Parts& p) { Dot(p.f, p.f); }},
      {"Dot: vector<16x8xf32> and vector<8x16xf32>", [](Parts& p) { DotNT(p.f, p.g); }},
      {"Dot: vector<16x8xf32> and vector<8x16xf32>", [](Parts& p) { DotTN(p.f, p.g); }},
      {"Dot: vector<16x8xf32> and vector<16x8xbf16>", [](Parts& p) { DotNT(p.f, p.h); }},
      {"Dot: vector<16x8xi32>", [](Parts& p) { DotNT(p.i, p.i); }},
      {"Dot: f32 and f32", [](Parts& p) { Dot(p.r, p.r); }},
      {"Iota: no such dimension",
       [](Parts& p) {
         p.b.Iota({4, 4}, 2);
       }},
  });
}

TEST(Builder, RefusesMemory) {
  ExpectRefused({
      {"Load: of VMEM and SMEM only", [](Parts& p) { Load(p.hbm); }},
      {"Load: of VMEM and SMEM only", [](Parts& p) { Load(p.semaphores.At(0)); }},
      {"Load: SMEM holds scalars", [](Parts& p) { Load(p.smem); }},
      {"Store: of VMEM and SMEM only", [](Parts& p) { Store(p.out, p.f); }},
      {"Store: vector<16x8xbf16> into f32 16x8", [](Parts& p) { Store(p.vmem, p.h); }},
      {"Store: vector<8x16xf32> into f32 16x8", [](Parts& p) { Store(p.vmem, p.g); }},
      {"Store: vector<16x8xi32> into i32", [](Parts& p) { Store(p.smem.At(0), p.i); }},
      {"Ref::At: more indices than dimensions",
       [](Parts& p) {
         p.vmem.At({1, 2, 3});
       }},
      {"Ref::At: index 16 of 16", [](Parts& p) { p.vmem.At(16); }},
      {"Ref::At: index -1 of 16", [](Parts& p) { p.vmem.At(-1); }},
      {"Ref::At: index 2 of 2", [](Parts& p) { p.vmem.Rows(Index(p.n), 2).At(2); }},
      {"an index must be an i32 scalar, not f32", [](Parts& p) { p.vmem.At(Index(p.r)); }},
      {"an index must be an i32 scalar, not vector<16x8xi32>",
       [](Parts& p) { p.vmem.Rows(Index(p.i), 2); }},
      {"Ref::Slice: 2 from 15 of 16", [](Parts& p) { p.vmem.Rows(15, 2); }},
      {"Ref::Slice: 17 from", [](Parts& p) { p.vmem.Rows(Index(p.n), 17); }},
      {"Ref::Slice: 0 from", [](Parts& p) { p.vmem.Rows(0, 0); }},
      {"Ref::Slice: no such dimension", [](Parts& p) { p.vmem.Slice(2, 0, 1); }},
      {"Ref::Slice: no such dimension", [](Parts& p) { p.vmem.At(0).Slice(1, 0, 1); }},
      {"Ref::Words: an even number of rows is needed", [](Parts& p) { p.odd.Words(); }},
      {"Ref::Words: an even number of rows is needed", [](Parts& p) { p.packed.At(0).Words(); }},
      {"Ref::Reshape: element counts differ",
       [](Parts& p) {
         p.vmem.Reshape({16, 9});
       }},
      {"strided access: 3 rows from 2 by 7 of f32 16x8",
       [](Parts& p) { LoadStrided(p.vmem, 2, 3, 7); }},
      {"strided access", [](Parts& p) { LoadStrided(p.vmem, -1, 1, 1); }},
      {"strided access", [](Parts& p) { LoadStrided(p.vmem, 0, 1, 0); }},
      {"strided access: 2 rows from 0 by 2 of bf16",
       [](Parts& p) { LoadStrided(p.packed, 0, 2, 2); }},
      {"strided access", [](Parts& p) { LoadStrided(p.hbm, 0, 2, 2); }},
      {"strided access", [](Parts& p) { LoadStrided(p.vmem.At(0), 0, 2, 2); }},
      {"strided access: 16 rows", [](Parts& p) { StoreStrided(p.vmem, 0, 2, p.f); }},
      {"StoreStrided: vector<1x8xi32>",
       [](Parts& p) { StoreStrided(p.vmem, 0, 2, Rows(p.i, 0, 1)); }},
      {"StoreStrided: a matrix is needed", [](Parts& p) { StoreStrided(p.vmem, 0, 2, p.r); }},
      {"StoreStrided: vector<8x16xf32>", [](Parts& p) { StoreStrided(p.vmem, 0, 1, p.g); }},
  });
}

TEST(Builder, RefusesCopies) {
  ExpectRefused({
      {"StartCopy: f32 16x8 to f32 8x8",
       [](Parts& p) { StartCopy(p.hbm, p.vmem.Rows(0, 8), p.semaphores.At(0)); }},
      {"StartCopy: f32 16x8 to i32 16x8",
       [](Parts& p) { StartCopy(p.hbm, p.words, p.semaphores.At(0)); }},
      {"StartCopy: one semaphore is needed",
       [](Parts& p) { StartCopy(p.hbm, p.vmem, p.semaphores); }},
      {"StartCopy: one semaphore is needed",
       [](Parts& p) { StartCopy(p.hbm, p.vmem, p.smem.At(0)); }},
      {"WaitCopy: f32 16x8 to bf16 16x8",
       [](Parts& p) { WaitCopy(p.hbm, p.packed, p.semaphores.At(0)); }},
      {"WaitCopy: one semaphore is needed",
       [](Parts& p) { WaitCopy(p.hbm, p.vmem, p.semaphores); }},
  });
}

TEST(Builder, RefusesControl) {
  ExpectRefused({
      {"If: an i1 scalar is needed", [](Parts& p) { p.b.If(p.n, [] {}); }},
      {"If: an i1 scalar is needed", [](Parts& p) { p.b.If(p.m, [] {}); }},
      {"an index must be an i32 scalar", [](Parts& p) { p.b.For(0, Index(p.r), [](Value) {}); }},
      {"used outside the If, For or index map",
       [](Parts& p) {
         Value inside;
         p.b.If(p.c, [&] { inside = p.r + 1.0; });
         inside + p.r;
       }},
      {"used outside the If, For or index map",
       [](Parts& p) {
         Value inside;
         p.b.If(
             p.c, [&] { inside = p.r + 1.0; }, [&] { inside + 1.0; });
       }},
      {"used outside the If, For or index map",
       [](Parts& p) {
         Value index;
         p.b.For(0, 4, [&](Value i) { index = i; });
         p.vmem.Rows(Index(index), 2).Words();
       }},
      {"Builder::Take: inside a block", [](Parts& p) { p.b.If(p.c, [&] { p.b.Take(); }); }},
      {"Builder::GridIndex: no such dimension", [](Parts& p) { p.b.GridIndex(0); }},
      {"Builder::Grid: before the arguments", [](Parts& p) { p.b.Grid({2}); }},
  });
}

// --- Arguments ---

std::string Declaring(const std::function<void(Builder&)>& declare) {
  Builder b("declared");
  try {
    b.Grid({2, 3});
    declare(b);
  } catch (const BuildError& error) {
    return error.what();
  }
  return "";
}

using Values = std::vector<Value>;

TEST(Builder, RefusesArguments) {
  const auto identity = [](const Values& grid) { return grid; };
  EXPECT_EQ(Declaring([](Builder& b) {
              b.Grid({2, 0});
            }),
            "Builder::Grid: bounds must be positive");
  EXPECT_EQ(Declaring([](Builder& b) {
              b.Input("x", kF32, {4});
              b.Scratch("x", kF32, {4});
            }),
            "two arguments are called x");
  EXPECT_EQ(Declaring([](Builder& b) {
              b.Output("y", kF32, {4});
              b.Input("x", kF32, {4});
            }),
            "argument x: declare prefetch, inputs, outputs, scratch in turn");
  EXPECT_EQ(Declaring([](Builder& b) {
              b.Scratch("x", kF32, {4, 0});
            }),
            "argument x: sizes must be positive");
  EXPECT_EQ(Declaring([&](Builder& b) {
              b.Input("x", kF32, {4, 8}, {8}, identity);
            }),
            "argument x: window of rank 1 on an array of rank 2");
  EXPECT_EQ(Declaring([&](Builder& b) {
              b.Output("x", kF32, {4, 8}, {2, 16}, identity);
            }),
            "argument x: window 2x16 exceeds array 4x8");
  EXPECT_EQ(
      Declaring([](Builder& b) {
        b.Input("x", kF32, {4, 8}, {2, 8}, [](const Values& grid) { return Values{grid[0]}; });
      }),
      "argument x: its index map gives 1 indices for rank 2");
  EXPECT_EQ(Declaring([](Builder& b) {
              b.Input("x", kF32, {4, 8}, {2, 8}, [&](const Values& grid) {
                return Values{grid[0], b.Constant(kF32, 0)};
              });
            }),
            "index maps give i32 scalars");
  EXPECT_EQ(Declaring([&](Builder& b) {
              const Ref table = b.InputSmem("table", kI32, {2});
              b.Input("x", kF32, {4, 8}, {2, 8}, [&](const Values& grid) {
                return Values{Load(table.At(Index(grid[0]))), grid[1]};
              });
            }),
            "argument x: index maps read prefetched scalars only");
  EXPECT_NE(
      Declaring([&](Builder& b) {
        Value outside = b.Iota({2}, 0);
        outside = b.GridIndex(0) + 1.0;
        b.Input("x", kF32, {4, 8}, {2, 8}, [&](const Values&) { return Values{outside, outside}; });
      }).find("used outside"),
      std::string::npos);
  EXPECT_EQ(Declaring([&](Builder& b) { b.Input("x", kF32, {4, 8}, {2, 8}, identity); }), "");
  for (const char* name : {"", "c0", "g17", "2x", "a-b", "a.b"}) {
    EXPECT_EQ(Declaring([&](Builder& b) { b.Scratch(name, kF32, {4}); }),
              "\"" + std::string(name) + "\" is no name for an argument");
  }
  EXPECT_EQ(Declaring([](Builder& b) { b.Scratch("q_2", kF32, {4}), b.Scratch("in0", kF32, {4}); }),
            "");
  Builder no_grid("no_grid");
  try {
    no_grid.InputVmem("x", kF32, {4, 8});
    ADD_FAILURE() << "a window without a grid";
  } catch (const BuildError& error) {
    EXPECT_EQ(std::string(error.what()), "argument x: a window needs a grid");
  }
}

TEST(Builder, RefusesAliases) {
  const auto alias = [](const char* input, const char* output) {
    return Declaring([&](Builder& b) {
      b.Prefetch("p", kI32, {4});
      b.Input("x", kF32, {4});
      b.Input("w", kF32, {8});
      b.Output("z", kI32, {4});
      b.Output("y", kF32, {4});
      b.Alias(input, output);
    });
  };
  EXPECT_EQ(alias("x", "y"), "");
  EXPECT_EQ(alias("x", "x"), "Builder::Alias: no such arguments");
  EXPECT_EQ(alias("y", "y"), "Builder::Alias: no such arguments");
  EXPECT_EQ(alias("w", "y"), "Builder::Alias: the arrays differ in type");
  EXPECT_EQ(alias("x", "z"), "Builder::Alias: the arrays differ in type");
}

// --- What the finished program says ---

// Every operand of every operation, as a node of its number would be there in this program too.
TEST(Builder, RefusesValuesOfAnotherProgram) {
  Parts other;
  const std::vector<std::function<void(Parts&)>> cases = {
      [&](Parts& p) { p.f + other.f; },
      [&](Parts& p) { other.r* p.f; },
      [&](Parts& p) { static_cast<void>(p.f == other.f); },
      [&](Parts& p) { p.i << 3, p.i & other.i; },
      [&](Parts& p) { Select(other.m, p.f, p.f); },
      [&](Parts& p) { Select(p.m, p.f, other.f); },
      [&](Parts& p) { Select(other.m, p.f, 1.0); },
      [&](Parts& p) {
        Concat({p.f, p.f, other.f}, 0);
      },
      [&](Parts& p) { Rotate(p.f, other.n, 0); },
      [&](Parts& p) { Dot(p.f, other.g); },
      [&](Parts& p) { PackPair(p.f, other.f); },
      [&](Parts& p) { p.vmem.At(other.n); },
      [&](Parts& p) { p.vmem.Rows(other.n, 8); },
      [&](Parts& p) { Store(p.vmem, other.f); },
      [&](Parts& p) { Store(p.smem.At(0), other.n); },
      [&](Parts& p) { StoreStrided(p.vmem, 0, 1, other.f); },
      [&](Parts& p) { p.b.If(other.c, [] {}); },
      [&](Parts& p) { p.b.For(0, other.n, [](Value) {}); },
      [&](Parts& p) { StartCopy(p.hbm, other.vmem, p.semaphores.At(0)); },
      [&](Parts& p) { WaitCopy(p.hbm, p.vmem, other.semaphores.At(0)); },
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(Refusal(cases[i]), "a value of another program") << i;
  }
  Builder b("window");
  b.Grid({2});
  EXPECT_THROW(b.Input("x", kF32, {16, 8}, {8, 8},
                       [&](const std::vector<Value>& grid) {
                         return std::vector<Value>{grid[0], other.n};
                       }),
               BuildError);
}

TEST(Builder, CountsVmemInTiles) {
  Builder b("vmem");
  b.Grid({2});
  const auto map = [&](const Values& grid) { return Values{grid[0], b.Constant(kI32, 0)}; };
  b.Input("twice", kF32, {16, 128}, {8, 128}, map);  // a block is fetched ahead
  b.Input("once", kF32, {16, 128}, {8, 128}, map, false);
  b.Output("out", kBF16, {32, 100}, {16, 100}, map);  // 100 lanes take 128
  b.Scratch("rows", kF32, {3, 9, 128});               // 9 rows take 16
  b.Scratch("few", kBF16, {4, 128});                  // few rows a smaller tile
  b.ScratchSmem("scalars", kI32, {1000});
  b.Semaphores("semaphores", 5);
  const Program p = b.Take();
  EXPECT_EQ(p.VmemBytes(), 2 * 8 * 512 + 8 * 512 + 2 * 16 * 256 + 3 * 16 * 512 + 4 * 256);
  EXPECT_EQ(p.Count(Role::kScratch), 4);
  EXPECT_EQ(p.Get(Role::kInput, 1).name, "once");
  EXPECT_THROW(p.Get(Role::kInput, 2), BuildError);
}

TEST(Builder, AliasesCountPrefetchAsInputs) {
  Builder b("alias");
  b.Prefetch("p", kI32, {4});
  b.Input("x", kF32, {4});
  b.Output("z", kI32, {4});
  b.Output("y", kF32, {4});
  b.Alias("x", "y");
  const Program p = b.Take();
  ASSERT_EQ(p.aliases.size(), 1u);
  EXPECT_EQ(p.aliases[0], (std::pair<int, int>(1, 1)));
}

TEST(Builder, LabelsEndWithTheirScope) {
  Builder b("labels");
  const Value one = b.Constant(kF32, 1);
  std::vector<int> nodes;
  const auto emit = [&] { nodes.push_back((one + one).node()); };
  emit();
  {
    const Builder::Label outer(&b, "outer");
    emit();
    {
      const Builder::Label inner(&b, "inner", 3);
      emit();
    }
    emit();
  }
  emit();
  const Program p = b.Take();
  std::string labels;
  for (int node : nodes) {
    labels += p.labels[static_cast<size_t>(p.nodes[static_cast<size_t>(node)].label)] + ";";
  }
  EXPECT_EQ(labels, ";outer;inner:h3;outer;;");
}

}  // namespace
}  // namespace kda::tpu::ir
