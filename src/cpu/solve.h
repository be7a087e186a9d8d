// X <- (I + L)^-1 X, X [rows, cols], L strictly lower [rows, rows]: the heart of stage intra_chunk.
//
// L of correlated keys with slow gates has entries near 1 and powers that grow like binomials while
// the inverse itself stays bounded, so no solver here but neumann64 ever forms a power of L.
//   block         16-row blocks: X_b <- X_b - L[b, <b] X[<b] as products, then substitution inside
//   substitution  row by row over the whole chunk
//   neumann64     (I - L)(I + L^2)(I + L^4) .. (I + L^32) X, operands rounded to bf16, as published
//                 for TPUs: off by 1e7 and more on such keys. Kept to reproduce that.
#ifndef KDA_CPU_SOLVE_H_
#define KDA_CPU_SOLVE_H_

#include "cpu/chunk.h"
#include "cpu/mma/tile.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

// X[i] <- X[i] - sum of L[i, j] X[j] over first <= j < i, for i in [first, last), NV vectors wide.
template <class V, int NV>
void SubstituteColumns(const float* l, float* x, int64_t ldx, int first, int last) {
  for (int i = first + 1; i < last; ++i) {
    typename V::F sum[NV];
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) sum[n] = V::Load(x + i * ldx + n * V::kLanes);
    for (int j = first; j < i; ++j) {
      const typename V::F factor = V::Set(l[i * kChunkRows + j]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        sum[n] = V::Fnma(factor, V::Load(x + j * ldx + n * V::kLanes), sum[n]);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) V::Store(x + i * ldx + n * V::kLanes, sum[n]);
  }
}

template <class V>
void SubstituteRows(const float* l, float* x, int64_t ldx, int first, int last) {
  // Eight independent chains hide the latency of one multiply-add.
  int column = 0;
  for (; column + 8 * V::kLanes <= ldx; column += 8 * V::kLanes) {
    SubstituteColumns<V, 8>(l, x + column, ldx, first, last);
  }
  for (; column + 4 * V::kLanes <= ldx; column += 4 * V::kLanes) {
    SubstituteColumns<V, 4>(l, x + column, ldx, first, last);
  }
  for (; column + 2 * V::kLanes <= ldx; column += 2 * V::kLanes) {
    SubstituteColumns<V, 2>(l, x + column, ldx, first, last);
  }
  for (; column < ldx; column += V::kLanes) {
    SubstituteColumns<V, 1>(l, x + column, ldx, first, last);
  }
}

// Two rows, zeros where they do not exist, as pairs of split rows.
template <class V>
void StorePairsSplit(typename V::F first, typename V::F second, float* high, float* low) {
  const typename V::F high1 = V::Top(first), high2 = V::Top(second);
  V::Store(high, V::Pairs(high1, high2));
  V::Store(low, V::Pairs(V::Sub(first, high1), V::Sub(second, high2)));
}

// Rows [start, start + 16) of v_new as pairs of split rows; those from `end` on as zeros.
template <class V>
void SplitValues(const ChunkBuffers& buf, int start, int end) {
  const int64_t low = int64_t{kRowPairs} * buf.ldv;
  for (int i = start; i < start + kBlockRows; i += 2) {
    const float* const row = buf.v_new + int64_t{i} * buf.ldv;
    float* const pairs = buf.v_split + int64_t{i / 2} * buf.ldv;
    for (int c = 0; c < buf.ldv; c += V::kLanes) {
      const typename V::F first = i < end ? V::Load(row + c) : V::Zero();
      const typename V::F second = i + 1 < end ? V::Load(row + buf.ldv + c) : V::Zero();
      StorePairsSplit<V>(first, second, pairs + c, pairs + low + c);
    }
  }
}

// Split A times split B: what is left out is below 2^-16 of the product.
// `a_low`, `b_low`: from a high part to its low part.
struct SplitProduct {
  PairProduct parts[3];
};
static inline SplitProduct SplitProductOf(const PairProduct& high, int64_t a_low, int64_t b_low) {
  SplitProduct product = {{high, high, high}};
  product.parts[1].a += a_low;
  product.parts[2].b += b_low;
  return product;
}

// Rows i.. of `left_split` [2, 64, 64] times v_new's rows before `before` (a multiple of 16).
static inline SplitProduct TimesValues(const ChunkBuffers& buf, const float* left_split, int i,
                                       int column, int before) {
  return SplitProductOf({left_split + i * kRowPairs, kPanelPairs, kRowPairs, buf.v_split + column,
                         buf.ldv, before / 2},
                        kChunkRows * kRowPairs, int64_t{kRowPairs} * buf.ldv);
}

// X -= the tile, at the tile's place in X.
template <class V, int MR, int NV>
void SubtractTile(const Tile<V, MR, NV>& tile, float* x, int64_t ldx) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r, x += ldx) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      V::Store(x + n * V::kLanes, V::Sub(V::Load(x + n * V::kLanes), tile.c[r][n]));
    }
  }
}

// v_new[start + i] -= L[start + i, 0 .. start) v_new[0 .. start), split.
template <class V>
struct SplitEliminateBody {
  const ChunkBuffers& buf;
  int start;

  template <int MR, int NV>
  void Run(int i, int column) const {
    Tile<V, MR, NV> tile;
    tile.Dot(TimesValues(buf, buf.l_split, start + i, column, start).parts, 3);
    SubtractTile<V>(tile, buf.v_new + (start + i) * int64_t{buf.ldv} + column, buf.ldv);
  }
};

