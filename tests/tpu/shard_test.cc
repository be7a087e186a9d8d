// Programs on four chips: each computes its heads as one chip would compute
// them all, and sends nothing.
#include "tpu/shard.h"

#include <gtest/gtest.h>

#include <string>

#include "support/case.h"
#include "tpu/decode/decode.h"
#include "tpu/hlo/printer.h"
#include "tpu/mega/mega.h"
#include "tpu/module_case.h"
#include "tpu/tiny_kernel.h"

namespace kda::test {
namespace {

using tpu::BuildSharded;
using tpu::ModuleBuilder;
using tpu::TpuProblem;
using tpu::WhyNoLibtpu;
using tpu::hlo::Arrays;

constexpr int kChips = 4;

const ModuleBuilder kMega = [](const TpuProblem& p, tpu::hlo::Module* m) { tpu::BuildMega(p, m); };
const ModuleBuilder kDecode = tpu::BuildDecode;

// What chip `chip` is given of whole arrays.
Arrays PartsOf(const std::vector<tpu::hlo::Port>& ports, const Arrays& whole, int chip) {
  Arrays parts;
  for (const tpu::hlo::Port& p : ports) {
    const tpu::ir::Array& array = whole.at(p.name);
    parts[p.name] = p.split < 0 ? array : tpu::PartOf(array, p.split, kChips, chip);
  }
  return parts;
}

void ExpectSameBits(const TpuProblem& problem, const Arrays& inputs, const ModuleBuilder& build) {
  tpu::hlo::Module whole("whole"), sharded("sharded");
  build(problem, &whole);
  BuildSharded(problem, kChips, build, &sharded);
  for (const tpu::hlo::Port& p : sharded.inputs()) {
    EXPECT_EQ(sharded.Whole(p).shape, inputs.at(p.name).shape()) << p.name;
  }
  const Arrays expected = tpu::hlo::Evaluate(whole, PartsOf(whole.inputs(), inputs, 0));
  for (int chip = 0; chip < kChips; ++chip) {
    SCOPED_TRACE("chip " + std::to_string(chip));
    const Arrays got = tpu::hlo::Evaluate(sharded, PartsOf(sharded.inputs(), inputs, chip));
    const Arrays part = PartsOf(sharded.outputs(), expected, chip);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, array] : got) EXPECT_TRUE(array == part.at(name)) << name;
  }
}

TEST(Shard, PartsGoTogetherAgain) {
  tpu::ir::Array whole(tpu::ir::DType::kBF16, {3, 8, 5}), again(tpu::ir::DType::kBF16, {3, 8, 5});
  for (int64_t i = 0; i < whole.size(); ++i) whole.Set(i, static_cast<double>(i));
  for (int part = 0; part < kChips; ++part) {
    const tpu::ir::Array some = tpu::PartOf(whole, 1, kChips, part);
    EXPECT_EQ(some.At({2, 1, 3}), whole.At({2, 2 * part + 1, 3}));
    tpu::PutPart(some, 1, kChips, part, &again);
  }
  EXPECT_TRUE(whole == again);
  EXPECT_THROW(tpu::PartOf(whole, 0, kChips, 0), tpu::ir::BuildError);
  EXPECT_THROW(tpu::PartOf(whole, 3, kChips, 0), tpu::ir::BuildError);
}

TEST(Shard, WhatIsNoPartIsRefused) {
  using tpu::ir::Array;
  using tpu::ir::DType;
  Array whole(DType::kBF16, {4, 8});
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const tpu::ir::BuildError& error) {
      return error.what();
    }
    return "";
  };
  for (const int part : {-1, 4, 1 << 30}) {
    const std::string want = "part " + std::to_string(part) + " of 4: parts are 0 to 3";
    EXPECT_EQ(refusal([&] { tpu::PartOf(whole, 1, 4, part); }), want);
    EXPECT_EQ(refusal([&] {
                tpu::PutPart(Array(DType::kBF16, {4, 2}), 1, 4, part, &whole);
              }),
              want);
  }
  for (const Array& from : {Array(DType::kBF16, {4, 8}), Array(DType::kBF16, {2, 4}),
                            Array(DType::kBF16, {}), Array(DType::kF32, {4, 2})}) {
    const std::string text = refusal([&] { tpu::PutPart(from, 1, 4, 0, &whole); });
    EXPECT_EQ(text, "a part is bf16 [4x2], given " + ToString(from.dtype()) + " [" +
                        tpu::ir::ToString(from.shape()) + "]");
  }
}

