// Stage 3, inter_chunk: the recurrence over chunks, S [K, V] fp32.
//
//   v_new = (I + L)^-1 beta (v - (k e^G) S)            [64, V]  (DeltaRule; one solve of V columns)
//         = u - w S                                             (DeltaRuleUW; the four-stage form)
//   S    <- e^G[last] S + kg^T v_new,  kg[j] = k[j] e^(G[last] - G[j])     (DecayToEnd, without V;
//                                                                         AdvanceState)
//
// fp32 throughout, but for the operands of (k e^G) S where products take bf16, and for those of
// sums over tokens where these are split (kSplitProducts). Stage output reads S between the two.
#ifndef KDA_CPU_INTER_CHUNK_H_
#define KDA_CPU_INTER_CHUNK_H_

#include "cpu/chunk.h"
#include "cpu/gate_cumsum.h"
#include "cpu/mma/tile.h"
#include "cpu/solve.h"
#include "cpu/vec/math.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

// s_pairs [K / 2, V]: the state in bf16, rows 2 c and 2 c + 1 in pairs.
template <class V>
void PackState(ConstState s, const ChunkBuffers& buf) {
  for (int c = 0; c < buf.ldk; c += 2) {
    const float* const row = s.data + c * s.ld;
    float* const pairs = buf.s_pairs + int64_t{c / 2} * buf.ldv;
    for (int v = 0; v < buf.ldv; v += V::kLanes) {
      V::Store(pairs + v, V::Pairs(V::Load(row + v), V::Load(row + s.ld + v)));
    }
  }
}

// A [64, K] S, as fp32 rows and state or as bf16 rows and pairs.
template <class V>
struct StateRead {
  const float* left;
  int64_t ldk;
  int dim_k;
  ConstState s;

  PairProduct Product(int i, int column) const {
    return {
        left + i * kPanelPairs,   2 * kChunkRows * kPanelPairs, kPanelPairs, s.data + column, s.ld,
        static_cast<int>(ldk / 2)};
  }
  template <int MR, int NV, class Steps = NothingAhead<V>>
  void Multiply(int i, int column, Tile<V, MR, NV>* tile, Steps&& ahead = Steps()) const {
    if constexpr (kBf16Products<V>) {
      const PairProduct product = Product(i, column);
      tile->Dot(&product, 1, ahead);
    } else {
      tile->Zero();
      tile->MultiplyAdd({left + i * ldk, ldk, 1}, s.data + column, s.ld, dim_k, ahead);
    }
  }
};

// Of the chunk's keys (k e^G) and queries (q e^G).
template <class V>
StateRead<V> ReadByKeys(const HeadChunk& in, const ChunkBuffers& buf, ConstState s) {
  if constexpr (kBf16Products<V>) {
    const float* const keys = buf.qk_chunk + kChunkRows * kPanelPairs;
    return {keys, buf.ldk, in.dim_k, {buf.s_pairs, buf.ldv}};
  } else {
    return {buf.kh, buf.ldk, in.dim_k, s};
  }
}
template <class V>
StateRead<V> ReadByQueries(const HeadChunk& in, const ChunkBuffers& buf, ConstState s) {
  if constexpr (kBf16Products<V>) {
    return {buf.qk_chunk, buf.ldk, in.dim_k, {buf.s_pairs, buf.ldv}};
  } else {
    return {buf.qh, buf.ldk, in.dim_k, s};
  }
}

// v_new[i] <- factor[i] (v_new[i] - left[i] S)
template <class V>
struct SubtractReadBody {
  StateRead<V> read;
  float* v_new;
  int64_t ldv;
  const float* factor;  // nullptr: 1

  template <int MR, int NV>
  void Run(int i, int column) const {
    Tile<V, MR, NV> tile;
    read.Multiply(i, column, &tile);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const typename V::F f = V::Set(factor == nullptr ? 1.0f : factor[i + r]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        float* at = v_new + (i + r) * ldv + column + n * V::kLanes;
        V::Store(at, V::Mul(f, V::Sub(V::Load(at), tile.c[r][n])));
      }
    }
  }
};

