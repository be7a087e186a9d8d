// Stage 1, gate_cumsum: the activated gate and its cumulative decay.
//
//   x    = g + dt_bias
//   g    = x | lower_bound sigmoid(exp(A_log) x) | -exp(A_log) softplus(x)     natural log, [64, K]
//   decay[i]  = e^g[i]                                                                      [64, K]
//   prefix[i] = prod of decay[r], r from the first row of i's 16-row block to i             [64, K]
//   block_log[b] - block_lost[b] = sum of g over block b, block_decay[b] = e^sum            [4, K]
//
// The cumulative gate of a chunk is kept as products within a block and as a logarithm per block:
// all exponents used anywhere are sums of gates over a span of tokens, hence <= 0 for every gate,
// so that nothing overflows, and no two sums are subtracted. The products of 16 decays are good to
// 16 roundings; a sum of gates of -0.5 over 64 tokens would lose 6e-8 * 32 = 2e-6 in the exponent,
// and one exponential of a compensated sum per block loses neither.
#ifndef KDA_CPU_GATE_CUMSUM_H_
#define KDA_CPU_GATE_CUMSUM_H_

#include "cpu/chunk.h"
#include "cpu/mma/tile.h"
#include "cpu/prefetch.h"
#include "cpu/vec/math.h"
#include "cpu/vec/rows.h"
#include "cpu/vec/times.h"

namespace kda::cpu {

// One activated gate vector; e^-200 is 0 in fp32: what is below need not be told apart, and sums of
// what is left are finite.
template <class V, Gate G>
[[gnu::always_inline]] inline typename V::F ActivateGate(const GateParams& p, typename V::F g,
                                                         typename V::F bias) {
  using F = typename V::F;
  if constexpr (G == Gate::kBounded) {
    const F x = V::Mul(V::Add(g, bias), V::Set(p.power[0] * p.mantissa));
    g = V::Mul(V::Set(p.bound), SigmoidOfMinus<V>(V::Mul(x, V::Set(-p.power[1]))));
  }
  if constexpr (G == Gate::kSoftplus) {
    const F s = SoftplusTimesPow2<V>(V::Add(g, bias), V::Set(p.exponent));
    g = V::Sub(V::Zero(), V::Mul(V::Set(p.mantissa), s));
  }
  return V::Max(V::Set(-200.0f), g);
}

// The gates of channels [c, c + kLanes), token by token; 0 past K.
template <class V, Gate G, DType D>
class GateColumn {
 public:
  GateColumn(const HeadChunk& in, int c) : in_(in), c_(c), bias_(V::Zero()) {
    if (in.gate.dt_bias != nullptr) {
      bias_ = LoadPart<V, DType::kF32>(reinterpret_cast<const char*>(in.gate.dt_bias), c, in.dim_k);
    }
  }

  // Of tokens i .. i + N - 1; those from `end` on are computed as the one before it.
  template <int N>
  [[gnu::always_inline]] typename Times<V, N>::F At(int i, int end) const {
    typename Times<V, N>::F x, bias;
    for (int n = 0; n < N; ++n) {
      const int row = i + n < end ? i + n : end - 1;
      x.x[n] = LoadPart<V, D>(in_.g.data + row * in_.g.stride, c_, in_.dim_k);
      bias.x[n] = bias_;
    }
    typename Times<V, N>::F g = ActivateGate<Times<V, N>, G>(in_.gate, x, bias);
    if (c_ + V::kLanes <= in_.dim_k) return g;
    for (typename V::F& part : g.x) part = KeepFirst(part, in_.dim_k - c_);
    return g;
  }

 private:
  static typename V::F KeepFirst(typename V::F x, int count) {
    alignas(64) float lanes[V::kLanes];
    V::Store(lanes, x);
    for (int c = count > 0 ? count : 0; c < V::kLanes; ++c) lanes[c] = 0.0f;
    return V::Load(lanes);
  }

