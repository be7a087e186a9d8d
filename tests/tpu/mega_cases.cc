#include "tpu/mega_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/compare.h"
#include "support/generator.h"
#include "support/goldens.h"
#include "tpu/module_case.h"

namespace kda::test {

namespace {

namespace ir = tpu::ir;

using tpu::ir::DType;
using tpu::ir::Shape;

constexpr int64_t kDim = 128;

std::vector<float> Floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }

std::vector<int32_t> Ints(const std::vector<int64_t>& x) { return {x.begin(), x.end()}; }

std::vector<int64_t> OffsetsOf(const Case& c) {
  return c.cu.empty() ? std::vector<int64_t>{0, c.T} : c.cu;
}

int64_t Capacity(const Case& c, const MegaRun& run) { return std::max(c.T, run.capacity); }

// The first rows of an array, as many as the reference has: kernels may be given room for more.
std::vector<double> FirstOf(const ir::Array& x, const std::vector<double>& reference) {
  std::vector<double> values = Doubles(x);
  values.resize(std::min(values.size(), reference.size()));
  return values;
}

double SoftplusGate(Regime regime, uint64_t i) {
  const double d = static_cast<double>(i % kDim);
  switch (regime) {
    case Regime::kMix:
      return -14 + 20 * d / 127 + 0.5 * Normal(2, kTagG, i);
    case Regime::kSat:
      return 20;
    case Regime::kZero:
      return -1e30;
    default:
      return -7 + 0.5 * Normal(2, kTagG, i);
  }
}

double LogGate(Regime regime, uint64_t i) {
  const double d = static_cast<double>(i % kDim);
  switch (regime) {
    case Regime::kMix:
      return -std::exp(-8 + 10 * d / 127 + 0.5 * Normal(2, kTagG, i));
    case Regime::kSat:
      return -5;
    case Regime::kZero:
      return 0;
    default:
      return -std::exp(-7 + 0.5 * Normal(2, kTagG, i));
  }
}

}  // namespace

tpu::TpuProblem MegaProblem(const Case& c, const MegaRun& run) {
  tpu::TpuProblem p = ProblemOf(c);
  p.tokens = Capacity(c, run);
  p.gate_dtype = DType::kBF16;
  p.precise = run.precise;
  return p;
}

std::vector<ir::Array> MegaArguments(const Case& c, const MegaRun& run) {
  const tpu::TpuProblem p = MegaProblem(c, run);
  const int64_t T = p.tokens, H = p.heads, group = tpu::MegaHeadGroup(H);
  std::vector<ir::Array> arguments = {ir::Array::I32({p.sequences + 1}, Ints(OffsetsOf(c)))};
  if (p.slots > 0) {
    arguments.push_back(ir::Array::I32({p.sequences}, Ints(c.slots)));
    const auto& final_slots = run.final_slots.empty() ? c.slots : run.final_slots;
    arguments.push_back(ir::Array::I32({p.sequences}, Ints(final_slots)));
  }
  if (p.gate != KDA_GATE_LOG) {
    if (p.has_a_log) arguments.push_back(ir::Array::F32({H / group, 1, group}, Floats(c.A_log)));
    if (p.has_dt_bias) {
      arguments.push_back(ir::Array::F32({H / group, group, kDim}, Floats(c.dt_bias)));
    }
  }
  for (const auto* x : {&c.q, &c.k, &c.v, &c.g}) {
    std::vector<float> values = Floats(*x);
    values.resize(static_cast<size_t>(T * H * kDim), static_cast<float>(run.poison));
    arguments.push_back(ir::Array::BF16({T, H, kDim}, values));
  }
  const int64_t columns = tpu::MegaBetaColumns(p);
  ir::Array beta = ir::Array::Full(p.beta_dtype, {H / group, group, columns}, run.poison);
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t h = 0; h < H; ++h) {
      beta.Set(h * columns + t, c.beta[static_cast<size_t>(t * H + h)]);
    }
  }
  arguments.push_back(beta);
  if (p.initial_state) {
    const int64_t states = p.slots > 0 ? p.slots : p.sequences;
    arguments.push_back(ir::Array::F32({states, H, kDim, kDim}, Floats(c.S0)));
  }
  return arguments;
}

