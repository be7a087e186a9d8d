// The decode kernel in the evaluator against the fp64 recurrence, and through the compiler.
#include "tpu/decode/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "reference/recurrence.h"
#include "tpu/counts.h"
#include "tpu/hlo/printer.h"
#include "tpu/ir/array.h"
#include "tpu/ir/evaluator.h"
#include "tpu/predict.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

using ir::Array;
using ir::DType;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kState = kDim * kDim;

TpuProblem Problem(int64_t sequences, int64_t heads, int64_t slots = 0) {
  TpuProblem p;
  p.sequences = p.tokens = sequences;
  p.heads = heads;
  p.slots = slots;
  p.lengths.assign(static_cast<size_t>(sequences), 1);
  return p;
}

struct Case {
  TpuProblem p;
  std::vector<int32_t> initial_slots, final_slots;
  std::vector<float> a_log, dt_bias, q, k, v, g, beta;  // q .. g [N, H, 128], beta [N, H]
  std::vector<float> states;                            // [N or slots, H, 128, 128]

  int64_t InitialSlot(int64_t n) const {
    return p.slots == 0 ? n : initial_slots[static_cast<size_t>(n)];
  }
  int64_t FinalSlot(int64_t n) const {
    return p.slots == 0 ? n : final_slots[static_cast<size_t>(n)];
  }
};

struct Result {
  std::vector<float> o, states;
};

// Values that bf16 holds.
std::vector<float> Normal(int64_t count, std::mt19937* random, double deviation, double mean = 0) {
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = ir::FromBF16(ir::ToBF16(static_cast<float>(normal(*random))));
  return values;
}

// Sequences in other slots than their own, in turn; every slot but those of `skipped` is written.
Case Make(const TpuProblem& p, unsigned seed = 1, const std::vector<int64_t>& skipped = {}) {
  std::mt19937 random(seed);
  Case c;
  c.p = p;
  const int64_t rows = p.sequences * p.heads, count = rows * kDim;
  for (int64_t n = 0; n < p.sequences; ++n) {
    c.initial_slots.push_back(static_cast<int32_t>((n * 3 + 1) % std::max<int64_t>(p.slots, 1)));
  }
  for (int64_t n : skipped) c.initial_slots[static_cast<size_t>(n)] = -1;
  c.final_slots = c.initial_slots;
  c.a_log = Normal(p.heads, &random, 0.5);
  c.dt_bias = Normal(p.heads * kDim, &random, 0.5);
  const bool raw = p.qk_l2norm;
  c.q = Normal(count, &random, raw ? 1.5 : 0.09);
  c.k = Normal(count, &random, raw ? 1.5 : 0.09);
  c.v = Normal(count, &random, 1);
  c.g = p.gate == KDA_GATE_LOG ? Normal(count, &random, 0.2, -0.5) : Normal(count, &random, 1);
  if (p.gate == KDA_GATE_LOG) {
    for (float& x : c.g) x = std::min(x, 0.0f);
  }
  c.beta = Normal(rows, &random, 0.15, 0.5);
  const int64_t states = p.slots > 0 ? p.slots : p.sequences;
  std::normal_distribution<float> normal(0, 1);
  c.states.resize(static_cast<size_t>(states * p.heads * kState));
  for (float& x : c.states) x = normal(random);
  return c;
}

std::vector<double> Row(const std::vector<float>& x, int64_t row) {
  const auto first = x.begin() + row * kDim;
  return {first, first + kDim};
}

void Recur(const Case& c, int64_t n, int64_t h, std::vector<double>* state,
           std::vector<double>* o) {
  const TpuProblem& p = c.p;
  const int64_t row = n * p.heads + h;
  std::vector<double> q = Row(c.q, row), k = Row(c.k, row), v = Row(c.v, row), g = Row(c.g, row);
  if (p.qk_l2norm) {
    reference::L2Normalize(kDim, q.data());
    reference::L2Normalize(kDim, k.data());
  }
  for (int64_t i = 0; i < kDim && p.gate != KDA_GATE_LOG; ++i) {
    const double bias = p.has_dt_bias ? c.dt_bias[static_cast<size_t>(h * kDim + i)] : 0;
    const double a_log = p.has_a_log ? c.a_log[static_cast<size_t>(h)] : 0;
    double& x = g[static_cast<size_t>(i)];
    x = reference::LogDecay({p.gate, p.lower_bound}, x + bias, a_log);
  }
  double beta = c.beta[static_cast<size_t>(row)];
  if (p.beta_logits) beta = reference::Sigmoid(beta);
  const reference::Token token = {q.data(), k.data(), v.data(), g.data(), beta};
  reference::Step({kDim, kDim}, token, p.scale, state->data(), o->data());
}

