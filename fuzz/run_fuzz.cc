// Any problem the library should take: made from the fuzzer's bytes, run between guard bands on one
// configuration, and compared with the fp64 recurrence within the tests' limits.
#include <fuzzer/FuzzedDataProvider.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "reference/dtypes.h"
#include "reference/recurrence.h"
#include "support/case.h"
#include "support/compare.h"
#include "support/generator.h"
#include "support/isas.h"
#include "support/run.h"

namespace kda::test {
namespace {

using Provider = FuzzedDataProvider;

constexpr kda_dtype kFloats[] = {KDA_F32, KDA_BF16, KDA_F16};
constexpr kda_dtype kStateDtypes[] = {KDA_F32, KDA_BF16};
constexpr int64_t kDims[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 60, 64, 100, 128};

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Values from a stream of the generator, scaled and rounded to how they will be stored.
std::vector<double> Normals(uint64_t seed, Tag tag, int64_t count, double scale, kda_dtype dtype) {
  std::vector<double> out(Size(count));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = reference::Round(dtype, scale * Normal(seed, tag, i));
  }
  return out;
}

// Unit vectors, from independent (`common` 0) to all but equal.
std::vector<double> Units(uint64_t seed, Tag tag, int64_t rows, int64_t dim, double common) {
  std::vector<double> out(Size(rows * dim));
  for (int64_t r = 0; r < rows; ++r) {
    double* x = out.data() + r * dim;
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) {
      x[d] = Normal(seed, tag, static_cast<uint64_t>(r * dim + d)) +
             common * Normal(seed, kTagProbe, static_cast<uint64_t>(d));
      sum += x[d] * x[d];
    }
    for (int64_t d = 0; d < dim; ++d) x[d] /= std::sqrt(sum + 1e-30);
  }
  return out;
}

void RoundTo(kda_dtype dtype, std::vector<double>* x) {
  for (double& value : *x) value = reference::Round(dtype, value);
}

void MakeShape(Provider* bytes, Case* c) {
  c->mode = bytes->ConsumeBool() ? KDA_PREFILL : KDA_DECODE;
  c->H = bytes->ConsumeIntegralInRange<int64_t>(1, 9);
  c->HV = c->H * (c->H < 4 ? bytes->ConsumeIntegralInRange<int64_t>(1, 3) : 1);
  c->K = bytes->PickValueInArray(kDims);
  c->V = bytes->PickValueInArray(kDims);
  const int64_t longest = c->mode == KDA_DECODE ? 5 : 140;
  if (bytes->ConsumeBool()) {
    c->B = bytes->ConsumeIntegralInRange<int64_t>(0, 3);
    c->T = bytes->ConsumeIntegralInRange<int64_t>(0, longest / 2);
    return;
  }
  const int sequences = bytes->ConsumeIntegralInRange<int>(0, 5);
  c->cu = {0};
  for (int n = 0; n < sequences; ++n) {
    c->cu.push_back(c->cu.back() + bytes->ConsumeIntegralInRange<int64_t>(0, longest / 2));
  }
  c->T = c->cu.back() + bytes->ConsumeIntegralInRange<int64_t>(0, 70);
}

void MakeGate(Provider* bytes, uint64_t seed, Case* c) {
  const int64_t count = c->B * c->T * c->HV * c->K;
  c->dtypes.g = bytes->PickValueInArray(kFloats);
  c->gate = bytes->PickValueInArray({KDA_GATE_LOG, KDA_GATE_BOUNDED, KDA_GATE_SOFTPLUS});
  if (c->gate == KDA_GATE_LOG) {
    const double scale = std::exp(bytes->ConsumeIntegralInRange<int>(-12, 7));
    c->g = Normals(seed, kTagG, count, scale, c->dtypes.g);
    for (double& g : c->g) g = -std::fabs(g);
    if (bytes->ConsumeBool()) {
      for (size_t i = 0; i < c->g.size(); i += 97) c->g[i] = -kInf;
    }
    return;
  }
  const double shift = bytes->ConsumeIntegralInRange<int>(-10, 10);
  c->g = Normals(seed, kTagG, count, 2, KDA_F32);
  for (double& g : c->g) g += shift;
  RoundTo(c->dtypes.g, &c->g);
  if (c->gate == KDA_GATE_BOUNDED) {
    c->lower_bound = -bytes->PickValueInArray({0.0, 0.25, 1.0, 2.75, 5.0, 5.9, 11.2, 88.0, 1000.0});
  }
  if (c->gate == KDA_GATE_SOFTPLUS || bytes->ConsumeBool()) {
    c->A_log = Normals(seed, kTagALog, c->HV, 1, KDA_F32);
  }
  if (bytes->ConsumeBool()) c->dt_bias = Normals(seed, kTagDtBias, c->HV * c->K, 1, KDA_F32);
}

