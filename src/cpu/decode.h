// Decode: one token of the recurrence, S [K, V] fp32, all four stages in two passes over the state.
//
//   r     = v - (e^g k)^T S                       read
//   o     = scale ((e^g q)^T S + (q . k) beta r)
//   S_out = e^g S + k (beta r)^T                  write
//
// The output needs no second read: S_out^T q = (e^g S)^T q + (k . q) beta r.
#ifndef KDA_CPU_DECODE_H_
#define KDA_CPU_DECODE_H_

#include "cpu/chunk.h"
#include "cpu/gate_cumsum.h"
#include "cpu/intra_chunk.h"
#include "cpu/vec/math.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

// Rows of the state that are asked for ahead of their turn, the first of the next head's too, where
// heads lie one behind the other: the processor's own prefetching begins anew with every page of 8
// rows. Without those of the next head it takes 1.17 times as long (Zen 5); asking for
// its whole state while this one's is written is slower too: memory turns
// between reading and writing.
inline constexpr int kAheadRows = 16;
inline constexpr int kCacheLine = 16;  // floats

template <class V, int NV>
void DecodeColumns(const DecodeHead& head, int column) {
  TokenVectors* const t = head.vectors;
  using F = typename V::F;
  const ConstState s = head.now;
  const State out = head.next;
  const int dim_k = head.chunk.dim_k;
  F sum_k[NV], sum_q[NV];
  for (int n = 0; n < NV; ++n) sum_k[n] = sum_q[n] = V::Zero();
  for (int c = 0; c < dim_k; ++c) {
    const float* row = s.data + c * s.ld + column;
    const F kd = V::Set(t->k_decayed[c]), qd = V::Set(t->q_decayed[c]);
    for (int n = 0; n < NV; n += kCacheLine / V::kLanes) {
      __builtin_prefetch(row + kAheadRows * s.ld + n * V::kLanes, 0, 3);
    }
    for (int n = 0; n < NV; ++n) {
      const F x = V::Load(row + n * V::kLanes);
      sum_k[n] = V::Fma(kd, x, sum_k[n]);
      sum_q[n] = V::Fma(qd, x, sum_q[n]);
    }
  }
  F delta[NV];
  for (int n = 0; n < NV; ++n) {
    const int at = column + n * V::kLanes;
    delta[n] = V::Mul(V::Set(t->beta), V::Sub(V::Load(t->v + at), sum_k[n]));
    const F o = V::Fma(V::Set(t->qk), delta[n], sum_q[n]);
    V::Store(t->o + at, V::Mul(V::Set(head.chunk.scale), o));
  }
  for (int c = 0; c < dim_k; ++c) {
    const float* row = s.data + c * s.ld + column;
    float* out_row = out.data + c * out.ld + column;
    const F k = V::Set(t->k[c]), hi = V::Set(t->hi[c]), lo = V::Set(t->lo[c]);
    for (int n = 0; n < NV; ++n) {
      const F x = V::Load(row + n * V::kLanes);
      const F change = V::Fma(k, delta[n], V::Mul(x, lo));
      V::Store(out_row + n * V::kLanes, V::Fma(x, hi, change));
    }
  }
}

// Asks for the row `heads` further on, where heads lie side by side: the next call's.
static inline void PrefetchHead(const Rows& rows, int heads, int dim) {
  const int bytes = dim * SizeOf(rows.dtype);
  const char* const row = rows.data + static_cast<int64_t>(heads) * bytes;
  for (int b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 3);
}

template <class V>
void LoadToken(const HeadChunk& in, TokenVectors* t) {
  alignas(64) float q[kMaxDimPadded];
  alignas(64) float beta[kDimAlign];
  LoadKeyRow<V>(in, in.q, 0, q);
  LoadKeyRow<V>(in, in.k, 0, t->k);
  ForEachGateColumn<V>(in, [&](const auto& column, int c) {
    V::Store(t->hi + c, column.template At<1>(0, 1).x[0]);
  });
  typename V::F qk_sum = V::Zero();
  for (int c = 0; c < PadTo16<V>(in.dim_k); c += V::kLanes) {
    typename V::F hi, lo;
    const typename V::F g = V::Load(t->hi + c);
    ExpSplit<V>(g, Exp<V>(g), &hi, &lo);
    const typename V::F decay = V::Add(hi, lo), q_c = V::Load(q + c), k_c = V::Load(t->k + c);
    V::Store(t->hi + c, hi);
    V::Store(t->lo + c, lo);
    V::Store(t->q_decayed + c, V::Mul(q_c, decay));
    V::Store(t->k_decayed + c, V::Mul(k_c, decay));
    qk_sum = V::Fma(q_c, k_c, qk_sum);
  }
  LoadRow<V>(in.v.dtype, in.v.data, in.dim_v, t->v);
  LoadBeta<V>(in, 0, 1, beta);
  t->beta = beta[0];
  t->qk = V::Sum(qk_sum);
}

// One token of `count` heads.
template <class V>
void DecodeToken(const DecodeHead* heads, int count) {
  for (int h = 0; h < count; ++h) {
    const HeadChunk& in = heads[h].chunk;
    PrefetchHead(in.q, count, in.dim_k);
    PrefetchHead(in.k, count, in.dim_k);
    PrefetchHead(in.g, count, in.dim_k);
    PrefetchHead(in.v, count, in.dim_v);
    LoadToken<V>(in, heads[h].vectors);
  }
  for (int h = 0; h < count; ++h) {
    const HeadChunk& in = heads[h].chunk;
    constexpr int kVecs = 2 * V::kTileVecs;
    const int padded_v = PadTo16<V>(in.dim_v);
    int column = 0;
    for (; column + kVecs * V::kLanes <= padded_v; column += kVecs * V::kLanes) {
      DecodeColumns<V, kVecs>(heads[h], column);
    }
    for (; column < padded_v; column += V::kLanes) {
      DecodeColumns<V, 1>(heads[h], column);
    }
    StoreRow<V>(in.o_dtype, heads[h].vectors->o, in.dim_v, in.o);
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_DECODE_H_
