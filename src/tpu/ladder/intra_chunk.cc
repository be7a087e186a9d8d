#include "tpu/ladder/intra_chunk.h"

#include <cmath>

#include "tpu/problem.h"

namespace kda::tpu {

namespace {

using ir::DType;
using ir::Value;

// Below 2^-126 a decay counts as that: nothing is lost, and rows ahead of the diagonal, whose
// exponents are positive, come out finite.
constexpr double kLeastExponent = -126;

Value BF16(Value x) { return ir::Cast(x, DType::kBF16); }
Value Product(Value a, Value b) { return ir::Dot(BF16(a), BF16(b)); }

struct Masks {
  Value row, column;  // i32 [64, 64]
  Value causal, strict;
};

Masks MakeMasks(ir::Builder* b) {
  Masks m;
  m.row = b->Iota({kChunk, kChunk}, 0);
  m.column = b->Iota({kChunk, kChunk}, 1);
  m.causal = m.row >= m.column;
  m.strict = m.row > m.column;
  return m;
}

// Aqk and L of each head before masks, scale and beta.
struct Scores {
  std::vector<Value> qk, kk;
};

Scores StripScores(const IntraInput& in, int64_t heads) {
  std::vector<std::vector<Value>> qk(static_cast<size_t>(heads)), kk = qk;
  for (int64_t first = 0; first < kChunk; first += kStrip) {
    const int64_t end = first + kStrip;
    const Value m = ir::Slice(in.G, 1, first + kStrip / 2, 1);
    const Value decay = ir::Exp2(ir::Slice(in.G, 1, first, kStrip) - m);
    const Value q = BF16(ir::Slice(in.q, 1, first, kStrip) * decay);
    const Value k = BF16(ir::Slice(in.k, 1, first, kStrip) * decay);
    const Value grown = BF16(ir::Slice(in.k, 1, 0, end) * ir::Exp2(m - ir::Slice(in.G, 1, 0, end)));
    for (int64_t h = 0; h < heads; ++h) {
      Value x = ir::DotNT(ir::Concat({HeadOf(q, h), HeadOf(k, h)}, 0), HeadOf(grown, h));
      if (end < kChunk) {
        const Value zeros = x.builder()->Constant(DType::kF32, 0, {2 * kStrip, kChunk - end});
        x = ir::Concat({x, zeros}, 1);
      }
      qk[static_cast<size_t>(h)].push_back(ir::Rows(x, 0, kStrip));
      kk[static_cast<size_t>(h)].push_back(ir::Rows(x, kStrip, kStrip));
    }
  }
  Scores scores;
  for (size_t h = 0; h < qk.size(); ++h) {
    scores.qk.push_back(ir::Concat(qk[h], 0));
    scores.kk.push_back(ir::Concat(kk[h], 0));
  }
  return scores;
}

Scores ElementwiseScores(const IntraInput& in, int64_t heads) {
  ir::Builder* const b = in.G.builder();
  const ir::Shape cube = {kChunk, kChunk, kDim};
  const auto rows = [](Value x) { return ir::Reshape(x, {kChunk, 1, kDim}); };
  const auto columns = [](Value x) { return ir::Reshape(x, {1, kChunk, kDim}); };
  const auto sum = [](Value x) { return ir::Reshape(ir::ReduceSum(x, 2), {kChunk, kChunk}); };
  std::vector<Value> decay;
  for (int64_t h = 0; h < heads; ++h) {
    const Value G = HeadOf(in.G, h);
    const Value causal = b->Iota(cube, 0) >= b->Iota(cube, 1);
    const Value exponent = ir::Select(causal, rows(G) - columns(G), kLeastExponent);
    decay.push_back(ir::Exp2(ir::Max(exponent, kLeastExponent)));
  }
  Scores scores;
  for (int64_t h = 0; h < heads; ++h) {
    const Value decayed = decay[static_cast<size_t>(h)] * columns(HeadOf(in.k, h));
    scores.qk.push_back(sum(rows(HeadOf(in.q, h)) * decayed));
    scores.kk.push_back(sum(rows(HeadOf(in.k, h)) * decayed));
  }
  return scores;
}

// x of (I + L) x = rhs in 16-row blocks: within one row by row, then what it adds to the rest.
Value Substitute(Value L, Value rhs) {
  std::vector<Value> blocks;
  Value rest = rhs;
  for (int64_t first = 0; first < kChunk; first += kStrip) {
    const Value diagonal = ir::Slice(ir::Rows(L, first, kStrip), 1, first, kStrip);
    const Value block = ir::Rows(rest, 0, kStrip);
    std::vector<Value> x = {ir::Rows(block, 0, 1)};
    for (int64_t i = 1; i < kStrip; ++i) {
      const Value known = ir::Cols(ir::Rows(diagonal, i, 1), 0, i);
      x.push_back(ir::Rows(block, i, 1) - ir::Dot(known, ir::Concat(x, 0)));
    }
    blocks.push_back(ir::Concat(x, 0));
    const int64_t end = first + kStrip;
    if (end == kChunk) break;
    const Value below = ir::Cols(ir::Rows(L, end, kChunk - end), first, kStrip);
    rest = ir::Rows(rest, kStrip, kChunk - end) - ir::Dot(below, blocks.back());
  }
  return ir::Concat(blocks, 0);
}

void Neumann(std::vector<Value> power, std::vector<Value>* x) {
  for (size_t h = 0; h < x->size(); ++h) (*x)[h] = (*x)[h] - Product(power[h], (*x)[h]);
  for (int64_t n = 2; n < kChunk; n *= 2) {
    for (Value& p : power) p = Product(p, p);
    for (size_t h = 0; h < x->size(); ++h) (*x)[h] = (*x)[h] + Product(power[h], (*x)[h]);
  }
}

// T - I, in blocks of twice the size each time: M_w picks, of every block of 2 w, the lower left.
std::vector<Value> DoubleBlocks(const std::vector<Value>& L, const Masks& masks) {
  std::vector<Value> strict(L.size());
  ir::Builder* const b = masks.row.builder();
  const Value diagonal =
      ir::Select(masks.row == masks.column, b->Constant(DType::kF32, 1, {kChunk, kChunk}), 0.0);
  for (int bits = 0; (int64_t{1} << bits) < kChunk; ++bits) {
    const Value block = ir::ShiftRight(masks.row, bits);
    const Value left = ir::ShiftRight(masks.column, bits);
    const Value pick = (block == left + 1.0) & ((block & 1u) == 1);
    std::vector<Value> step;
    step.reserve(L.size());
    for (const Value& l : L) step.push_back(ir::Select(pick, l, 0.0));
    if (bits == 0) {
      for (size_t h = 0; h < L.size(); ++h) strict[h] = -step[h];
      continue;
    }
    for (size_t h = 0; h < L.size(); ++h) step[h] = Product(step[h], diagonal + strict[h]);
    for (size_t h = 0; h < L.size(); ++h) {
      strict[h] = strict[h] - (step[h] + Product(strict[h], step[h]));
    }
  }
  return strict;
}

std::vector<Value> Solve(const std::vector<Value>& L, const std::vector<Value>& rhs,
                         const Masks& masks, kda_solver solver) {
  std::vector<Value> x = rhs;
  if (solver == KDA_SOLVER_NEUMANN64) {
    Neumann(L, &x);
  } else if (solver == KDA_SOLVER_SUBSTITUTION) {
    for (size_t h = 0; h < L.size(); ++h) x[h] = Substitute(L[h], rhs[h]);
  } else {
    const std::vector<Value> strict = DoubleBlocks(L, masks);
    for (size_t h = 0; h < L.size(); ++h) x[h] = rhs[h] + Product(strict[h], rhs[h]);
  }
  return x;
}

}  // namespace

Value HeadOf(Value x, int64_t i) {
  const ir::Shape& shape = x.shape();
  return ir::Reshape(ir::Slice(x, 0, i, 1), {shape[1], shape[2]});
}

bool StripsFit(double lower_bound) {
  return static_cast<double>(kStrip) / 2 * std::fabs(lower_bound) / std::log(2.0) < 126;
}

IntraOutput IntraChunk(const IntraInput& in, const IntraOptions& options) {
  ir::Builder* const b = in.q.builder();
  const int64_t heads = in.q.shape()[0];
  const Masks masks = MakeMasks(b);
  Scores scores;
  {
    const ir::Builder::Label label(b, "scores");
    scores = options.strips ? StripScores(in, heads) : ElementwiseScores(in, heads);
  }
  const Value grown = ir::Exp2(in.G);
  const Value beta_v = in.v * in.beta, beta_k = in.k * grown * in.beta;
  IntraOutput out;
  std::vector<Value> L, rhs;
  for (int64_t h = 0; h < heads; ++h) {
    const auto i = static_cast<size_t>(h);
    out.Aqk.push_back(ir::Select(masks.causal, scores.qk[i] * options.scale, 0.0));
    L.push_back(ir::Select(masks.strict, scores.kk[i] * HeadOf(in.beta, h), 0.0));
    std::vector<Value> columns = {HeadOf(beta_v, h), HeadOf(beta_k, h)};
    if (options.inverse) {
      columns.push_back(ir::Select(masks.row == masks.column,
                                   b->Constant(DType::kF32, 1, {kChunk, kChunk}), 0.0));
    }
    rhs.push_back(ir::Concat(columns, 1));
  }
  std::vector<Value> x;
  {
    const ir::Builder::Label label(b, "solve");
    x = Solve(L, rhs, masks, options.solver);
  }
  for (const Value& xh : x) {
    out.u.push_back(ir::Cols(xh, 0, kDim));
    out.w.push_back(ir::Cols(xh, kDim, kDim));
    if (options.inverse) out.T.push_back(ir::Cols(xh, 2 * kDim, kChunk));
  }
  out.kg = in.k * ir::Exp2(ir::Slice(in.G, 1, kChunk - 1, 1) - in.G);
  return out;
}

}  // namespace kda::tpu
