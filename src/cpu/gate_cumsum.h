// Stage 1, gate_cumsum: the activated gate and its cumulative decay.
//
//   x    = g + dt_bias
//   G_t  = g | lower_bound sigmoid(exp(A_log) x) | -exp(A_log) softplus(x)     natural log, per token
//   g2   = G_t / ln 2                             [64, K]
//   decay[i]  = 2^g2[i]                           [64, K]
//   prefix[i] = prod decay[r], r from the first row of i's 16-row block to i    [64, K]
//   block_log[b] = sum of g2 over block b         [4, K]
//
// The cumulative gate of a chunk is kept as products within a block and as a logarithm per block:
// all exponents used anywhere are sums of gates over a span of tokens, hence <= 0 for every gate, so
// that nothing overflows; and no two sums are subtracted, so that a gate of -inf (decay 0) is fine.
#ifndef KDA_CPU_GATE_CUMSUM_H_
#define KDA_CPU_GATE_CUMSUM_H_

#include "cpu/chunk.h"
#include "cpu/vec/math.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

// One activated gate vector in base-2 log. `p` is the head's gate, `bias` dt_bias of these channels.
template <class V>
typename V::F ActivateGate(const GateParams& p, typename V::F g, typename V::F bias) {
  using F = typename V::F;
  switch (p.gate) {
    case Gate::kBounded:
      return V::Mul(V::Set(p.bound), Sigmoid<V>(V::Mul(V::Set(p.scale), V::Add(g, bias))));
    case Gate::kSoftplus: {
      const F s = SoftplusTimesPow2<V>(V::Add(g, bias), V::Set(p.exponent));
      return V::Sub(V::Zero(), V::Mul(V::Set(p.scale), s));
    }
    default:
      return V::Mul(g, V::Set(kLog2E));
  }
}

// g2[0, pad16(K)) of one token; zero past K. `row` is scratch of that length.
template <class V>
void ActivateGateRow(const HeadChunk& in, int i, float* row, float* g2) {
  const int k = in.dim_k, padded = PadTo16<V>(k);
  LoadRow<V>(in.g.dtype, in.g.data + i * in.g.stride, k, row);
  for (int c = 0; c < padded; c += V::kLanes) {
    typename V::F bias = V::Zero();
    if (in.gate.dt_bias != nullptr && c < k) {
      if (c + V::kLanes <= k) {
        bias = V::Load(in.gate.dt_bias + c);
      } else {
        alignas(64) float tail[16] = {};
        for (int t = c; t < k; ++t) tail[t - c] = in.gate.dt_bias[t];
        bias = V::Load(tail);
      }
    }
    V::Store(g2 + c, ActivateGate<V>(in.gate, V::Load(row + c), bias));
  }
  for (int c = k; c < padded; ++c) g2[c] = 0.0f;
}

// Asks for row i of the next chunk: rows of one head lie H * K elements apart, which the hardware's
// own prefetching does not follow (prefill of 8192 tokens, 16 heads, AVX-512, Zen 5: 128 to 110 ms).
template <class V>
void PrefetchRow(const Rows& rows, int i, int dim) {
  const char* const row = rows.data + (i + kChunkRows) * rows.stride;
  for (int b = 0; b < dim * SizeOf(rows.dtype); b += 64) __builtin_prefetch(row + b, 0, 2);
}

template <class V>
void GateCumsum(const HeadChunk& in, const ChunkBuffers& buf) {
  const int ld = buf.ldk;
  for (int i = 0; i < in.rows; ++i) {
    if (in.more_rows > i) {
      PrefetchRow<V>(in.g, i, in.dim_k);
      PrefetchRow<V>(in.q, i, in.dim_k);
      PrefetchRow<V>(in.k, i, in.dim_k);
      PrefetchRow<V>(in.v, i, in.dim_v);
    }
    const int64_t at = static_cast<int64_t>(i) * ld;
    float* log_sum = buf.block_log + static_cast<int64_t>(i / kBlockRows) * ld;
    const bool first = i % kBlockRows == 0;
    ActivateGateRow<V>(in, i, buf.row, buf.g2 + at);
    for (int c = 0; c < ld; c += V::kLanes) {
      const typename V::F g2 = V::Load(buf.g2 + at + c);
      const typename V::F decay = Exp2<V>(g2);
      V::Store(buf.decay + at + c, decay);
      V::Store(buf.prefix + at + c, first ? decay : V::Mul(V::Load(buf.prefix + at - ld + c), decay));
      V::Store(log_sum + c, first ? g2 : V::Add(V::Load(log_sum + c), g2));
    }
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_GATE_CUMSUM_H_
