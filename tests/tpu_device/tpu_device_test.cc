// On a real TPU: what the evaluator says of the kernels is what they do. Against the fp64
// recurrence, with the limits that hold in the evaluator (support/tolerance.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/case.h"
#include "support/compare.h"
#include "support/goldens.h"
#include "support/oracle.h"
#include "support/tolerance.h"
#include "tpu/decode/decode.h"
#include "tpu/ladder/ladder.h"
#include "tpu/mega/mega.h"
#include "tpu/mega_cases.h"
#include "tpu/module_case.h"
#include "tpu/shard.h"
#include "tpu_device/tpu.h"

namespace kda::test {
namespace {

using tpu::hlo::Arrays;
using tpu::hlo::Module;

// Relative Frobenius errors of o and of the final state that are allowed.
struct Limits {
  double o = kTpuLimit, S = kTpuLimit;
};

void ExpectRight(const Module& module, const Case& c, const Limits& limits = {}) {
  const Oracle oracle = Solve(c);
  const Arrays outputs = RunOnTpu(module, ArraysOf(c));
  if (outputs.empty()) return;
  const auto expect = [&](const char* name, const std::vector<double>& reference,
                          const std::vector<Share>& parts, double limit) {
    const auto it = outputs.find(name);
    ASSERT_NE(it, outputs.end()) << name;
    const std::vector<double> values = Doubles(it->second);
    EXPECT_TRUE(Near(values, reference, parts, limit)) << name;
    ::testing::Test::RecordProperty(std::string(name) + "_rel_f",
                                    std::to_string(ErrorsOf(values, reference, parts).part));
  };
  expect("o", oracle.o, OutputParts(c), limits.o);
  expect("final_state", oracle.S, StateParts(c, oracle.S_written), limits.S);
  EXPECT_TRUE(ZeroElsewhere(c, Doubles(outputs.at("o"))));
}

// No kernel: the way of arrays to the device and back, layouts, memory that is given away.
TEST(TpuDevice, ArraysGoThereAndBack) {
  std::string why;
  tpu::Device* const device = Rehearsing() ? nullptr : TpuDevice(&why);
  if (device == nullptr && !Rehearsing()) GTEST_SKIP() << why;
  using tpu::ir::DType;
  for (const int chips : {1, Rehearsing() || device->count() >= 4 ? 4 : 1}) {
    SCOPED_TRACE(std::to_string(chips) + " chips");
    Module module("arrays");
    const auto a = module.Input("a", {DType::kF32, {3, 8, 5}});
    const auto b = module.Input("b", {DType::kF32, {}});
    const auto c = module.Input("c", {DType::kBF16, {2, 8}});
    const auto n = module.Input("n", {DType::kI32, {4}});
    module.Output("turned", Transpose(a, {2, 1, 0}));
    module.Output("twice", a * 2.0 + b);
    module.Output("c", c);
    module.Output("n", n + n);
    module.Donate("a", "twice");
    if (chips > 1) module.Partition(chips, {{"a", 1}, {"twice", 1}, {"turned", 1}});
    Arrays inputs = {{"a", tpu::ir::Array(DType::kF32, {3, 8 * chips, 5})},
                     {"b", tpu::ir::Array::F32({}, {0.5F})},
                     {"c", tpu::ir::Array(DType::kBF16, {2, 8})},
                     {"n", tpu::ir::Array::I32({4}, {1, 2, 1 << 29, -4})}};
    for (const char* name : {"a", "c"}) {
      tpu::ir::Array& x = inputs[name];
      for (int64_t i = 0; i < x.size(); ++i) x.Set(i, 0.25 * static_cast<double>(i) - 3);
    }
    Arrays outputs = RunOnTpu(module, inputs);
    ASSERT_EQ(outputs.size(), 4U);
    EXPECT_TRUE(outputs["c"] == inputs["c"]);
    EXPECT_TRUE(outputs["n"] == tpu::ir::Array::I32({4}, {2, 4, 1 << 30, -8}));
    const tpu::ir::Array& x = inputs["a"];
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 8 * chips; ++j) {
        for (int64_t k = 0; k < 5; ++k) {
          ASSERT_EQ(outputs["turned"].At({k, j, i}), x.At({i, j, k}));
          ASSERT_EQ(outputs["twice"].At({i, j, k}), 2 * x.At({i, j, k}) + 0.5);
        }
      }
    }
  }
}

// --- mega ----------------------------------------------------------------------------------------

class TpuDeviceMega : public ::testing::TestWithParam<MegaGate> {};

