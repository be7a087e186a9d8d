// The decode kernel in the evaluator against the fp64 recurrence, and through the compiler.
#include "tpu/decode/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "support/compare.h"
#include "support/generator.h"
#include "support/tolerance.h"
#include "tpu/counts.h"
#include "tpu/hlo/printer.h"
#include "tpu/limits.h"
#include "tpu/mega_cases.h"
#include "tpu/module_case.h"
#include "tpu/predict.h"
#include "tpu/tiny_kernel.h"

namespace kda::test {
namespace {

using namespace tpu;  // NOLINT(google-build-using-namespace): all of it is tested here
using tpu::hlo::Arrays;
using tpu::ir::DType;

constexpr int64_t kState = kDim * kDim;

TpuProblem Problem(int64_t sequences, int64_t heads, int64_t slots = 0) {
  TpuProblem p;
  p.sequences = p.tokens = sequences;
  p.heads = heads;
  p.slots = slots;
  p.lengths.assign(static_cast<size_t>(sequences), 1);
  return p;
}

// One token of every sequence; in a pool of `slots`, where there is one, in other slots than their
// own, in turn, but for those of `skipped`. Activated betas, states of size 1.
Case Make(int64_t sequences, int64_t heads, uint64_t seed, int64_t slots = 0,
          const std::vector<int64_t>& skipped = {}, MegaGate gate = MegaGate::kBounded) {
  const std::vector<int64_t> lengths(static_cast<size_t>(sequences), 1);
  Case c = MegaStandard(seed, heads, lengths, gate);
  c.beta_logits = false;
  for (size_t i = 0; i < c.beta.size(); ++i) {
    c.beta[i] = Bf16(0.5 + 0.15 * Normal(seed, kTagBeta, i));
  }
  c.pool = slots;
  for (int64_t n = 0; n < sequences && slots > 0; ++n) c.slots.push_back((n * 3 + 1) % slots);
  for (int64_t n : skipped) c.slots[static_cast<size_t>(n)] = -1;
  c.S0.resize(static_cast<size_t>(c.States() * heads * kState));
  for (size_t i = 0; i < c.S0.size(); ++i) c.S0[i] = F32(Normal(seed, kTagState, i));
  return c;
}

// `final_slots` empty: the case's, for both.
Arrays RunDecode(const Case& c, const std::vector<int64_t>& final_slots = {},
                 const ir::EvaluateOptions& options = {}) {
  hlo::Module module("kda");
  BuildDecode(ProblemOf(c), &module);
  Arrays arrays = ArraysOf(c);
  if (!final_slots.empty()) {
    arrays["final_slots"] =
        ir::Array::I32({c.Sequences()}, {final_slots.begin(), final_slots.end()});
  }
  return hlo::Evaluate(module, arrays, options);
}

// The oracle, with states where `final_slots` has them; -1: not kept.
Oracle SolveInto(const Case& c, const std::vector<int64_t>& final_slots) {
  Oracle oracle = Solve(c);
  if (final_slots.empty()) return oracle;
  const Oracle from = oracle;
  oracle.S_written.assign(oracle.S_written.size(), false);
  for (size_t n = 0; n < final_slots.size(); ++n) {
    if (c.slots[n] < 0 || final_slots[n] < 0) continue;
    const int64_t row = c.H * kState;
    std::copy_n(from.S.begin() + c.slots[n] * row, row, oracle.S.begin() + final_slots[n] * row);
    oracle.S_written[static_cast<size_t>(final_slots[n])] = true;
  }
  return oracle;
}

// What kda tpu eval holds programs to is what the tests do.
static_assert(tpu::RelativeLimit(tpu::Family::kDecode, false) == kProducts);
static_assert(tpu::kBf16Storage == 0x1p-8 && tpu::kBf16Operands == kTpuLimit);

// The products are fp32's: the limits are those of every backend.
void Check(const Case& c, const std::vector<int64_t>& final_slots = {}) {
  const Oracle oracle = SolveInto(c, final_slots);
  for (auto copies :
       {ir::EvaluateOptions::Copies::kAtWait, ir::EvaluateOptions::Copies::kAtStart}) {
    ir::EvaluateOptions options;
    options.copies = copies;
    const Arrays got = RunDecode(c, final_slots, options);
    const std::vector<double> o = Doubles(got.at("o"));
    EXPECT_TRUE(Near(o, oracle.o, OutputParts(c), kProducts + UnitRoundoff(KDA_BF16))) << "o";
    EXPECT_TRUE(ZeroElsewhere(c, o));
    ASSERT_EQ(got.count("final_state"), c.want_state ? 1U : 0U);
    if (!c.want_state) continue;
    const ir::Array& S = got.at("final_state");
    EXPECT_TRUE(Near(Doubles(S), oracle.S, StateParts(c, oracle.S_written), kProducts)) << "states";
    // A pool is updated in place; without an input that they start as, rows not written hold NaN.
    const std::vector<double> before = c.slots.empty() ? std::vector<double>() : c.S0;
    EXPECT_TRUE(Untouched(S, oracle.S_written, before));
  }
}

TEST(TpuDecode, Gates) {
  for (MegaGate gate : {MegaGate::kBounded, MegaGate::kSoftplus, MegaGate::kLog}) {
    for (int parameters = 0; parameters < (gate == MegaGate::kLog ? 1 : 4); ++parameters) {
      Case c = Make(2, 8, 1, 0, {}, gate);
      if ((parameters & 1) != 0) c.A_log.clear();
      if ((parameters & 2) != 0) c.dt_bias.clear();
      SCOPED_TRACE(Name(gate) + " without " + std::to_string(parameters));
      Check(c);
    }
  }
}

TEST(TpuDecode, PoolInPlace) {
  const Case c = Make(3, 16, 2, 5, {1});
  Check(c);
  Check(c, {0, 3, -1});  // elsewhere, skipped, not kept
}

TEST(TpuDecode, MoreItemsThanTheRingHolds) {
  Check(Make(19, 8, 3, 23, {0, 7, 8, 18}));  // and more tokens than a grid step
  Check(Make(4, 24, 4));
}

TEST(TpuDecode, OneSequence) {
  Check(Make(1, 8, 5));
  Check(Make(1, 8, 5, 2));
  Check(Make(1, 8, 5, 2, {0}));
  Check(Make(1, 96, 5));
}

TEST(TpuDecode, NormalisedKeysAndBetaLogits) {
  Case c = Make(2, 8, 6);
  c.qk_l2norm = c.beta_logits = true;
  for (auto* x : {&c.q, &c.k}) {
    for (double& value : *x) value *= 16;
  }
  Check(c);
  for (int64_t d = 0; d < kDim; ++d) {
    c.Key(0, 0, d) *= 0x1p120;  // squares beyond fp32
    c.Q(0, 1, d) *= 0x1p100;
    c.Key(0, 2, d) *= 0x1p-80;  // only epsilon is left
    c.Q(0, 3, d) = c.Key(0, 3, d) = 0;
  }
  Check(c);
}

TEST(TpuDecode, OtherDtypesAndNoStates) {
  Case c = Make(2, 8, 7);
  c.dtypes.g = c.dtypes.beta = KDA_F32;
  Check(c);
  c = Make(2, 8, 7, 4);
  c.S0.clear();
  Check(c, {0, 1});
  c = Make(2, 8, 7, 4);
  c.want_state = false;
  Check(c);
}

TEST(TpuDecode, BetaOfMoreThan128Tokens) {
  std::vector<int64_t> skipped;
  for (int64_t n = 1; n < 130; ++n) {
    if (n != 127) skipped.push_back(n);
  }
  Case c = Make(131, 8, 8, 4, skipped);
  c.slots[0] = 0, c.slots[127] = 1, c.slots[130] = 2;
  Check(c);
}

TEST(TpuDecode, ExtremeGates) {
  Case c = Make(1, 8, 9, 0, {}, MegaGate::kLog);
  for (int64_t d = 0; d < kDim; ++d) {
    c.G(0, 0, d) = d % 2 == 0 ? -kInf : 0;
    c.G(0, 1, d) = d % 2 == 0 ? Bf16(-1e30) : -88;
  }
  Check(c);
  for (MegaGate gate : {MegaGate::kSoftplus, MegaGate::kBounded}) {
    SCOPED_TRACE(Name(gate));
    c = Make(1, 8, 9, 0, {}, gate);
    c.A_log = {95, 95, 95, 20, -95, 3, -20, 6};
    c.dt_bias.assign(c.dt_bias.size(), 0);
    const double x[] = {-150, 0, -96, -20, 60, -30, 1e30, -4};
    for (int64_t h = 0; h < 8; ++h) {
      for (int64_t d = 0; d < kDim; ++d) {
        c.G(0, h, d) = Bf16(x[h] + (h == 6 ? 0 : 0.1 * static_cast<double>(d % 8)));
      }
    }
    c.G(0, 1, 0) = 0;
    Check(c);
  }
}

TEST(TpuDecode, GatesOfAnySize) {
  for (const ExtremeGates& gates : AllExtremeGates()) {
    SCOPED_TRACE(Name(gates.gate) + " " + std::to_string(gates.a_log[0]));
    Case c = Make(1, 8, 9, 0, {}, gates.gate);
    SetGates(&c, gates);
    Check(c);
  }
  Case c = Make(1, 8, 9, 0, {}, MegaGate::kBounded);
  c.lower_bound = -1e38;  // the least there is (core/limits.cc)
  c.A_log.clear();
  c.dt_bias.clear();
  for (int64_t h = 0; h < 8; ++h) SetGateOfHead(&c, h, h % 2 == 0 ? -200 : 0);
  Check(c);
}

// Whatever is in one head of one sequence, the others' bits do not change.
TEST(TpuDecode, NaNStaysInItsHead) {
  Case clean = Make(2, 16, 10);
  clean.qk_l2norm = clean.beta_logits = true;
  const Arrays want = RunDecode(clean);
  const int64_t head = 3, row = clean.H + head;  // of sequence 1
  const std::vector<std::function<void(Case*)>> edits = {
      [&](Case* c) { c->Q(1, head, 5) = kNan; },
      [&](Case* c) { c->Key(1, head, 5) = kNan; },
      [&](Case* c) { c->Key(1, head, 5) = kInf; },
      [&](Case* c) { c->Value(1, head, 5) = kNan; },
      [&](Case* c) { c->G(1, head, 5) = kNan; },
      [&](Case* c) { c->Beta(1, head) = kNan; },
      [&](Case* c) { c->State(1, head, 0, 77) = kNan; },
      [&](Case* c) { c->A_log[static_cast<size_t>(head)] = kNan; },
  };
  for (size_t e = 0; e < edits.size(); ++e) {
    Case c = clean;
    edits[e](&c);
    const Arrays got = RunDecode(c);
    for (int64_t r = 0; r < 2 * clean.H; ++r) {
      if (r == row || (e == 7 && r == head)) continue;
      for (const char* name : {"o", "final_state"}) {
        // o [1, 2, 16, 128] and the states [2, 16, 128, 128] are rows of heads.
        const ir::Array &a = got.at(name), &b = want.at(name);
        const int64_t bytes = a.byte_count() / (2 * clean.H);
        const auto* x = static_cast<const char*>(a.data()) + r * bytes;
        EXPECT_TRUE(std::equal(x, x + bytes, static_cast<const char*>(b.data()) + r * bytes))
            << e << " " << name << " row " << r;
      }
    }
  }
}

// A skipped sequence's state may hold anything, and what is near it.
TEST(TpuDecode, SkippedSequencesSeeNothing) {
  Case c = Make(3, 8, 11, 4, {1});
  for (int64_t h = 0; h < 8; ++h) {
    for (int64_t d = 0; d < kDim; ++d) {
      c.Q(1, h, d) = c.Key(1, h, d) = c.Value(1, h, d) = c.G(1, h, d) = kNan;
    }
    c.Beta(1, h) = kNan;
  }
  Check(c);
}

// --- Through libtpu ---

CompileResult CompileDecode(TpuProblem p, const char* target = "v6e") {
  p.vmem_bytes = FindTarget(target)->vmem_bytes;
  hlo::Module module("kda");
  BuildDecode(p, &module);
  CompileRequest request = TinyRequest(target);
  request.module = hlo::Print(module);
  request.schedule = true;
  return Compile(request);
}

TEST(TpuDecodeCompiled, EveryForm) {
  KDA_NEEDS_LIBTPU();
  TpuProblem base = Problem(3, 8, 5);
  for (int form = 0; form < 6; ++form) {
    TpuProblem p = base;
    if (form == 1) p = Problem(1, 96);
    if (form == 2) p.gate = KDA_GATE_SOFTPLUS, p.qk_l2norm = true;
    if (form == 3) p.gate = KDA_GATE_LOG, p.beta_logits = true, p.gate_dtype = DType::kF32;
    if (form == 4) p.initial_state = false, p.beta_dtype = DType::kF32;
    if (form == 5) p = Problem(130, 24, 140), p.has_a_log = p.has_dt_bias = false;
    const CompileResult result = CompileDecode(p);
    EXPECT_TRUE(result.ok()) << form << ": " << result.message;
  }
}

TEST(TpuDecodeCompiled, OtherTargets) {
  KDA_NEEDS_LIBTPU();
  for (const char* target : {"v5e", "v5p", "tpu7x"}) {
    const CompileResult result = CompileDecode(Problem(16, 96, 16), target);
    EXPECT_TRUE(result.ok()) << target << ": " << result.message;
  }
}

TEST(TpuDecodeCompiled, PredictedTime) {
  KDA_NEEDS_LIBTPU();
  const Target& target = *FindTarget("v6e");
  for (int64_t sequences : {16, 64}) {
    const TpuProblem p = Problem(sequences, 24, 70);
    const CompileResult result = CompileDecode(p);
    ASSERT_TRUE(result.ok()) << result.message;
    Schedule schedule;
    std::string error;
    ASSERT_TRUE(ReadSchedule(result.dumps, target.delay_slots, &schedule, &error)) << error;
    const KernelCounts counts = CountsOf(CountProgram(BuildDecodeKernel(p), p));
    const Prediction prediction = Predict(schedule, {{"kda_decode", counts}}, target);
    ASSERT_EQ(prediction.kernels.size(), 1U);
    const PredictedOperation& kernel = prediction.kernels[0];
    const double bytes = 2.0 * 4 * static_cast<double>(sequences * p.heads * kState);
    const double bound_us = bytes / (ConstantsOf(target).kernel_hbm_tb_s * 1e6);
    EXPECT_LE(prediction.device_ms * 1e3, 1.05 * bound_us);
    const double per_head = kernel.cycles / static_cast<double>(sequences * p.heads);
    EXPECT_LE(per_head, 120);
    RecordProperty("predicted_us", std::to_string(prediction.device_ms * 1e3));
    RecordProperty("cycles_per_head", std::to_string(per_head));
  }
}

}  // namespace
}  // namespace kda::test