template <class V>
void DeltaRule(const HeadChunk& in, const ChunkBuffers& buf, ConstState s, Solver solver) {
  for (int i = 0; i < in.rows; ++i) {
    LoadRow<V>(in.v.dtype, in.v.data + i * in.v.stride, in.dim_v, buf.v_new + int64_t{i} * buf.ldv);
  }
  if constexpr (kBf16Products<V>) PackState<V>(s, buf);
  ForEachTile<V>(in.rows, buf.ldv,
                 SubtractReadBody<V>{ReadByKeys<V>(in, buf, s), buf.v_new, buf.ldv, buf.beta});
  SolveValues<V>(solver, buf, in.rows);
}

template <class V>
void DeltaRuleUW(const HeadChunk& in, const ChunkBuffers& buf, ConstState s) {
  for (int64_t c = 0; c < int64_t{in.rows} * buf.ldv; c += V::kLanes) {
    V::Store(buf.v_new + c, V::Load(buf.u + c));
  }
  ForEachTile<V>(in.rows, buf.ldv,
                 SubtractReadBody<V>{{buf.w, buf.ldk, in.dim_k, s}, buf.v_new, buf.ldv, nullptr});
}

// kg of the chunk's first `rows` rows, decayed to the end of row rows - 1, and the state's own
// decay over them.
template <class V, bool kAsBf16>
void DecayKeysToEnd(const ChunkBuffers& buf, int rows) {
  const int64_t ld = buf.ldk;
  const int last_block = (rows - 1) / kBlockRows;
  for (int c = 0; c < buf.ldk; c += V::kLanes) {
    typename V::F total = V::Zero(), decay = V::Set(1.0f);  // of the rows after the block at hand
    for (int b = last_block; b >= 0; --b) {
      const int start = b * kBlockRows;
      const int end = BlockEnd(start, rows);
      typename V::F suffix = decay;
      for (int j = end - 1; j >= start; --j) {
        V::Store(buf.kg + j * ld + c,
                 V::Mul(LoadKept<V, kAsBf16>(buf.k, At<V>(buf, j, c)), suffix));
        suffix = V::Mul(suffix, V::Load(buf.decay + At<V>(buf, j, c)));
      }
      typename V::F sum = V::Load(buf.block_log + b * ld + c);
      typename V::F lost = V::Load(buf.block_lost + b * ld + c);
      if (end < start + kBlockRows) {  // what gate_cumsum makes when the sequence ends here
        sum = V::Load(buf.g + At<V>(buf, start, c));
        lost = V::Zero();
        for (int j = start + 1; j < end; ++j) {
          AddCompensated<V>(V::Load(buf.g + At<V>(buf, j, c)), &sum, &lost);
        }
      }
      total = V::Add(total, V::Sub(sum, lost));
      decay = V::Mul(decay, Exp<V>(sum, lost));
    }
    typename V::F h, l;
    ExpSplit<V>(total, decay, &h, &l);
    V::Store(buf.state_decay + c, h);
    V::Store(buf.state_decay + ld + c, l);
  }
}

// kg_split: kg of the first `rows` rows, transposed, zeros up to the next multiple of 16.
template <class V>
void SplitKeys(const ChunkBuffers& buf, int rows) {
  const int64_t low = int64_t{kRowPairs} * buf.ldk;
  for (int start = 0; start < rows; start += 2 * V::kLanes) {  // 16 pairs of rows
    for (int c = 0; c < buf.ldk; c += V::kLanes) {
      alignas(64) float high_pairs[V::kLanes * V::kLanes], low_pairs[V::kLanes * V::kLanes];
      for (int p = 0; p < V::kLanes; ++p) {
        const int i = start + 2 * p;
        const float* const row = buf.kg + int64_t{i} * buf.ldk + c;
        const typename V::F first = i < rows ? V::Load(row) : V::Zero();
        const typename V::F second = i + 1 < rows ? V::Load(row + buf.ldk) : V::Zero();
        StorePairsSplit<V>(first, second, high_pairs + p * V::kLanes, low_pairs + p * V::kLanes);
      }
      float* const at = buf.kg_split + int64_t{c} * kRowPairs + start / 2;
      V::Transpose(high_pairs, V::kLanes, at, kRowPairs);
      V::Transpose(low_pairs, V::kLanes, at + low, kRowPairs);
    }
  }
}

