// Stage 1, gate_cumsum: the activated gate and its cumulative decay.
//
//   x    = g + dt_bias
//   g    = x | lower_bound sigmoid(exp(A_log) x) | -exp(A_log) softplus(x)      natural log, [64, K]
//   decay[i]  = e^g[i]                                                                      [64, K]
//   prefix[i] = prod of decay[r], r from the first row of i's 16-row block to i             [64, K]
//   block_log[b] - block_lost[b] = sum of g over block b, block_decay[b] = e^sum            [4, K]
//
// The cumulative gate of a chunk is kept as products within a block and as a logarithm per block:
// all exponents used anywhere are sums of gates over a span of tokens, hence <= 0 for every gate, so
// that nothing overflows, and no two sums are subtracted. The products of 16 decays are good to
// 16 roundings; a sum of gates of -0.5 over 64 tokens would lose 6e-8 * 32 = 2e-6 in the exponent,
// and one exponential of a compensated sum per block loses neither.
#ifndef KDA_CPU_GATE_CUMSUM_H_
#define KDA_CPU_GATE_CUMSUM_H_

#include "cpu/chunk.h"
#include "cpu/mma/tile.h"
#include "cpu/vec/math.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

// One activated gate vector. `p` is the head's gate, `bias` dt_bias of these channels.
template <class V>
typename V::F ActivateGate(const GateParams& p, typename V::F g, typename V::F bias) {
  using F = typename V::F;
  switch (p.gate) {
    case Gate::kBounded: {
      const F x = V::Mul(V::Mul(V::Add(g, bias), V::Set(p.power[0])), V::Set(p.mantissa));
      return V::Mul(V::Set(p.bound), Sigmoid<V>(V::Mul(x, V::Set(p.power[1]))));
    }
    case Gate::kSoftplus: {
      const F s = SoftplusTimesPow2<V>(V::Add(g, bias), V::Set(p.exponent));
      return V::Sub(V::Zero(), V::Mul(V::Set(p.mantissa), s));
    }
    default:
      return g;
  }
}

// g[0, pad16(K)) of one token; zero past K. e^-200 is 0 in fp32: what is below need not be told apart,
// and sums of what is left are finite. `row` is scratch of that length.
template <class V>
void ActivateGateRow(const HeadChunk& in, int i, float* row, float* g) {
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
    const typename V::F activated = ActivateGate<V>(in.gate, V::Load(row + c), bias);
    V::Store(g + c, V::Max(V::Set(-200.0f), activated));
  }
  for (int c = k; c < padded; ++c) g[c] = 0.0f;
}

// *sum - *lost += g, where *lost holds what rounding took from *sum (Kahan).
template <class V>
void AddCompensated(typename V::F g, typename V::F* sum, typename V::F* lost) {
  const typename V::F term = V::Sub(g, *lost), total = V::Add(*sum, term);
  *lost = V::Sub(V::Sub(total, *sum), term);
  *sum = total;
}

// Asks for row i of the next chunk: rows of one head lie H * K elements apart, which the hardware's
// own prefetching does not follow (prefill of 8192 tokens, 16 heads, AVX-512, Zen 5: 128 to 110 ms).
template <class V>
void PrefetchRow(const Rows& rows, int i, int dim) {
  const char* const row = rows.data + i * rows.stride;
  for (int b = 0; b < dim * SizeOf(rows.dtype); b += 64) __builtin_prefetch(row + b, 0, 2);
}

template <class V>
void GateCumsum(const HeadChunk& in, const ChunkBuffers& buf) {
  const int ld = buf.ldk;
  for (int i = 0; i < in.rows; ++i) {
    if (!kBf16Products<V> && in.more_rows > i) {
      PrefetchRow<V>(in.g, i+64, in.dim_k);
      PrefetchRow<V>(in.q, i+64, in.dim_k);
      PrefetchRow<V>(in.k, i+64, in.dim_k);
      PrefetchRow<V>(in.v, i+64, in.dim_v);
    }
    if (kBf16Products<V>) {
      PrefetchRow<V>(in.q, i, in.dim_k);
      PrefetchRow<V>(in.k, i, in.dim_k);
    }
    const int64_t at = static_cast<int64_t>(i) * ld;
    ActivateGateRow<V>(in, i, buf.row, buf.g + at);
    const bool first = i % kBlockRows == 0, last = i % kBlockRows == kBlockRows - 1;
    const int64_t block = static_cast<int64_t>(i / kBlockRows) * ld;
    for (int c = 0; c < ld; c += V::kLanes) {
      const typename V::F g = V::Load(buf.g + at + c);
      const typename V::F decay = Exp<V>(g);
      typename V::F prefix = decay, sum = g, lost = V::Zero();
      if (!first) {
        if constexpr (!kBf16Products<V>) prefix = V::Mul(V::Load(buf.prefix + at - ld + c), decay);
        sum = V::Load(buf.block_log + block + c);
        lost = V::Load(buf.block_lost + block + c);
        AddCompensated<V>(g, &sum, &lost);
      }
      V::Store(buf.decay + at + c, decay);
      if constexpr (!kBf16Products<V>) V::Store(buf.prefix + at + c, prefix);
      V::Store(buf.block_log + block + c, sum);
      V::Store(buf.block_lost + block + c, lost);
      if (last || i == in.rows - 1) V::Store(buf.block_decay + block + c, Exp<V>(sum, lost));
    }
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_GATE_CUMSUM_H_
