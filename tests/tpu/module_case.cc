#include "tpu/module_case.h"

#include <cmath>
#include <limits>
#include <string>

namespace kda::test {

namespace {

using tpu::ir::Array;
using tpu::ir::DType;
using tpu::ir::Shape;

DType Of(kda_dtype dtype) { return dtype == KDA_BF16 ? DType::kBF16 : DType::kF32; }

Array Make(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return Array::From(dtype, shape, std::vector<float>(values.begin(), values.end()));
}

// Rows that belong to no sequence hold NaN: it must not get anywhere.
std::vector<double> Poisoned(std::vector<double> x, const Case& c, int64_t row) {
  if (c.cu.empty()) return x;
  for (size_t i = static_cast<size_t>(c.cu.back() * row); i < x.size(); ++i) {
    x[i] = std::numeric_limits<double>::quiet_NaN();
  }
  return x;
}

}  // namespace

std::vector<double> Doubles(const Array& a) {
  std::vector<double> values(static_cast<size_t>(a.size()));
  for (int64_t i = 0; i < a.size(); ++i) values[static_cast<size_t>(i)] = a.Get(i);
  return values;
}

bool Untouched(const Array& x, const std::vector<bool>& written,
               const std::vector<double>& before) {
  const int64_t row = x.size() / x.shape()[0];
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto n = static_cast<size_t>(i / row);
    if (n < written.size() && written[n]) continue;
    const double value = x.Get(i);
    if (before.empty() ? !std::isnan(value) : value != before[static_cast<size_t>(i)]) return false;
  }
  return true;
}

tpu::TpuProblem ProblemOf(const Case& c) {
  tpu::TpuProblem p;
  p.tokens = c.T;
  p.heads = c.H;
  p.sequences = c.Sequences();
  for (int64_t n = 0; n < p.sequences; ++n) p.lengths.push_back(c.Length(n));
  p.gate = c.gate;
  p.lower_bound = c.lower_bound;
  p.has_a_log = !c.A_log.empty();
  p.has_dt_bias = !c.dt_bias.empty();
  p.qk_l2norm = c.qk_l2norm;
  p.beta_logits = c.beta_logits;
  p.scale = c.Scale();
  p.gate_dtype = Of(c.dtypes.g);
  p.beta_dtype = Of(c.dtypes.beta);
  p.initial_state = !c.S0.empty();
  p.final_state = c.want_state;
  p.slots = c.slots.empty() ? 0 : c.pool;
  p.checkpoint_every = c.checkpoint_every;
  return p;
}

tpu::hlo::Arrays ArraysOf(const Case& c) {
  const Shape tokens = {1, c.T, c.H, 128};
  tpu::hlo::Arrays arrays;
  const auto rows = [&](const char* name, DType dtype, const std::vector<double>& x) {
    arrays[name] = Make(dtype, tokens, Poisoned(x, c, c.H * 128));
  };
  rows("q", DType::kBF16, c.q);
  rows("k", DType::kBF16, c.k);
  rows("v", DType::kBF16, c.v);
  rows("g", Of(c.dtypes.g), c.g);
  arrays["beta"] = Make(Of(c.dtypes.beta), {1, c.T, c.H}, Poisoned(c.beta, c, c.H));
  std::vector<int32_t> offsets(c.cu.begin(), c.cu.end());
  if (offsets.empty()) offsets = {0, static_cast<int32_t>(c.T)};
  arrays["cu_seqlens"] = Array::I32({static_cast<int64_t>(offsets.size())}, offsets);
  if (!c.A_log.empty()) arrays["A_log"] = Make(DType::kF32, {c.H}, c.A_log);
  if (!c.dt_bias.empty()) arrays["dt_bias"] = Make(DType::kF32, {c.H, 128}, c.dt_bias);
  if (!c.slots.empty()) {
    const std::vector<int32_t> slots(c.slots.begin(), c.slots.end());
    arrays["initial_slots"] = arrays["final_slots"] =
        Array::I32({static_cast<int64_t>(slots.size())}, slots);
  }
  if (!c.S0.empty()) {
    arrays["initial_state"] = Make(DType::kF32, {c.States(), c.H, 128, 128}, c.S0);
  }
  return arrays;
}

ModuleResult RunModule(const tpu::hlo::Module& module, const Case& c) {
  ModuleResult result;
  result.arrays = tpu::hlo::Evaluate(module, ArraysOf(c));
  result.o = Doubles(result.arrays.at("o"));
  const auto state = result.arrays.find("final_state");
  if (state != result.arrays.end()) result.S = Doubles(state->second);
  return result;
}

}  // namespace kda::test
