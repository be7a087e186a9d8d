// The mega kernel as a module, through libtpu, and what its builder refuses.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/generator.h"
#include "tpu/hlo/evaluator.h"
#include "tpu/hlo/printer.h"
#include "tpu/mega_cases.h"
#include "tpu/module_case.h"
#include "tpu/tiny_kernel.h"

namespace kda::test {
namespace {

using tpu::TpuProblem;
using tpu::WhyNoLibtpu;
using tpu::ir::Array;
using tpu::ir::DType;
using tpu::ir::Shape;

// The kinds of problem a program is built for.
struct Feature {
  const char* name;
  std::function<void(Case*)> edit;
  MegaGate gate = MegaGate::kBounded;
};

void UsePool(Case* c) {
  c->pool = c->Sequences() + 2;
  for (int64_t n = 0; n < c->Sequences(); ++n) c->slots.push_back(n == 1 ? -1 : n + 2);
  if (!c->S0.empty()) c->S0.resize(static_cast<size_t>(c->pool * c->H * 128 * 128), 0.5);
}

const std::vector<Feature>& Features() {
  static const std::vector<Feature>* const features = new std::vector<Feature>{
      {"bounded", [](Case*) {}},
      {"softplus", [](Case*) {}, MegaGate::kSoftplus},
      {"log", [](Case*) {}, MegaGate::kLog},
      {"low bound", [](Case* c) { c->lower_bound = -8; }},
      {"no parameters", [](Case* c) { c->A_log.clear(), c->dt_bias.clear(); }},
      {"l2norm", [](Case* c) { c->qk_l2norm = true; }},
      {"l2norm, softplus", [](Case* c) { c->qk_l2norm = true; }, MegaGate::kSoftplus},
      {"fp32 beta", [](Case* c) { c->beta_logits = false, SetBeta(c, 0.3); }},
      {"slots", UsePool},
      {"slots, softplus", UsePool, MegaGate::kSoftplus},
      {"checkpoints", [](Case* c) { c->checkpoint_every = 10; }},
      {"checkpoints, slots", [](Case* c) { UsePool(c), c->checkpoint_every = 64; }},
      {"checkpoints, log", [](Case* c) { c->checkpoint_every = 64; }, MegaGate::kLog},
      {"no initial state", [](Case* c) { c->S0.clear(); }},
      {"no initial state, slots", [](Case* c) { c->S0.clear(), UsePool(c); }},
      {"no final state", [](Case* c) { c->want_state = false; }},
  };
  return *features;
}

Case CaseOf(const Feature& feature, int64_t heads, const std::vector<int64_t>& lengths) {
  Case c = MegaStandard(3, heads, lengths, feature.gate);
  feature.edit(&c);
  return c;
}

TEST(MegaModule, EveryFeature) {
  for (const Feature& feature : Features()) {
    SCOPED_TRACE(feature.name);
    const Case c = CaseOf(feature, 8, {70, 3});
    tpu::hlo::Module module("kda");
    tpu::BuildMega(MegaProblem(c), &module);
    const tpu::hlo::Arrays in = ArraysOf(c);
    ASSERT_EQ(module.inputs().size(), in.size());
    for (const tpu::hlo::Port& port : module.inputs()) {
      ASSERT_EQ(in.count(port.name), 1U) << port.name;
      EXPECT_EQ(module.At(port.node).type.shape, in.at(port.name).shape()) << port.name;
      EXPECT_EQ(module.At(port.node).type.dtype, in.at(port.name).dtype()) << port.name;
      const bool given = port.name == "initial_state" && !c.slots.empty() && c.want_state;
      EXPECT_EQ(port.gives_to >= 0, given) << port.name;
      if (given) {
        EXPECT_EQ(module.outputs()[static_cast<size_t>(port.gives_to)].name, "final_state");
      }
    }
    const tpu::hlo::Arrays out = tpu::hlo::Evaluate(module, in);
    EXPECT_EQ(out.size(), 1U + (c.want_state ? 1 : 0) + (c.checkpoint_every > 0 ? 1 : 0));
    // The kernel's own results, which are checked elsewhere.
    const MegaResult want = RunMega(c);
    const Array& o = out.at("o");
    EXPECT_EQ(o.shape(), (Shape{1, c.T, c.H, 128}));
    EXPECT_TRUE(std::equal(o.bf16(), o.bf16() + o.size(), want.o.bf16()));
    if (c.want_state) {
      EXPECT_TRUE(out.at("final_state") == want.S);
    }
    if (c.checkpoint_every > 0) {
      EXPECT_TRUE(out.at("checkpoints") == want.checkpoints);
    }
  }
}

// --- Refusals ---

TpuProblem Good() {
  TpuProblem p;
  p.tokens = 128;
  p.heads = 8;
  p.sequences = 2;
  p.lengths = {64, 64};
  return p;
}

// Every message names the argument, what it is and what it may be.
void ExpectRefused(const TpuProblem& p, const std::vector<std::string>& words) {
  try {
    tpu::BuildMegaKernel(p);
    ADD_FAILURE() << "not refused: " << words.front() << " " << words.back();
  } catch (const tpu::ir::BuildError& error) {
    const std::string text = error.what();
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
    }
  }
  tpu::hlo::Module module("kda");
  EXPECT_THROW(tpu::BuildMega(p, &module), tpu::ir::BuildError);
}

TEST(MegaRefuses, Options) {
  for (int unroll : {0, 3}) {
    tpu::MegaOptions options;
    options.unroll = unroll;
    EXPECT_THROW(tpu::BuildMegaKernel(Good(), options), tpu::ir::BuildError);
  }
  for (int tpu::MegaOptions::*lag :
       {&tpu::MegaOptions::lag_a, &tpu::MegaOptions::lag_b, &tpu::MegaOptions::lag_c}) {
    tpu::MegaOptions options;
    options.*lag = -1;
    EXPECT_THROW(tpu::BuildMegaKernel(Good(), options), tpu::ir::BuildError);
  }
}

TEST(MegaRefuses, MoreThanVmemHolds) {
  TpuProblem p = Good();
  p.vmem_bytes = int64_t{8} << 20;
  ExpectRefused(p, {"VMEM", "at most 6553600"});
}

TEST(MegaCheckpointRows, NoneWithoutCheckpoints) {
  TpuProblem p = Good();
  EXPECT_EQ(tpu::MegaCheckpointRows(p), 0);
  p.checkpoint_every = 50;
  EXPECT_EQ(tpu::MegaCheckpointRows(p), 2);
}

TEST(MegaRefuses, NothingItShouldTake) {
  for (int64_t heads : {8, 16, 24, 40, 96}) {
    for (const Feature& feature : Features()) {
      TpuProblem p = MegaProblem(CaseOf(feature, 8, {70, 3}));
      p.heads = heads;
      EXPECT_NO_THROW(tpu::BuildMegaKernel(p)) << feature.name << " at " << heads;
    }
  }
}

// --- Through libtpu ---

tpu::CompileResult CompileMega(TpuProblem p, const char* target = "v6e") {
  p.vmem_bytes = tpu::FindTarget(target)->vmem_bytes;
  tpu::hlo::Module module("kda");
  tpu::BuildMega(p, &module);
  tpu::CompileRequest request = tpu::TinyRequest(target);
  request.module = tpu::hlo::Print(module);
  return tpu::Compile(request);
}

class MegaCompiled : public testing::TestWithParam<size_t> {};

TEST_P(MegaCompiled, ForV6e) {
  KDA_NEEDS_LIBTPU();
  const Feature& feature = Features()[GetParam()];
  TpuProblem p = MegaProblem(CaseOf(feature, 8, {70, 3}));
  p.heads = GetParam() % 3 == 0 ? 8 : GetParam() % 3 == 1 ? 24 : 96;
  p.tokens = GetParam() % 2 == 0 ? 8192 : 100;
  const tpu::CompileResult result = CompileMega(p);
  EXPECT_TRUE(result.ok()) << feature.name << " at " << p.heads << ": " << result.message;
  RecordProperty("feature", feature.name);
}

INSTANTIATE_TEST_SUITE_P(Features, MegaCompiled, testing::Range(size_t{0}, Features().size()));

TEST(MegaCompiledFor, OtherTargets) {
  KDA_NEEDS_LIBTPU();
  for (const char* target : {"v5e", "v5p", "tpu7x"}) {
    for (int64_t heads : {16, 24}) {
      TpuProblem p = Good();
      p.tokens = 8192;
      p.heads = heads;
      p.sequences = 4;
      p.lengths = {2048, 2048, 2048, 2048};
      if (heads == 24) p.gate = KDA_GATE_SOFTPLUS;
      const tpu::CompileResult result = CompileMega(p, target);
      EXPECT_TRUE(result.ok()) << target << ", " << heads << " heads: " << result.message;
    }
  }
}

}  // namespace
}  // namespace kda::test