// As SolveBlock, of v_new; leaves v_split too.
template <class V>
void SolveBlockSplit(const ChunkBuffers& buf, int rows) {
  for (int start = 0; start < rows; start += kBlockRows) {
    const int end = BlockEnd(start, rows);
    if (start > 0) ForEachTile<V>(end - start, buf.ldv, SplitEliminateBody<V>{buf, start});
    SubstituteRows<V>(buf.l, buf.v_new, buf.ldv, start, end);
    SplitValues<V>(buf, start, end);
  }
}

// X[start + i] -= L[start + i, 0 .. start) X[0 .. start)
template <class V>
struct EliminateBody {
  const float* l;
  float* x;
  int64_t ldx;
  int start;

  template <int MR, int NV>
  void Run(int i, int column) const {
    Tile<V, MR, NV> tile;
    tile.Zero();
    tile.MultiplyAdd({l + (start + i) * kChunkRows, kChunkRows, 1}, x + column, ldx, start);
    SubtractTile<V>(tile, x + (start + i) * ldx + column, ldx);
  }
};

template <class V>
void SolveBlock(const float* l, float* x, int64_t ldx, int rows) {
  for (int start = 0; start < rows; start += kBlockRows) {
    const int end = BlockEnd(start, rows);
    if (start > 0) ForEachTile<V>(end - start, ldx, EliminateBody<V>{l, x, ldx, start});
    SubstituteRows<V>(l, x, ldx, start, end);
  }
}

// C[i] = (keep ? C[i] : 0) + sign * A[i, 0 .. 64) B, A [64, 64].
template <class V>
struct ChainBody {
  const float* a;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  bool keep;
  float sign;

  template <int MR, int NV>
  void Run(int i, int column) const {
    Tile<V, MR, NV> tile;
    tile.Zero();
    tile.MultiplyAdd({a + i * kChunkRows, kChunkRows, 1}, b + column, ldb, kChunkRows);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        float* at = c + (i + r) * ldc + column + n * V::kLanes;
        const typename V::F term = V::Mul(V::Set(sign), tile.c[r][n]);
        V::Store(at, keep ? V::Add(V::Load(at), term) : term);
      }
    }
  }
};

// `scratch`: 2 [64, 64] and [64, ldx].
template <class V>
void SolveNeumann64(const float* l, float* x, int64_t ldx, int rows, float* scratch) {
  constexpr int kSquare = kChunkRows * kChunkRows;
  float* power = scratch;
  float* next = scratch + kSquare;
  float* rounded = scratch + 2 * kSquare;
  for (int i = 0; i < kChunkRows; ++i) {
    for (int j = 0; j < kChunkRows; ++j) {
      power[i * kChunkRows + j] = i < rows && j < i ? l[i * kChunkRows + j] : 0.0f;
    }
  }
  for (int64_t c = rows * ldx; c < kChunkRows * ldx; ++c) rounded[c] = 0.0f;
  float sign = -1.0f;
  for (int exponent = 1; exponent < kChunkRows; exponent *= 2) {
    RoundToBf16<V>(power, power, kSquare);
    RoundToBf16<V>(x, rounded, static_cast<int>(rows * ldx));
    ForEachTile<V>(rows, static_cast<int>(ldx),
                   ChainBody<V>{power, rounded, ldx, x, ldx, true, sign});
    ForEachTile<V>(kChunkRows, kChunkRows,
                   ChainBody<V>{power, power, kChunkRows, next, kChunkRows, false, 1.0f});
    float* const old = power;
    power = next;
    next = old;
    sign = 1.0f;
  }
}

template <class V>
void Solve(Solver solver, const ChunkBuffers& buf, float* x, int64_t ldx, int rows) {
  switch (solver) {
    case Solver::kSubstitution:
      return SubstituteRows<V>(buf.l, x, ldx, 0, rows);
    case Solver::kNeumann64:
      return SolveNeumann64<V>(buf.l, x, ldx, rows, buf.solve_scratch);
    default:
      return SolveBlock<V>(buf.l, x, ldx, rows);
  }
}

// bf16 products have the solver substitution too; neumann64 only fp32 ones.
template <class V>
void SolveValues(Solver solver, const ChunkBuffers& buf, int rows) {
  if constexpr (!kSplitProducts<V>) {
    Solve<V>(solver, buf, buf.v_new, buf.ldv, rows);
  } else if (solver != Solver::kSubstitution) {
    SolveBlockSplit<V>(buf, rows);
  } else {
    SubstituteRows<V>(buf.l, buf.v_new, buf.ldv, 0, rows);
    for (int start = 0; start < rows; start += kBlockRows) SplitValues<V>(buf, start, rows);
  }
}

// The four-stage form: u = (I + L)^-1 (beta v), w = (I + L)^-1 (beta k e^G).
template <class V>
void SolveUW(const HeadChunk& in, const ChunkBuffers& buf, Solver solver) {
  for (int i = 0; i < in.rows; ++i) {
    float* u = buf.u + int64_t{i} * buf.ldv;
    LoadRow<V>(in.v.dtype, in.v.data + i * in.v.stride, in.dim_v, u);
    const typename V::F beta = V::Set(buf.beta[i]);
    for (int c = 0; c < buf.ldv; c += V::kLanes) V::Store(u + c, V::Mul(beta, V::Load(u + c)));
    const float* kh = buf.kh + int64_t{i} * buf.ldk;
    float* w = buf.w + int64_t{i} * buf.ldk;
    for (int c = 0; c < buf.ldk; c += V::kLanes) V::Store(w + c, V::Mul(beta, V::Load(kh + c)));
  }
  Solve<V>(solver, buf, buf.u, buf.ldv, in.rows);
  Solve<V>(solver, buf, buf.w, buf.ldk, in.rows);
}

}  // namespace kda::cpu

#endif  // KDA_CPU_SOLVE_H_