  const HeadChunk& in_;
  const int c_;
  typename V::F bias_;
};

// body(column) for every vector of channels, the column a GateColumn.
template <class V, Gate G, DType D, class Body>
void ForEachGateColumnAs(const HeadChunk& in, const Body& body) {
  for (int c = 0; c < PadTo16<V>(in.dim_k); c += V::kLanes) body(GateColumn<V, G, D>(in, c), c);
}
template <class V, Gate G, class Body>
void ForEachGateColumnOf(const HeadChunk& in, const Body& body) {
  switch (in.g.dtype) {
    case DType::kBF16:
      return ForEachGateColumnAs<V, G, DType::kBF16>(in, body);
    case DType::kF16:
      return ForEachGateColumnAs<V, G, DType::kF16>(in, body);
    default:
      return ForEachGateColumnAs<V, G, DType::kF32>(in, body);
  }
}
template <class V, class Body>
void ForEachGateColumn(const HeadChunk& in, const Body& body) {
  switch (in.gate.gate) {
    case Gate::kBounded:
      return ForEachGateColumnOf<V, Gate::kBounded>(in, body);
    case Gate::kSoftplus:
      return ForEachGateColumnOf<V, Gate::kSoftplus>(in, body);
    default:
      return ForEachGateColumnOf<V, Gate::kLog>(in, body);
  }
}

// *sum - *lost += g, where *lost holds what rounding took from *sum (Kahan).
template <class V>
void AddCompensated(typename V::F g, typename V::F* sum, typename V::F* lost) {
  const typename V::F term = V::Sub(g, *lost), total = V::Add(*sum, term);
  *lost = V::Sub(V::Sub(total, *sum), term);
  *sum = total;
}

// Where channels c.. of row i lie in g, decay, q and k.
template <class V>
int64_t At(const ChunkBuffers& buf, int i, int c) {
  if constexpr (kBf16Products<V>) {
    return int64_t{c / kPanel} * kChunkRows * kPanel + i * kPanel + c % kPanel;
  } else {
    return int64_t{i} * buf.ldk + c;
  }
}

// Whether q and k in `buf` are bf16 (as the caller gave them) instead of fp32.
template <class V>
bool KeptAsBf16(const HeadChunk& in) {
  return kBf16Products<V> && !in.qk_l2norm;
}
// Element `at` (At) and those after it of q or k in `buf`.
template <class V, bool kAsBf16>
typename V::F LoadKept(const float* p, int64_t at) {
  if constexpr (kAsBf16) {
    return V::LoadBf16(reinterpret_cast<const uint16_t*>(p) + at);
  } else {
    return V::Load(p + at);
  }
}

// One 16-row block [start, end) of a column.
template <class V, class Column>
void GateCumsumBlock(const Column& column, const ChunkBuffers& buf, int c, int start, int end) {
  using F = typename V::F;
  constexpr int kN = kChains<V>;
  F prefix = V::Zero(), sum = V::Zero(), lost = V::Zero();
  for (int i = start; i < end; i += kN) {
    const typename Times<V, kN>::F g = column.template At<kN>(i, end), decay = Exp<Times<V, kN>>(g);
    for (int n = 0; n < kN && i + n < end; ++n) {
      const int64_t at = At<V>(buf, i + n, c);
      if (i + n == start) {
        prefix = decay.x[n];
        sum = g.x[n];
      } else {
        prefix = V::Mul(prefix, decay.x[n]);
        AddCompensated<V>(g.x[n], &sum, &lost);
      }
      V::Store(buf.g + at, g.x[n]);
      V::Store(buf.decay + at, decay.x[n]);
      if constexpr (!kBf16Products<V>) V::Store(buf.prefix + at, prefix);
    }
  }
  const int64_t block = int64_t{start / kBlockRows} * buf.ldk + c;
  V::Store(buf.block_log + block, sum);
  V::Store(buf.block_lost + block, lost);
  V::Store(buf.block_decay + block, Exp<V>(sum, lost));
}

template <class V>
void GateCumsum(const HeadChunk& in, const ChunkBuffers& buf) {
  ForEachGateColumn<V>(in, [&](const auto& column, int c) {
    const bool line = !in.asked_for && c * SizeOf(in.q.dtype) % 64 == 0;
    for (int i = 0; line && i < in.rows; ++i) {  // for intra_chunk
      PrefetchPart(in.q, i, c);
      PrefetchPart(in.k, i, c);
    }
    for (int start = 0; start < in.rows; start += kBlockRows) {
      const int end = BlockEnd(start, in.rows);
      GateCumsumBlock<V>(column, buf, c, start, end);
    }
  });
}

}  // namespace kda::cpu

#endif  // KDA_CPU_GATE_CUMSUM_H_