// What AdvanceState needs of the first `rows` rows that does not depend on V.
template <class V>
void DecayToEnd(const HeadChunk& in, const ChunkBuffers& buf, int rows) {
  if (KeptAsBf16<V>(in)) {
    DecayKeysToEnd<V, true>(buf, rows);
  } else {
    DecayKeysToEnd<V, false>(buf, rows);
  }
  if constexpr (kSplitProducts<V>) SplitKeys<V>(buf, rows);
}

// out[c] = S[c] hi[c] + (S[c] lo[c] + sum_j kg[j, c] v_new[j]), in this order: DecodeColumns
// (decode.h) gives a chunk of one row the same bits.
template <class V>
struct AdvanceBody {
  const ChunkBuffers& buf;
  int rows;
  const float *hi, *lo;
  Ahead<V>* ahead;
  ConstState in;
  State out;

  template <int MR, int NV>
  void Run(int c, int column) const {
    Tile<V, MR, NV> tile;
    if constexpr (kSplitProducts<V>) {
      const int pairs = (rows + kBlockRows - 1) / kBlockRows * (kBlockRows / 2);
      const SplitProduct product =
          SplitProductOf({buf.kg_split + c * kRowPairs, kPanelPairs, kRowPairs,
                          buf.v_split + column, buf.ldv, pairs},
                         int64_t{kRowPairs} * buf.ldk, int64_t{kRowPairs} * buf.ldv);
      tile.Dot(product.parts, 3, *ahead);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
        const typename V::F l = V::Set(lo[c + r]);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) {
          tile.c[r][n] = V::Mul(V::Load(in.data + (c + r) * in.ld + column + n * V::kLanes), l);
        }
      }
      tile.MultiplyAdd({buf.kg + c, 1, buf.ldk}, buf.v_new + column, buf.ldv, rows, *ahead);
    }
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const typename V::F h = V::Set(hi[c + r]), l = V::Set(lo[c + r]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        const typename V::F s = V::Load(in.data + (c + r) * in.ld + column + n * V::kLanes);
        typename V::F change = tile.c[r][n];
        if constexpr (kSplitProducts<V>) change = V::Fma(s, l, change);
        V::Store(out.data + (c + r) * out.ld + column + n * V::kLanes, V::Fma(s, h, change));
      }
    }
  }
};

// The state after the chunk's first `rows` rows, those of DecayToEnd; `next` may be `now`.
template <class V>
void AdvanceState(const HeadChunk& in, const ChunkBuffers& buf, int rows, ConstState now,
                  State next) {
  // At a checkpoint the rows after `rows` in the same 16 must not count.
  const int cut = rows == in.rows ? 0 : rows % kBlockRows;
  if constexpr (kSplitProducts<V>) {
    if (cut != 0) SplitValues<V>(buf, rows - cut, rows);
  }
  Ahead<V> ahead;
  if (in.next != nullptr && rows == in.rows) {
    ahead.Add(in.next->k, in.dim_k, in.next->rows);
    ahead.Add(in.next->v, in.dim_v, in.next->v_rows);
    ahead.Add(in.next->state, 4 * in.dim_v, 4 * in.dim_v, in.dim_k);
  }
  ahead.Spread(TilesOf<V>(in.dim_k, buf.ldv) * (kSplitProducts<V> ? rows / 2 : rows));
  const float *const hi = buf.state_decay, *const lo = hi + buf.ldk;
  ForEachTile<V>(in.dim_k, buf.ldv, AdvanceBody<V>{buf, rows, hi, lo, &ahead, now, next});
  if constexpr (kSplitProducts<V>) {
    if (cut != 0) SplitValues<V>(buf, rows - cut, BlockEnd(rows - cut, in.rows));
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_INTER_CHUNK_H_
