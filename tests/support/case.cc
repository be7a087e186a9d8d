#include "support/case.h"

#include <cmath>

#include "support/generator.h"

namespace kda::test {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

template <class Value>
std::vector<double> Fill(int64_t count, Value value) {
  std::vector<double> out(Size(count));
  for (int64_t i = 0; i < count; ++i) out[Size(i)] = value(static_cast<uint64_t>(i));
  return out;
}

// Unit vectors of `dim` normals; the norm is summed in index order.
std::vector<double> UnitVectors(const Std& s, Tag tag) {
  std::vector<double> out =
      Fill(s.T * s.H * s.K, [&](uint64_t i) { return Normal(s.seed, tag, i); });
  for (size_t row = 0; row < out.size(); row += Size(s.K)) {
    double sum = 0;
    for (int64_t d = 0; d < s.K; ++d) sum += out[row + Size(d)] * out[row + Size(d)];
    for (int64_t d = 0; d < s.K; ++d) {
      double& x = out[row + Size(d)];
      x = reference::Round(s.dtype, x / std::sqrt(sum));
    }
  }
  return out;
}

double RawGate(const Std& s, uint64_t i) {
  const double d = static_cast<double>(i % static_cast<uint64_t>(s.K));
  switch (s.regime) {
    case Regime::kMix:
      return -9 + 12 * d / static_cast<double>(s.K > 1 ? s.K - 1 : 1) +
             0.5 * Normal(s.seed, kTagG, i);
    case Regime::kSat:
      return 20;
    case Regime::kSlow:
      return -7 + 0.5 * Normal(s.seed, kTagG, i);
    case Regime::kNorm:
      return Normal(s.seed, kTagG, i);
    default:
      return 0;
  }
}

void SetGate(const Std& s, Case* c) {
  const int64_t heads = c->HV;
  c->g =
      Fill(s.T * heads * s.K, [&](uint64_t i) { return reference::Round(s.dtype, RawGate(s, i)); });
  if (s.regime == Regime::kZero) return SetLogGate(c, 0);
  c->gate = KDA_GATE_BOUNDED;
  c->lower_bound = -5;
  c->A_log = Fill(heads, [&](uint64_t i) {
    const double u = F32(Uniform(s.seed, kTagALog, i));
    return s.regime == Regime::kMix ? F32(u - 0.5) : s.regime == Regime::kNorm ? u : 0.0;
  });
  c->dt_bias = Fill(heads * s.K, [&](uint64_t i) {
    return s.regime == Regime::kSat ? 0.0 : F32(Uniform(s.seed, kTagDtBias, i) - 0.5);
  });
}

void Append(const std::vector<double>& from, std::vector<double>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

std::vector<double> RowsOf(const std::vector<double>& x, int64_t first, int64_t last,
                           int64_t width) {
  return {x.begin() + first * width, x.begin() + last * width};
}

}  // namespace

int64_t Case::Sequences() const { return cu.empty() ? B : static_cast<int64_t>(cu.size()) - 1; }
int64_t Case::First(int64_t n) const { return cu.empty() ? n * T : cu[Size(n)]; }
int64_t Case::Length(int64_t n) const { return cu.empty() ? T : cu[Size(n) + 1] - cu[Size(n)]; }

int64_t Case::Checkpoints() const {
  if (checkpoint_every == 0) return static_cast<int64_t>(checkpoint_tokens.size());
  int64_t rows = 0;
  for (int64_t n = 0; n < Sequences(); ++n) rows += Length(n) / checkpoint_every;
  return rows;
}

double Case::Scale() const {
  return scale == KDA_DEFAULT_SCALE ? 1 / std::sqrt(static_cast<double>(K)) : scale;
}

kda_dtype Case::KeptDtype() const {
  if (mode != KDA_DECODE) return KDA_F32;
  if (want_state) return dtypes.final;
  if (Checkpoints() != 0) return dtypes.checkpoints;
  return S0.empty() ? KDA_F32 : dtypes.initial;
}

Case Zeros(int64_t T, int64_t H, int64_t K, int64_t V) {
  Case c;
  c.T = T;
  c.H = c.HV = H;
  c.K = K;
  c.V = V;
  c.q.resize(Size(T * H * K));
  c.k = c.q;
  c.g = c.q;
  c.v.resize(Size(T * H * V));
  c.beta.resize(Size(T * H));
  return c;
}

Case Standard(const Std& s) {
  Case c;
  c.T = s.T;
  c.H = s.H;
  c.HV = s.HV == 0 ? s.H : s.HV;
  c.K = s.K;
  c.V = s.V;
  c.cu = s.cu;
  c.beta_logits = true;
  c.dtypes.qk = c.dtypes.v = c.dtypes.g = c.dtypes.beta = s.dtype;
  c.q = UnitVectors(s, kTagQ);
  c.k = UnitVectors(s, kTagK);
  const auto normal = [&](Tag tag) {
    return [&s, tag](uint64_t i) { return reference::Round(s.dtype, Normal(s.seed, tag, i)); };
  };
  c.v = Fill(c.T * c.HV * c.V, normal(kTagV));
  c.beta = Fill(c.T * c.HV, normal(kTagBeta));
  SetGate(s, &c);
  if (s.state) {
    c.S0 = Fill(c.Sequences() * c.HV * c.K * c.V,
                [&](uint64_t i) { return F32(0.1 * Normal(s.seed, kTagState, i)); });
  }
  return c;
}

void SetLogGate(Case* c, double G) {
  c->gate = KDA_GATE_LOG;
  c->dtypes.g = KDA_F32;
  c->A_log.clear();
  c->dt_bias.clear();
  c->g.assign(Size(c->B * c->T * c->HV * c->K), F32(G));
}

void SetBeta(Case* c, double beta) {
  c->beta_logits = false;
  c->dtypes.beta = KDA_F32;
  c->beta.assign(Size(c->B * c->T * c->HV), F32(beta));
}

void StoreAsF32(Case* c) {
  c->dtypes.qk = c->dtypes.v = c->dtypes.g = c->dtypes.beta = c->dtypes.o = KDA_F32;
}

std::vector<int64_t> Offsets(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets = {0};
  for (int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

Case AsDecode(Case c) {
  c.mode = KDA_DECODE;
  return c;
}

Case Slice(const Case& c, int64_t first, int64_t last, int64_t state) {
  Case part = c;
  part.B = 1;
  part.T = last - first;
  part.cu.clear();
  part.q = RowsOf(c.q, first, last, c.H * c.K);
  part.k = RowsOf(c.k, first, last, c.H * c.K);
  part.v = RowsOf(c.v, first, last, c.HV * c.V);
  part.g = RowsOf(c.g, first, last, c.HV * c.K);
  part.beta = RowsOf(c.beta, first, last, c.HV);
  part.S0.clear();
  if (state >= 0 && !c.S0.empty()) part.S0 = RowsOf(c.S0, state, state + 1, c.HV * c.K * c.V);
  return part;
}

Case Alone(const Case& c, int64_t n) { return Slice(c, c.First(n), c.First(n) + c.Length(n), n); }

Case Pack(const std::vector<Case>& parts) {
  Case all = parts.front();
  all.B = 1;
  all.cu = {0};
  for (const Case& part : parts) {
    for (int64_t n = 0; n < part.Sequences(); ++n) all.cu.push_back(all.cu.back() + part.Length(n));
  }
  all.T = all.cu.back();
  for (size_t i = 1; i < parts.size(); ++i) {
    Append(parts[i].q, &all.q);
    Append(parts[i].k, &all.k);
    Append(parts[i].v, &all.v);
    Append(parts[i].g, &all.g);
    Append(parts[i].beta, &all.beta);
    Append(parts[i].S0, &all.S0);
  }
  return all;
}

}  // namespace kda::test