TEST_P(TpuDeviceMega, IsRight) {
  KDA_NEEDS_TPU(1);
  for (const int64_t heads : {8, 16, 24, 48}) {
    for (const Regime regime : {Regime::kMix, Regime::kSat, Regime::kSlow}) {
      SCOPED_TRACE(std::to_string(heads) + " heads, " + Name(regime));
      const Case c = MegaStandard(3, heads, {65, 0, 1, 8, 200, 64}, GetParam(), regime);
      Module module("mega");
      tpu::BuildMega(ProblemOf(c), &module);
      ExpectRight(module, c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, TpuDeviceMega,
                         ::testing::Values(MegaGate::kBounded, MegaGate::kSoftplus, MegaGate::kLog),
                         [](const auto& gate) { return Name(gate.param); });

// Keys that share a large component, gates that hardly decay: sums of many terms all but cancel.
TEST(TpuDevice, MegaOnKeysThatAreAlike) {
  KDA_NEEDS_TPU(1);
  std::vector<Case> heads;
  for (const double common : {3.0, 1.0}) {
    for (const double G : {-0.01, -0.001}) {
      for (const double beta : {0.95, 0.9997}) heads.push_back(CorrelatedKeys(common, G, beta));
    }
  }
  const Case c = InBf16(SideBySide(heads));
  Module module("mega");
  tpu::BuildMega(ProblemOf(c), &module);
  ExpectRight(module, c, {kTpuCancelling, kTpuCancelling});
}

// --- decode --------------------------------------------------------------------------------------

// fp32 but for o, which is stored in bf16.
constexpr Limits kDecode = {kProducts + 0x1p-8, kProducts};

TEST(TpuDevice, DecodeIsRight) {
  KDA_NEEDS_TPU(1);
  for (const MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus, MegaGate::kLog}) {
    for (const int64_t sequences : {1, 3, 70}) {
      SCOPED_TRACE(Name(gate) + ", " + std::to_string(sequences) + " sequences");
      const std::vector<int64_t> lengths(static_cast<size_t>(sequences), 1);
      const Case c = MegaStandard(7, 24, lengths, gate);
      Module module("decode");
      tpu::BuildDecode(ProblemOf(c), &module);
      ExpectRight(module, c, kDecode);
    }
  }
}

// --- The ladder ----------------------------------------------------------------------------------

TEST(TpuDevice, EveryRungIsRight) {
  KDA_NEEDS_TPU(1);
  const Case c = MegaStandard(9, 8, {65, 0, 1, 130, 64}, MegaGate::kBounded);
  const char* name = nullptr;
  uint32_t switches = 0;
  for (int32_t i = 0; kda_rung(i, &name, &switches) != 0; ++i) {
    SCOPED_TRACE(name);
    tpu::LadderOptions options;
    options.switches = switches;
    const tpu::Ladder ladder = tpu::BuildLadder(ProblemOf(c), options);
    ExpectRight(*ladder.module, c);
  }
}

TEST(TpuDevice, HeadsInALoopAreTheSameBits) {
  KDA_NEEDS_TPU(1);
  const Case c = MegaStandard(9, 16, {65, 0, 1, 130}, MegaGate::kBounded);
  tpu::LadderOptions options;
  const Arrays side_by_side =
      RunOnTpu(*tpu::BuildLadder(ProblemOf(c), options).module, ArraysOf(c));
  options.form = tpu::HeadForm::kSerial;
  const Arrays in_turn = RunOnTpu(*tpu::BuildLadder(ProblemOf(c), options).module, ArraysOf(c));
  EXPECT_TRUE(side_by_side == in_turn);
}

// --- Four chips ----------------------------------------------------------------------------------

TEST(TpuDevice, ShardedHeadsAreThoseOfOneChip) {
  KDA_NEEDS_TPU(4);
  const auto mega = [](const tpu::TpuProblem& p, Module* m) { tpu::BuildMega(p, m); };
  const tpu::ModuleBuilder builders[] = {mega, tpu::BuildDecode};
  for (size_t i = 0; i < 2; ++i) {
    SCOPED_TRACE(i == 0 ? "mega" : "decode");
    const std::vector<int64_t> lengths =
        i == 0 ? std::vector<int64_t>{65, 0, 130} : std::vector<int64_t>{1, 1, 1};
    const Case c = MegaStandard(11, 32, lengths, MegaGate::kBounded);
    Module one("one"), four("four");
    builders[i](ProblemOf(c), &one);
    tpu::BuildSharded(ProblemOf(c), 4, builders[i], &four);
    const Arrays inputs = ArraysOf(c);
    EXPECT_TRUE(RunOnTpu(one, inputs) == RunOnTpu(four, inputs));
  }
}

}  // namespace
}  // namespace kda::test