MegaResult RunMega(const Case& c, const MegaRun& run) {
  const tpu::TpuProblem p = MegaProblem(c, run);
  tpu::ir::EvaluateOptions options;
  options.copies = run.copies;
  tpu::MegaOptions order = run.order != nullptr ? *run.order : tpu::MegaDefaults(p);
  if (run.unroll > 0) order.unroll = run.unroll;
  std::vector<ir::Array> out =
      tpu::ir::Evaluate(tpu::BuildMegaKernel(p, order), MegaArguments(c, run), options);
  MegaResult result;
  result.o = std::move(out[0]);
  if (p.final_state) result.S = std::move(out[1]);
  if (p.checkpoint_every > 0) result.checkpoints = std::move(out.back());
  return result;
}

MegaErrors ErrorsOf(const Case& c, const MegaResult& result, const Oracle& oracle) {
  MegaErrors e;
  const auto add = [&](const char* name, const ir::Array& x, const std::vector<double>& reference,
                       const std::vector<Share>& parts) {
    const PartErrors errors = ErrorsOf(FirstOf(x, reference), reference, parts);
    e.part = std::max(e.part, errors.part);
    if (!errors.whole.finite) e.fault = std::string(name) + " is not finite";
    return errors;
  };
  const PartErrors o = add("o", result.o, oracle.o, OutputParts(c));
  e.o = o.whole.rel_f;
  e.max_o = o.max_rel;
  const testing::AssertionResult zero = ZeroElsewhere(c, Doubles(result.o));
  if (!zero) e.fault = zero.message();
  if (!result.S.empty()) {
    e.S = add("final_state", result.S, oracle.S, StateParts(c, oracle.S_written)).whole.rel_f;
    // A pool is updated in place.
    const std::vector<double> before = c.slots.empty() ? std::vector<double>() : c.S0;
    if (!Untouched(result.S, oracle.S_written, before))
      e.fault = "final_state is touched elsewhere";
  }
  if (!result.checkpoints.empty()) {
    const std::vector<bool>& due = oracle.checkpoint_written;
    e.checkpoints =
        add("checkpoints", result.checkpoints, oracle.checkpoints, StateParts(c, due)).whole.rel_f;
    if (!Untouched(result.checkpoints, due, {})) e.fault = "checkpoints are touched elsewhere";
  }
  return e;
}

MegaResult CheckMega(const Case& c, double limit, const MegaRun& run) {
  MegaResult result = RunMega(c, run);
  const MegaErrors e = ErrorsOf(c, result, Solve(c));
  const std::string text = "relF o " + std::to_string(e.o) + " S " + std::to_string(e.S) +
                           " checkpoints " + std::to_string(e.checkpoints) + ", worst part " +
                           std::to_string(e.part) + ", max o " + std::to_string(e.max_o);
  EXPECT_EQ(e.fault, "") << text;
  for (const double error : {e.o, e.S, e.checkpoints, e.part}) EXPECT_LE(error, limit) << text;
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const int number = test->result()->test_property_count();
  testing::Test::RecordProperty("errors_" + std::to_string(number), text);
  return result;
}

std::vector<unsigned char> BitsOf(const ir::Array& a, int64_t first, int64_t rows, int64_t head) {
  const int64_t row = a.byte_count() / a.shape()[0], width = row / a.shape()[1];
  const auto* data = static_cast<const unsigned char*>(a.data());
  if (head < 0) return {data + first * row, data + (first + rows) * row};
  std::vector<unsigned char> bits;
  for (int64_t r = first; r < first + rows; ++r) {
    const unsigned char* const at = data + r * row + head * width;
    bits.insert(bits.end(), at, at + width);
  }
  return bits;
}

bool AllZero(const std::vector<unsigned char>& bits) {
  return std::all_of(bits.begin(), bits.end(), [](unsigned char b) { return b == 0; });
}

bool SameRows(const ir::Array& a, int64_t first, int64_t rows, const ir::Array& b, int64_t b_first,
              int64_t head) {
  return BitsOf(a, first, rows, head) == BitsOf(b, b_first, rows, head);
}