TEST(Shard, HeadsThatAreNoTilesOnEveryChipAreRefused) {
  for (const int64_t heads : {0, 8, 16, 24, 40, 48, 95}) {
    TpuProblem problem;
    problem.heads = heads;
    try {
      tpu::ShardOf(problem, kChips);
      ADD_FAILURE() << heads;
    } catch (const tpu::ir::BuildError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("heads is " + std::to_string(heads) + ","), std::string::npos)
          << message;
      EXPECT_NE(message.find("multiple of 32"), std::string::npos) << message;
    }
  }
  for (const int chips : {0, -1, 1 << 30}) {
    TpuProblem problem;
    problem.heads = 64;
    try {
      tpu::ShardOf(problem, chips);
      ADD_FAILURE() << chips;
    } catch (const tpu::ir::BuildError& error) {
      EXPECT_EQ(error.what(),
                "a program: partitions is " + std::to_string(chips) + ", but must be 1 to 8192");
    }
  }
  for (const int64_t heads : {32, 64, 96}) {
    TpuProblem problem;
    problem.heads = heads;
    EXPECT_EQ(tpu::ShardOf(problem, kChips).heads, heads / kChips);
  }
}

// All heads of one chip go in steps of 24 or 16, a chip's in steps of 24 or 8.
TEST(Shard, MegaSameBits) {
  for (const int64_t heads : {32, 96}) {
    SCOPED_TRACE(heads);
    const std::vector<int64_t> cu = Offsets({0, 65, 3});
    Case c = Standard(Std(3, cu.back() + 2, heads).Packed(cu));
    ExpectSameBits(ProblemOf(c), ArraysOf(c), kMega);
  }
}

TEST(Shard, DecodeSameBits) {
  for (const int64_t heads : {32, 96}) {
    SCOPED_TRACE(heads);
    const Case c = Standard(Std(5, 3, heads).Packed({0, 1, 2, 3}));
    ExpectSameBits(ProblemOf(c), ArraysOf(c), kDecode);
  }
}

// --- Through libtpu ------------------------------------------------------------------------------

TpuProblem Large(int64_t sequences, int64_t length) {
  TpuProblem p;
  p.heads = 96;
  p.sequences = sequences;
  p.tokens = sequences * length;
  p.lengths.assign(static_cast<size_t>(sequences), length);
  p.slots = sequences + 2;
  return p;
}

// Of what chips do to send each other anything, as found in the optimized program.
std::string Collectives(const tpu::CompileResult& result) {
  std::string found;
  int programs = 0;
  for (const std::string& file : tpu::ListFiles(result.dumps)) {
    if (file.find("-TLP-hlo.txt") == std::string::npos) continue;
    ++programs;
    std::string text;
    EXPECT_TRUE(tpu::ReadFile(result.dumps + "/" + file, &text));
    for (const char* collective : {"all-reduce", "all-gather", "all-to-all", "collective-permute",
                                   "reduce-scatter", "collective-broadcast", "partition-id"}) {
      if (text.find(collective) != std::string::npos) found += std::string(collective) + " ";
    }
  }
  EXPECT_EQ(programs, 1);
  return found;
}

void ExpectNothingIsSent(const TpuProblem& problem, const ModuleBuilder& build) {
  tpu::hlo::Module module("sharded");
  BuildSharded(problem, kChips, build, &module);
  tpu::CompileRequest request = tpu::TinyRequest("v6e:2x2");
  request.module = tpu::hlo::Print(module);
  request.schedule = true;
  const tpu::CompileResult result = tpu::Compile(request);
  ASSERT_TRUE(result.ok()) << result.message << "\n" << result.details;
  // Each chip holds a quarter of the states, in place.
  const int64_t states = problem.slots * problem.heads * 128 * 128 * 4;
  EXPECT_GE(result.output_bytes, states / kChips);
  EXPECT_LT(result.output_bytes, states / kChips + problem.tokens * problem.heads * 128 * 2);
  EXPECT_LT(result.temporary_bytes, states / kChips) << "a copy of the states";
  EXPECT_EQ(Collectives(result), "");
}

TEST(Shard, WhatIsSentWouldBeSeen) {
  KDA_NEEDS_LIBTPU();
  tpu::CompileRequest request = tpu::TinyRequest("v6e:2x2");
  request.schedule = true;
  request.module =
      R"(module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<512x128xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"})
      -> (tensor<512x128xf32> {mhlo.sharding = "{replicated}"}) {
    %b = stablehlo.add %a, %a : tensor<512x128xf32>
    return %b : tensor<512x128xf32>
  }
}
)";
  const tpu::CompileResult result = tpu::Compile(request);
  ASSERT_TRUE(result.ok()) << result.message;
  EXPECT_NE(Collectives(result), "");
}

TEST(Shard, MegaSendsNothing) {
  KDA_NEEDS_LIBTPU();
  ExpectNothingIsSent(Large(4, 512), kMega);
}

TEST(Shard, DecodeSendsNothing) {
  KDA_NEEDS_LIBTPU();
  ExpectNothingIsSent(Large(64, 1), kDecode);
}

}  // namespace
}  // namespace kda::test
