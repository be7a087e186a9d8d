// Modules of arrays: what the builder refuses, what the evaluator computes, what libtpu takes.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tpu/hlo/evaluator.h"
#include "tpu/hlo/module.h"
#include "tpu/hlo/printer.h"
#include "tpu/ir/builder.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu::hlo {
namespace {

using ir::Array;

std::vector<double> Doubles(const Array& a) {
  std::vector<double> values;
  for (int64_t i = 0; i < a.size(); ++i) values.push_back(a.Get(i));
  return values;
}

// What a module of one output, `build`, makes of the inputs x [2, 3] f32, i [3] i32 and n i32.
template <typename Build>
std::vector<double> Of(Build build) {
  Module m("test");
  const Value x = m.Input("x", {DType::kF32, {2, 3}});
  const Value i = m.Input("i", {DType::kI32, {3}});
  const Value n = m.Input("n", {DType::kI32, {}});
  m.Output("y", build(&m, x, i, n));
  const Arrays in = {{"x", Array::F32({2, 3}, {1, 2, 3, 4, 5, 6})},
                     {"i", Array::I32({3}, {2, 0, -7})},
                     {"n", Array::I32({}, {1})}};
  return Doubles(Evaluate(m, in).at("y"));
}
using List = std::vector<double>;
#define OF(expression)                          \
  Of([](Module* m, Value x, Value i, Value n) { \
    (void)m, (void)x, (void)i, (void)n;         \
    return expression;                          \
  })

TEST(HloEvaluator, MovesElements) {
  EXPECT_EQ(OF(Transpose(x, {1, 0})), (List{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(OF(Reshape(x, {3, 2})), (List{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(OF(Broadcast(i, {3, 2}, {0})), (List{2, 2, 0, 0, -7, -7}));
  EXPECT_EQ(OF(Broadcast(Slice(x, 0, 1, 1), {2, 3}, {0, 1})), (List{4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(OF(Slice(x, 1, 1, 2)), (List{2, 3, 5, 6}));
  EXPECT_EQ(OF(Pad(x, 1, 1, 0, 9)), (List{9, 1, 2, 3, 9, 4, 5, 6}));
  EXPECT_EQ(OF(Concat({x, Slice(x, 1, 0, 1)}, 1)), (List{1, 2, 3, 1, 4, 5, 6, 4}));
  EXPECT_EQ(OF(m->Iota({2, 2}, 1)), (List{0, 1, 0, 1}));
  EXPECT_EQ(OF(m->Literal({DType::kI32, {2}}, {5, -3})), (List{5, -3}));
}

TEST(HloEvaluator, GathersAndScatters) {
  EXPECT_EQ(OF(GatherRows(x, i, 1)), (List{3, 1, 1, 6, 4, 4})) << "a negative index is clamped";
  EXPECT_EQ(OF(GatherSlices(x, i, 1, 2)), (List{2, 3, 5, 6, 1, 2, 4, 5, 1, 2, 4, 5}));
  EXPECT_EQ(OF(ScatterRows(x, i, x, 1, true)), (List{2, 2, 1, 5, 5, 4}))
      << "a row that does not fit is dropped";
}

TEST(HloEvaluator, Computes) {
  EXPECT_EQ(OF(x * 2.0 + x / x - x), (List{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(OF(-i), (List{-2, 0, 7}));
  EXPECT_EQ(OF(i / m->Constant(DType::kI32, 2)), (List{1, 0, -3})) << "towards zero";
  EXPECT_EQ(OF(i % m->Constant(DType::kI32, 2)), (List{0, 0, -1}));
  EXPECT_EQ(OF(Min(Max(i, -1), 1)), (List{1, 0, -1}));
  EXPECT_EQ(OF(Select((i > 0.0) | (i == 0.0), i, n)), (List{2, 0, 1}));
  EXPECT_EQ(OF(Cast((i >= 0.0) & (i < n), DType::kI32)), (List{0, 1, 0}));
  EXPECT_EQ(OF(ReduceSum(x, 0)), (List{5, 7, 9}));
  EXPECT_EQ(OF(CumSum(i, 0)), (List{2, 2, -5}));
  EXPECT_EQ(OF(Cast(x + 256.0, DType::kBF16)), (List{256, 258, 260, 260, 260, 262}))
      << "bf16 rounds to nearest even";
  EXPECT_FLOAT_EQ(static_cast<float>(OF(Exp(x))[0]), std::exp(1.0f));
  EXPECT_FLOAT_EQ(static_cast<float>(OF(Logistic(x))[0]), 1 / (1 + std::exp(-1.0f)));
}

TEST(HloEvaluator, SelectDropsNan) {
  const List y = OF(Select(x > 3.0, x, x / m->Constant(DType::kF32, 0) * 0.0));
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[3], 4);
}

// y = 2 x, its blocks in the order of the table, z = same + 1; z shares memory with `same`.
ir::Program Doubler() {
  ir::Builder b("doubler");
  b.Grid({2});
  const auto map = [&](const std::vector<ir::Value>& grid) {
    return std::vector<ir::Value>{grid[0], b.Constant(DType::kI32, 0)};
  };
  const ir::Ref table = b.Prefetch("table", DType::kI32, {2});
  const ir::Ref x =
      b.Input("x", DType::kF32, {16, 128}, {8, 128}, [&](const std::vector<ir::Value>& grid) {
        return std::vector<ir::Value>{ir::Load(table.At(grid[0])), b.Constant(DType::kI32, 0)};
      });
  const ir::Ref same = b.Input("same", DType::kF32, {16, 128}, {8, 128}, map);
  const ir::Ref y = b.Output("y", DType::kF32, {16, 128}, {8, 128}, map);
  const ir::Ref z = b.Output("z", DType::kF32, {16, 128}, {8, 128}, map);
  b.Alias("same", "z");
  b.VmemLimit(16 << 20);
  ir::Store(y, ir::Load(x) * 2.0);
  ir::Store(z, ir::Load(same) + 1.0);
  return b.Take();
}

Module* Calls(Module* m) {
  const Value table = m->Input("table", {DType::kI32, {2}});
  const Value x = m->Input("x", {DType::kF32, {16, 128}});
  const std::vector<Value> out = m->Call(Doubler(), {table, x, x});
  m->Output("y", out[0]);
  m->Output("z", out[1] + out[0]);
  return m;
}

TEST(HloEvaluator, RunsKernels) {
  Module m("calls");
  std::vector<float> x(16 * 128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const Arrays out =
      Evaluate(*Calls(&m), {{"table", Array::I32({2}, {1, 0})}, {"x", Array::F32({16, 128}, x)}});
  EXPECT_EQ(out.at("y").Get(0), 2 * 8 * 128);
  EXPECT_EQ(out.at("y").Get(8 * 128), 0);
  EXPECT_EQ(out.at("z").Get(3), 2 * (8 * 128 + 3) + 4);
  EXPECT_THROW(Evaluate(m, {{"x", Array::F32({16, 128}, x)}}), ir::EvaluationError);
  EXPECT_THROW(Evaluate(m, {{"table", Array::I32({2}, {1, 0})}, {"x", Array::F32({1}, {1})}}),
               ir::EvaluationError);
}

TEST(HloModule, RefusesWhatDoesNotFit) {
  Module m("refused"), other("other");
  const Value x = m.Input("x", {DType::kF32, {2, 3}});
  const Value i = m.Input("i", {DType::kI32, {3}});
  EXPECT_THROW(m.Input("x", {DType::kF32, {1}}), ir::BuildError);
  EXPECT_THROW(x + i, ir::BuildError);
  EXPECT_THROW(x + Transpose(x, {1, 0}), ir::BuildError);
  EXPECT_THROW(Transpose(x, {0, 0}), ir::BuildError);
  EXPECT_THROW(Reshape(x, {5}), ir::BuildError);
  EXPECT_THROW(Broadcast(x, {2, 3}, {1, 0}), ir::BuildError);
  EXPECT_THROW(Slice(x, 1, 2, 2), ir::BuildError);
  EXPECT_THROW(Slice(x, 2, 0, 1), ir::BuildError);
  EXPECT_THROW(GatherRows(x, x, 0), ir::BuildError);
  EXPECT_THROW(GatherSlices(x, i, 0, 3), ir::BuildError);
  EXPECT_THROW(ScatterRows(x, i, x, 0, true), ir::BuildError);
  EXPECT_THROW(Concat({x, i}, 0), ir::BuildError);
  EXPECT_THROW(Exp(i), ir::BuildError);
  EXPECT_THROW(Select(x, x, x), ir::BuildError);
  EXPECT_THROW(x + other.Constant(DType::kF32, 1, {2, 3}), ir::BuildError);
  EXPECT_THROW(m.Call(Doubler(), {i, x, x}), ir::BuildError);
  EXPECT_THROW(m.Output("y", Value()), ir::BuildError);
}

TEST(HloModule, RefusesNames) {
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const ir::BuildError& error) {
      return error.what();
    }
    return "";
  };
  Module m("names");
  Calls(&m);
  const Value x = m.Input("a", {DType::kF32, {16, 128}});
  m.Output("a", x);  // an input's
  m.Output("0", x);  // the text never has it by itself
  for (const char* name : {"", "a b", "a\"", "a-b", "%a", "c3", "3c"}) {
    const std::string no_name = "\"" + std::string(name) + "\" is no name for an ";
    EXPECT_EQ(refusal([&] { m.Input(name, x.type()); }), no_name + "input");
    if (name[0] == 'c' || name[0] == '3') continue;
    EXPECT_EQ(refusal([&] { m.Output(name, x); }), no_name + "output");
  }
  EXPECT_EQ(refusal([&] { m.Input("a", x.type()); }), "two inputs are called a");
  EXPECT_EQ(refusal([&] { m.Output("y", x); }), "two outputs are called y");
  const Value table = m.Input("again", {DType::kI32, {2}});
  EXPECT_EQ(refusal([&] { m.Call(Doubler(), {table, x, x}); }), "two kernels are called doubler");
}

TEST(HloPrinter, CompilesEveryOperation) {
  KDA_NEEDS_LIBTPU();
  Module m("every");
  Calls(&m);
  const Value x = m.Input("a", {DType::kF32, {16, 128}});
  const Value i = m.Input("i", {DType::kI32, {5}});
  const Value rows = GatherRows(x, i, 0), slices = GatherSlices(x, i, 0, 4);
  int count = 0;
  const auto out = [&](Value v) { m.Output("out" + std::to_string(count++), v); };
  out(rows);
  out(slices);
  out(ScatterRows(x, i, rows, 0, false));
  out(ReduceSum(x, 1));
  out(CumSum(Reshape(x, {8, 256}), 1));
  out(Pad(x, 0, 1, 2, 3));
  out(Exp(x) + Logistic(x) - Select((x > 0.0) | (x < -1.0), x, 0.0) / -x);
  out(Select(i >= 3.0, i % m.Constant(DType::kI32, 3), Min(i, 7)));
  out(m.Literal({DType::kI32, {2, 2}}, {1, 2, 3, 4}) + m.Iota({2, 2}, 1));
  out(Transpose(Cast(x, DType::kBF16), {1, 0}));
  out(Concat({x, x}, 1));
  out(Broadcast(i, {5, 3}, {0}));
  out(Slice(x, 1, 3, 7));
  CompileRequest request = TinyRequest();
  request.module = Print(m);
  const CompileResult result = Compile(request);
  EXPECT_TRUE(result.ok()) << result.message << "\n" << result.details;
}

}  // namespace
}  // namespace kda::tpu::hlo