testing::AssertionResult SameBits(const MegaResult& a, const MegaResult& b) {
  if (a.o != b.o) return testing::AssertionFailure() << "o differs";
  if (a.S != b.S) return testing::AssertionFailure() << "the final states differ";
  if (a.checkpoints != b.checkpoints) return testing::AssertionFailure() << "checkpoints differ";
  return testing::AssertionSuccess();
}

std::string Name(MegaGate gate) {
  return gate == MegaGate::kBounded ? "bounded" : gate == MegaGate::kSoftplus ? "softplus" : "log";
}

std::string Name(Regime regime) {
  return regime == Regime::kMix    ? "mix"
         : regime == Regime::kSat  ? "sat"
         : regime == Regime::kSlow ? "slow"
                                   : "zero";
}

Case MegaStandard(uint64_t seed, int64_t heads, const std::vector<int64_t>& lengths, MegaGate gate,
                  Regime regime) {
  const std::vector<int64_t> cu = Offsets(lengths);
  const Regime base = regime == Regime::kZero ? Regime::kSlow : regime;
  Case c = Standard(Std(seed, cu.back(), heads).Packed(cu).In(base));
  if (gate == MegaGate::kBounded) {
    if (regime == Regime::kZero) std::fill(c.g.begin(), c.g.end(), Bf16(-1e30));
    return c;
  }
  c.gate = gate == MegaGate::kSoftplus ? KDA_GATE_SOFTPLUS : KDA_GATE_LOG;
  for (size_t i = 0; i < c.g.size(); ++i) {
    c.g[i] = Bf16(gate == MegaGate::kSoftplus ? SoftplusGate(regime, i) : LogGate(regime, i));
  }
  if (gate == MegaGate::kLog) {
    c.A_log.clear();
    c.dt_bias.clear();
  } else if (regime == Regime::kMix) {
    for (size_t h = 0; h < c.A_log.size(); ++h) c.A_log[h] = F32(std::log(h % 2 == 0 ? 8.3 : 201));
  }
  return c;
}

Case SideBySide(const std::vector<Case>& parts) {
  Case all = parts.front();
  all.H = 0;
  for (const Case& part : parts) all.H += part.H;
  all.HV = all.H;
  // [rows, heads, width] of every part, rows in turn.
  const auto join = [&](std::vector<double> Case::*field, int64_t rows) {
    if ((parts.front().*field).empty()) return;
    std::vector<double> joined;
    for (int64_t r = 0; r < rows; ++r) {
      for (const Case& part : parts) {
        const std::vector<double>& x = part.*field;
        const auto row = static_cast<std::ptrdiff_t>(x.size()) / rows;
        joined.insert(joined.end(), x.begin() + r * row, x.begin() + (r + 1) * row);
      }
    }
    all.*field = std::move(joined);
  };
  for (auto field : {&Case::q, &Case::k, &Case::v, &Case::g, &Case::beta}) join(field, all.T);
  join(&Case::S0, all.States());
  join(&Case::A_log, 1);
  join(&Case::dt_bias, 1);
  return all;
}

Case WithHeads(const Case& c, int64_t heads) {
  return SideBySide(std::vector<Case>(static_cast<size_t>(heads / c.H), c));
}

Case InBf16(Case c) {
  for (double& x : c.g) x = Bf16(x);
  c.dtypes.g = KDA_BF16;
  if (c.dtypes.beta != KDA_F32) {
    for (double& x : c.beta) x = Bf16(x);
  }
  return c;
}

void SetGateOfHead(Case* c, int64_t head, double x) {
  for (int64_t t = 0; t < c->T; ++t) {
    for (int64_t d = 0; d < 128; ++d) c->G(t, head, d) = Bf16(x);
  }
}

