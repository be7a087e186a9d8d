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

// One activated gate vector; e^-200 is 0 in fp32: what is below need not be told apart, and sums of
// what is left are finite.
template <class V, Gate G>
typename V::F ActivateGate(const GateParams& p, typename V::F g, typename V::F bias) {
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

  typename V::F At(int i) const {
    const typename V::F x = LoadPart<V, D>(in_.g.data + i * in_.g.stride, c_, in_.dim_k);
    const typename V::F g = ActivateGate<V, G>(in_.gate, x, bias_);
    if (c_ + V::kLanes <= in_.dim_k) return g;
    alignas(64) float lanes[V::kLanes];
    V::Store(lanes, g);
    for (int c = in_.dim_k > c_ ? in_.dim_k - c_ : 0; c < V::kLanes; ++c) lanes[c] = 0.0f;
    return V::Load(lanes);
  }

 private:
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

// Asks for channels [c, c + 64 bytes) of row i: rows of one head lie H * K elements apart, which the
// hardware's own prefetching does not follow.
inline void PrefetchPart(const Rows& rows, int i, int c) {
  __builtin_prefetch(rows.data + i * rows.stride + c * SizeOf(rows.dtype), 0, 2);
}
inline void PrefetchRow(const Rows& rows, int i, int dim) {
  for (int b = 0; b < dim * SizeOf(rows.dtype); b += 64) PrefetchPart(rows, i, b / SizeOf(rows.dtype));
}

template <class V>
void GateCumsum(const HeadChunk& in, const ChunkBuffers& buf) {
  using F = typename V::F;
  const int64_t ld = buf.ldk;
  ForEachGateColumn<V>(in, [&](const auto& column, int c) {
    F prefix = V::Zero(), sum = V::Zero(), lost = V::Zero();
    for (int i = 0; i < in.rows; ++i) {
      PrefetchPart(in.q, i, c);  // for intra_chunk
      PrefetchPart(in.k, i, c);
      const int64_t at = At<V>(buf, i, c);
      const bool first = i % kBlockRows == 0, last = i % kBlockRows == kBlockRows - 1;
      const F g = column.At(i), decay = Exp<V>(g);
      prefix = first ? decay : V::Mul(prefix, decay);
      if (first) {
        sum = g;
        lost = V::Zero();
      } else {
        AddCompensated<V>(g, &sum, &lost);
      }
      V::Store(buf.g + at, g);
      V::Store(buf.decay + at, decay);
      if constexpr (!kBf16Products<V>) V::Store(buf.prefix + at, prefix);
      if (!last && i != in.rows - 1) continue;
      const int64_t block = i / kBlockRows * ld + c;
      V::Store(buf.block_log + block, sum);
      V::Store(buf.block_lost + block, lost);
      V::Store(buf.block_decay + block, Exp<V>(sum, lost));
    }
  });
}

}  // namespace kda::cpu

#endif  // KDA_CPU_GATE_CUMSUM_H_