struct Expected {
  std::vector<double> o, states;
};

// `states` starts as what the final states' memory holds before.
Expected Reference(const Case& c, const std::vector<float>& before) {
  const TpuProblem& p = c.p;
  Expected e;
  e.o.assign(c.q.size(), 0);
  e.states.assign(before.begin(), before.end());
  for (int64_t n = 0; n < p.sequences; ++n) {
    const int64_t from = p.initial_state ? c.InitialSlot(n) : c.FinalSlot(n), to = c.FinalSlot(n);
    if (from < 0) continue;
    for (int64_t h = 0; h < p.heads; ++h) {
      std::vector<double> state(kState, 0), o(kDim);
      if (p.initial_state) {
        const auto first = c.states.begin() + (from * p.heads + h) * kState;
        state.assign(first, first + kState);
      }
      Recur(c, n, h, &state, &o);
      std::copy(o.begin(), o.end(), e.o.begin() + (n * p.heads + h) * kDim);
      if (!p.final_state || to < 0) continue;
      std::copy(state.begin(), state.end(), e.states.begin() + (to * p.heads + h) * kState);
    }
  }
  return e;
}

Result RunKernel(const Case& c, const ir::EvaluateOptions& options = {}) {
  const TpuProblem& p = c.p;
  const int64_t N = p.sequences, H = p.heads, groups = H / 8;
  const ir::Program program = BuildDecodeKernel(p);
  std::vector<Array> arguments;
  if (p.slots > 0) {
    arguments.push_back(Array::I32({N}, c.initial_slots));
    arguments.push_back(Array::I32({N}, c.final_slots));
  }
  if (p.gate != KDA_GATE_LOG) {
    if (p.has_a_log) arguments.push_back(Array::F32({H}, c.a_log));
    if (p.has_dt_bias) arguments.push_back(Array::F32({groups, 8, kDim}, c.dt_bias));
  }
  const ir::Shape shape = {N * groups, 8, kDim};
  for (const auto* x : {&c.q, &c.k, &c.v}) arguments.push_back(Array::BF16(shape, *x));
  arguments.push_back(Array::From(p.gate_dtype, shape, c.g));
  const bool by_token = DecodeBetaByToken(p);
  Array beta(p.beta_dtype, by_token ? ir::Shape{N, H} : ir::Shape{H, N});
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t h = 0; h < H; ++h) {
      beta.Set(by_token ? n * H + h : h * N + n, c.beta[static_cast<size_t>(n * H + h)]);
    }
  }
  arguments.push_back(beta);
  const ir::Shape states = {p.slots > 0 ? p.slots : N, H, kDim, kDim};
  if (p.initial_state) arguments.push_back(Array::F32(states, c.states));
  const std::vector<Array> out = ir::Evaluate(program, arguments, options);
  return {out[0].Floats(), p.final_state ? out[1].Floats() : std::vector<float>()};
}