Case KeysAlike(uint64_t seed, int64_t tokens, MegaGate gate, const Alike& alike) {
  Case c = MegaStandard(seed, 8, {tokens}, gate, Regime::kSlow);
  c.S0.clear();
  c.beta_logits = false;
  std::fill(c.A_log.begin(), c.A_log.end(), 0);
  std::fill(c.dt_bias.begin(), c.dt_bias.end(), 0);
  const double x = gate == MegaGate::kLog       ? alike.G
                   : gate == MegaGate::kBounded ? std::log(alike.G / (c.lower_bound - alike.G))
                                                : std::log(std::expm1(-alike.G));
  for (int64_t h = 0; h < 8; ++h) {
    SetGateOfHead(&c, h, x);
    for (int64_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<uint64_t>(t * 8 + h);
      double key[kDim], squares = 0;
      for (int64_t d = 0; d < kDim; ++d) {
        const auto channel = static_cast<uint64_t>(d);
        key[d] = Normal(seed, 80, at * kDim + channel) +
                 alike.common * Normal(seed, 60, static_cast<uint64_t>(h) * kDim + channel);
        squares += key[d] * key[d];
      }
      for (int64_t d = 0; d < kDim; ++d) c.Key(t, h, d) = Bf16(key[d] / std::sqrt(squares));
      c.Beta(t, h) =
          Bf16(alike.least_beta + (alike.most_beta - alike.least_beta) * Uniform(seed, 95, at));
    }
  }
  return c;
}

std::vector<Case> TotalWipes() {
  Case c = MegaStandard(11, 8, {70}, MegaGate::kLog);
  for (int64_t h = 0; h < 8; ++h) SetGateOfHead(&c, h, h % 2 == 0 ? -2700 : -kInf);
  return {c, WithHeads(StdC(), 8), WithHeads(InBf16(StdL()), 8)};
}

Case SoftplusTails() {
  Case c = MegaStandard(1, 8, {20}, MegaGate::kSoftplus, Regime::kSat);
  const double x[] = {-1e30, -200, -20.1, -1e-8, 0, 3e38, kInf, -kInf};
  for (int64_t h = 0; h < 8; ++h) SetGateOfHead(&c, h, x[h]);
  return c;
}

Case GateParameters() {
  Case c = MegaStandard(1, 8, {20}, MegaGate::kSoftplus, Regime::kSat);
  const double a_log[] = {80, -120, -95, -20, 3, 6, 0, 12};
  const double x[] = {-1e30, 1e6, 60, 1e30, -30, -4, -0.5, -10};
  for (int64_t h = 0; h < 8; ++h) {
    SetGateOfHead(&c, h, x[h]);
    c.A_log[static_cast<size_t>(h)] = a_log[h];
  }
  return c;
}

std::vector<ExtremeGates> AllExtremeGates() {
  constexpr MegaGate kBounded = MegaGate::kBounded, kSoftplus = MegaGate::kSoftplus;
  return {{kSoftplus,
           {87.9, 85, 80, 95, 64.5, 63.5, 200, 200},
           {-87.75, -87.5, -87.5, -96, -64.5, -64.5, 0, -200},
           {0, 0, 0, 0, 0, 0, 0, 0}},
          {kSoftplus,
           {-88.5, -88.5, -100, -100, -87, -69.5, -70.5, -200},
           {3e38, 1e38, 3e38, kInf, 3e38, 1e30, 1e30, kInf},
           {0, 0, 0, 0, 0, 0, 0, 0}},
          {kSoftplus,
           {200, 90, 0, 3, -100, -100, 88, 87.9},
           {-kInf, -88, 100, -1e30, -1e30, 0, 20, -117.75},
           {0, 0, -100, 1e30, 3e38, 0, -110, 30}},
          {kBounded,
           {50, 50, 60, -200, -200, 3, 200, 88},
           {1e-19, -1e-22, -1e30, kInf, -kInf, -kInf, 0, 1e-30},
           {0, 0, 1e30, 0, 0, 3.4e38, 0, 0}}};
}

void SetGates(Case* c, const ExtremeGates& gates) {
  for (int64_t h = 0; h < 8; ++h) {
    const auto head = static_cast<size_t>(h);
    SetGateOfHead(c, h, gates.x[h]);
    c->A_log[head] = F32(gates.a_log[h]);
    // Where the two cancel they do so exactly.
    const double bias = gates.bias[h] == -gates.x[h] ? -Bf16(gates.x[h]) : F32(gates.bias[h]);
    std::fill_n(c->dt_bias.begin() + h * kDim, kDim, bias);
  }
}

}  // namespace kda::test