void MakeState(Provider* bytes, uint64_t seed, Case* c) {
  const int64_t sequences = c->Sequences();
  c->order = bytes->ConsumeBool() ? KDA_STATE_KV : KDA_STATE_VK;
  c->dtypes.initial = bytes->PickValueInArray(kStateDtypes);
  c->dtypes.final = bytes->PickValueInArray(kStateDtypes);
  c->want_state = bytes->ConsumeBool();
  bool pooled = bytes->ConsumeBool() && sequences > 0;
  if (pooled) {
    c->pool = sequences + bytes->ConsumeIntegralInRange<int64_t>(0, 3);
    for (int64_t n = 0; n < sequences; ++n) {  // a rotation: every slot at most once
      c->slots.push_back(
          bytes->ConsumeIntegralInRange<int>(0, 5) == 0 ? -1 : (n + c->pool / 2) % c->pool);
    }
  }
  if (bytes->ConsumeBool() || (pooled && !c->want_state)) {
    c->S0 = Normals(seed, kTagState, c->States() * c->HV * c->K * c->V, 0.3, c->dtypes.initial);
    if (c->want_state && bytes->ConsumeBool()) {
      c->in_place = true;
      c->dtypes.final = c->dtypes.initial;
    }
    if (bytes->ConsumeBool()) {
      for (int64_t n = 0; n < sequences; ++n) c->has_initial.push_back(bytes->ConsumeBool());
    }
  }
  if (bytes->ConsumeBool()) {
    c->checkpoint_every = bytes->ConsumeIntegralInRange<int64_t>(1, 70);
    c->dtypes.checkpoints = bytes->PickValueInArray(kStateDtypes);
  }
}

Case MakeCase(Provider* bytes) {
  Case c;
  MakeShape(bytes, &c);
  const auto seed = bytes->ConsumeIntegral<uint16_t>();
  const int64_t tokens = c.B * c.T;
  c.dtypes.qk = bytes->PickValueInArray(kFloats);
  c.dtypes.v = bytes->PickValueInArray(kFloats);
  c.dtypes.beta = bytes->PickValueInArray(kFloats);
  c.dtypes.o = bytes->PickValueInArray(kFloats);
  const double common = bytes->PickValueInArray({0.0, 0.0, 1.0, 3.0, 30.0});
  c.q = Units(seed, kTagQ, tokens * c.H, c.K, common);
  c.k = Units(seed, kTagK, tokens * c.H, c.K, common);
  c.qk_l2norm = bytes->ConsumeBool();
  if (c.qk_l2norm) {
    for (double& x : c.k) x *= 3;
  }
  RoundTo(c.dtypes.qk, &c.q);
  RoundTo(c.dtypes.qk, &c.k);
  c.v = Normals(seed, kTagV, tokens * c.HV * c.V, 1, c.dtypes.v);
  c.beta_logits = bytes->ConsumeBool();
  c.beta = Normals(seed, kTagBeta, tokens * c.HV, 2, KDA_F32);
  for (double& beta : c.beta) {
    if (!c.beta_logits) beta = reference::Sigmoid(beta);
  }
  RoundTo(c.dtypes.beta, &c.beta);
  if (bytes->ConsumeBool()) c.scale = bytes->PickValueInArray({1.0, -0.5, 0.0, 1e-3});
  MakeGate(bytes, seed, &c);
  MakeState(bytes, seed, &c);
  return c;
}

Config MakeConfig(Provider* bytes, kda_mode mode) {
  Config config;
  const kda_isa_info* const isa = kda_isa_row(bytes->ConsumeIntegralInRange<int32_t>(-1, 7));
  if (isa != nullptr && WhyNot(static_cast<kda_isa>(isa->isa)).empty()) {
    config.isa = static_cast<kda_isa>(isa->isa);
  }
  config.solver =
      bytes->PickValueInArray({KDA_SOLVER_AUTO, KDA_SOLVER_SUBSTITUTION, KDA_SOLVER_BLOCK});
  config.threads = bytes->ConsumeIntegralInRange<int32_t>(1, 3);
  config.switches_off = bytes->ConsumeIntegralInRange<uint32_t>(0, KDA_SWITCHES_ALL);
  if (mode == KDA_DECODE) config.solver = KDA_SOLVER_AUTO;  // token by token: there is none
  return config;
}

void FuzzOne(const uint8_t* data, size_t size) {
  Provider bytes(data, size);
  const Case c = MakeCase(&bytes);
  const Config config = MakeConfig(&bytes, c.mode);
  const Result result = RunCase(c, config);
  const auto matches = Matches(c, result, Solve(c));
  if (matches) return;
  std::fprintf(stderr, "%s\n%s\n", config.Name().c_str(), matches.message());
  std::abort();
}

}  // namespace
}  // namespace kda::test

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  ::testing::InitGoogleTest(argc, *argv);
  GTEST_FLAG_SET(break_on_failure, true);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kda::test::FuzzOne(data, size);
  return 0;
}