double Error(const std::vector<float>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

void Check(const Case& c) {
  const TpuProblem& p = c.p;
  for (auto copies :
       {ir::EvaluateOptions::Copies::kAtWait, ir::EvaluateOptions::Copies::kAtStart}) {
    ir::EvaluateOptions options;
    options.copies = copies;
    const Result got = RunKernel(c, options);
    // Without an input that they start as, rows that are not written hold NaN.
    const bool aliased = p.slots > 0 && p.initial_state;
    const Expected want =
        Reference(c, aliased ? c.states : std::vector<float>(got.states.size(), 0));
    EXPECT_LE(Error(got.o, want.o), 6e-3);
    if (p.final_state) {
      EXPECT_LE(Error(got.states, want.states), 2e-5);
    }
    for (int64_t n = 0; n < p.sequences; ++n) {
      if (p.slots == 0 || c.initial_slots[static_cast<size_t>(n)] >= 0) continue;
      const auto row = got.o.begin() + n * p.heads * kDim;
      EXPECT_TRUE(std::all_of(row, row + p.heads * kDim, [](float x) { return x == 0; }));
    }
  }
}

TEST(Decode, Gates) {
  for (kda_gate gate : {KDA_GATE_BOUNDED, KDA_GATE_SOFTPLUS, KDA_GATE_LOG}) {
    for (int parameters = 0; parameters < (gate == KDA_GATE_LOG ? 1 : 4); ++parameters) {
      TpuProblem p = Problem(2, 8);
      p.gate = gate;
      p.has_a_log = (parameters & 1) == 0;
      p.has_dt_bias = (parameters & 2) == 0;
      SCOPED_TRACE("gate " + std::to_string(gate) + " without " + std::to_string(parameters));
      Check(Make(p));
    }
  }
}

TEST(Decode, PoolInPlace) {
  TpuProblem p = Problem(3, 16, 5);
  Case c = Make(p, 2, {1});
  Check(c);
  c.final_slots = {0, 3, -1};  // elsewhere, skipped, not kept
  Check(c);
}

TEST(Decode, MoreItemsThanTheRingHolds) {
  Check(Make(Problem(19, 8, 23), 3, {0, 7, 8, 18}));  // and more tokens than a grid step
  Check(Make(Problem(4, 24), 4));
}

TEST(Decode, OneSequence) {
  Check(Make(Problem(1, 8), 5));
  Check(Make(Problem(1, 8, 2), 5));
  Check(Make(Problem(1, 8, 2), 5, {0}));
  Check(Make(Problem(1, 96), 5));
}

TEST(Decode, NormalisedKeysAndBetaLogits) {
  TpuProblem p = Problem(2, 8);
  p.qk_l2norm = p.beta_logits = true;
  Case c = Make(p, 6);
  Check(c);
  for (int64_t i = 0; i < kDim; ++i) {
    const auto at = [&](int64_t h) { return static_cast<size_t>(h * kDim + i); };
    c.k[at(0)] *= 0x1p120f;  // squares beyond fp32
    c.q[at(1)] *= 0x1p100f;
    c.k[at(2)] *= 0x1p-80f;  // only epsilon is left
    c.q[at(3)] = c.k[at(3)] = 0;
  }
  Check(c);
}

TEST(Decode, OtherDtypesAndNoStates) {
  TpuProblem p = Problem(2, 8);
  p.gate_dtype = p.beta_dtype = DType::kF32;
  Check(Make(p, 7));
  p = Problem(2, 8, 4);
  p.initial_state = false;
  Case c = Make(p, 7);
  c.final_slots = {0, 1};
  Result got = RunKernel(c);
  const Expected want = Reference(c, std::vector<float>(got.states.size(), 0));
  got.states.resize(got.states.size() / 2);  // slots 2 and 3 are not written
  EXPECT_LE(Error(got.states, {want.states.begin(), want.states.begin() + 2 * 8 * kState}), 2e-5);
  EXPECT_LE(Error(got.o, want.o), 6e-3);
  p.initial_state = true;
  p.final_state = false;
  c = Make(p, 7);
  EXPECT_LE(Error(RunKernel(c).o, Reference(c, {}).o), 6e-3);
}

TEST(Decode, BetaOfMoreThan128Tokens) {
  TpuProblem p = Problem(131, 8, 4);
  std::vector<int64_t> skipped;
  for (int64_t n = 1; n < 130; ++n) {
    if (n != 127) skipped.push_back(n);
  }
  Case c = Make(p, 8, skipped);
  c.initial_slots[0] = 0, c.initial_slots[127] = 1, c.initial_slots[130] = 2;
  c.final_slots = c.initial_slots;
  Check(c);
}

TEST(Decode, ExtremeGates) {
  TpuProblem p = Problem(1, 8);
  p.gate = KDA_GATE_LOG;
  Case c = Make(p, 9);
  for (int64_t i = 0; i < kDim; ++i) {
    c.g[static_cast<size_t>(i)] = i % 2 == 0 ? -kInfinity : 0;
    c.g[static_cast<size_t>(kDim + i)] = i % 2 == 0 ? -1e30f : -88;
  }
  Check(c);
  for (kda_gate gate : {KDA_GATE_SOFTPLUS, KDA_GATE_BOUNDED}) {
    SCOPED_TRACE(gate);
    p.gate = gate;
    c = Make(p, 9);
    const float a_log[] = {95, 95, 95, 20, -95, 3, -20, 6};
    const float x[] = {-150, 0, -96, -20, 60, -30, 1e30f, -4};
    for (int64_t h = 0; h < 8; ++h) {
      c.a_log[static_cast<size_t>(h)] = a_log[h];
      for (int64_t i = 0; i < kDim; ++i) {
        const auto at = static_cast<size_t>(h * kDim + i);
        c.g[at] = ir::FromBF16(ir::ToBF16(x[h] + (h == 6 ? 0 : 0.1f * static_cast<float>(i % 8))));
        c.dt_bias[at] = 0;
      }
    }
    c.g[kDim] = 0;
    Check(c);
  }
}

// Whatever is in one head of one sequence, the others' bits do not change.
TEST(Decode, NaNStaysInItsHead) {
  TpuProblem p = Problem(2, 16);
  p.qk_l2norm = p.beta_logits = true;
  const Case clean = Make(p, 10);
  const Result want = RunKernel(clean);
  const int64_t head = 3;  // of sequence 1
  const int64_t row = p.heads + head;
  using Edit = std::function<void(Case*)>;
  const auto set = [&](std::vector<float> Case::*x, float value) {
    return Edit([=](Case* c) { (c->*x)[static_cast<size_t>(row * kDim + 5)] = value; });
  };
  const std::vector<Edit> edits = {
      set(&Case::q, kNaN),
      set(&Case::k, kNaN),
      set(&Case::k, kInfinity),
      set(&Case::v, kNaN),
      set(&Case::g, kNaN),
      [&](Case* c) { c->beta[static_cast<size_t>(row)] = kNaN; },
      [&](Case* c) { c->states[static_cast<size_t>(row * kState + 77)] = kNaN; },
      [&](Case* c) { c->a_log[static_cast<size_t>(head)] = kNaN; },
  };
  for (size_t e = 0; e < edits.size(); ++e) {
    Case c = clean;
    edits[e](&c);
    const Result got = RunKernel(c);
    for (int64_t r = 0; r < 2 * p.heads; ++r) {
      if (r == row || (e == 7 && r == head)) continue;
      const auto same = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t n) {
        return std::equal(a.begin() + r * n, a.begin() + (r + 1) * n, b.begin() + r * n);
      };
      EXPECT_TRUE(same(got.o, want.o, kDim)) << e << " row " << r;
      EXPECT_TRUE(same(got.states, want.states, kState)) << e << " row " << r;
    }
  }
}

// A skipped sequence's state may hold anything, and what is near it.
TEST(Decode, SkippedSequencesSeeNothing) {
  Case c = Make(Problem(3, 8, 4), 11, {1});
  for (int64_t i = 0; i < 8 * kDim; ++i) {
    for (auto* x : {&c.q, &c.k, &c.v, &c.g}) (*x)[static_cast<size_t>(8 * kDim + i)] = kNaN;
  }
  for (int64_t h = 0; h < 8; ++h) c.beta[static_cast<size_t>(8 + h)] = kNaN;
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

TEST(DecodeCompiled, EveryForm) {
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

TEST(DecodeCompiled, OtherTargets) {
  KDA_NEEDS_LIBTPU();
  for (const char* target : {"v5e", "v5p", "tpu7x"}) {
    const CompileResult result = CompileDecode(Problem(16, 96, 16), target);
    EXPECT_TRUE(result.ok()) << target << ": " << result.message;
  }
}

TEST(DecodeCompiled, PredictedTime) {
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
}  // namespace kda::tpu
