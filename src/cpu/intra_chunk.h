// Stage 2, intra_chunk: what the tokens of one chunk mean to each other.
//
//   Aqk[i, j] = sum_c q[i, c] k[j, c] e^(G[i, c] - G[j, c])               j <= i    [64, 64]
//   L[i, j]   = beta[i] sum_c k[i, c] k[j, c] e^(G[i, c] - G[j, c])       j <  i    [64, 64]
//
// (G: inclusive cumulative gate; `scale` is applied to the output instead.) fp32 throughout.
//
// With safe_gate (IntraChunkProducts): in sub-blocks of 16 rows. Off the diagonal the exponent is
// split at the start m of the row block, G[i] - G[j] = (G[i] - m) + (m - G[j]); both parts are <= 0
// for any gate, so that both factors are <= 1 and the sums are plain matrix products. Where a
// factor underflows, the product is below 2^-126 too. On the diagonal, row j's key is decayed step
// by step down the block: k[j] decay[j+1] .. decay[i]. Nothing looks at a later row.
//
// Without (IntraChunkElementwise): the decay tensor e^(G[i] - G[j]), element by element.
#ifndef KDA_CPU_INTRA_CHUNK_H_
#define KDA_CPU_INTRA_CHUNK_H_

#include "cpu/chunk.h"
#include "cpu/gate_cumsum.h"
#include "cpu/mma/tile.h"
#include "cpu/vec/math.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

// x <- x / sqrt(sum x^2 + 1e-6). Rows above 2^40 are scaled by 2^-70 first: their squares would
// overflow, and theirs after scaling are within fp32 on either side.
template <class V>
void L2Normalize(float* x, int padded) {
  typename V::F top = V::Zero();
  for (int c = 0; c < padded; c += V::kLanes) top = V::Max(V::Abs(V::Load(x + c)), top);
  alignas(64) float lanes[V::kLanes];
  V::Store(lanes, top);
  float largest = 0.0f;
  for (float lane : lanes) largest = lane > largest ? lane : largest;
  const bool large = largest > 0x1p40f;
  const typename V::F shrink = V::Set(large ? 0x1p-70f : 1.0f);
  typename V::F sum = V::Zero();
  for (int c = 0; c < padded; c += V::kLanes) {
    const typename V::F s = V::Mul(V::Load(x + c), shrink);
    sum = V::Fma(s, s, sum);
  }
  const float total = V::Sum(sum) + (large ? 0.0f : 1.0e-6f);
  const typename V::F norm = V::Set(__builtin_sqrtf(total));
  for (int c = 0; c < padded; c += V::kLanes) {
    V::Store(x + c, V::Div(V::Mul(V::Load(x + c), shrink), norm));
  }
}

template <class V>
void LoadKeyRow(const HeadChunk& in, const Rows& rows, int i, float* dst) {
  LoadRow<V>(rows.dtype, rows.data + i * rows.stride, in.dim_k, dst);
  if (in.qk_l2norm) L2Normalize<V>(dst, PadTo16<V>(in.dim_k));
}

// beta of tokens [first, first + count) to beta[0, count), which has room for a multiple of 16.
template <class V>
void LoadBeta(const HeadChunk& in, int first, int count, float* beta) {
  const char* const data = in.beta.data + first * in.beta.stride;
  for (int i = 0; i < count; ++i) {
    beta[i] = LoadScalar<V>(in.beta.dtype, data + i * in.beta.stride);
  }
  if (!in.beta_logits) return;
  for (int i = count; i % kDimAlign != 0; ++i) beta[i] = 0.0f;
  for (int i = 0; i < count; i += V::kLanes) V::Store(beta + i, Sigmoid<V>(V::Load(beta + i)));
}

// q, k, beta, and qh, kh relative to the start of each row's 16-row block.
template <class V>
void LoadQueriesAndKeys(const HeadChunk& in, const ChunkBuffers& buf) {
  LoadBeta<V>(in, 0, in.rows, buf.beta);
  for (int i = 0; i < in.rows; ++i) {
    const int64_t at = static_cast<int64_t>(i) * buf.ldk;
    LoadKeyRow<V>(in, in.q, i, buf.q + at);
    LoadKeyRow<V>(in, in.k, i, buf.k + at);
    for (int c = 0; c < buf.ldk; c += V::kLanes) {
      const typename V::F prefix = V::Load(buf.prefix + at + c);
      V::Store(buf.qh + at + c, V::Mul(V::Load(buf.q + at + c), prefix));
      V::Store(buf.kh + at + c, V::Mul(V::Load(buf.k + at + c), prefix));
    }
  }
}

// qh, kh from relative to the block's start to relative to the chunk's: times the earlier blocks'
// decays.
template <class V>
void ExtendToChunkStart(const HeadChunk& in, const ChunkBuffers& buf) {
  for (int c = 0; c < buf.ldk; c += V::kLanes) {
    typename V::F carry = V::Set(1.0f);
    for (int start = kBlockRows; start < in.rows; start += kBlockRows) {
      const int64_t previous = start / kBlockRows - 1;
      carry = V::Mul(carry, V::Load(buf.block_decay + previous * buf.ldk + c));
      const int end = BlockEnd(start, in.rows);
      for (int i = start; i < end; ++i) {
        const int64_t at = static_cast<int64_t>(i) * buf.ldk + c;
        V::Store(buf.qh + at, V::Mul(V::Load(buf.qh + at), carry));
        V::Store(buf.kh + at, V::Mul(V::Load(buf.kh + at), carry));
      }
    }
  }
}

// The two dot products of a pair of rows end as vectors of partial sums; this stores their sums.
template <class V>
void StorePair(const ChunkBuffers& buf, int i, int j, typename V::F qk, typename V::F kk) {
  buf.aqk[i * kChunkRows + j] = V::Sum(qk);
  if (j < i) buf.l[i * kChunkRows + j] = buf.beta[i] * V::Sum(kk);
}

// The block on the diagonal, row by row: the keys before a row, each decayed to the one above it,
// take the row's decay in passing.
template <class V, bool kAsBf16>
class DiagonalRows {
 public:
  // Rows [start, end) of the chunk.
  DiagonalRows(const ChunkBuffers& buf, int start, int end) : buf_(buf), start_(start), end_(end) {}

  void Run() {
    for (int i = start_; i < end_; ++i) {
      int c = 0;
      for (; c + kWide * V::kLanes <= buf_.ldk; c += kWide * V::kLanes) AddChannels<kWide>(i, c);
      for (; c < buf_.ldk; c += V::kLanes) AddChannels<1>(i, c);
      const typename V::F beta = V::Set(buf_.beta[i]);
      for (int j = 0; start_ + j <= i; j += V::kLanes) {
        const int64_t at = int64_t{i} * kChunkRows + start_ + j;
        V::Store(buf_.aqk + at, V::SumEach(qk_[j]));
        V::Store(buf_.l + at, V::Mul(beta, V::SumEach(kk_[j])));
      }
    }
  }

 private:
  // Vectors of a row's channels at a time: decay, query and key in registers, read once per row.
  static constexpr int kWide = 8;

  template <int N>
  void AddChannels(int i, int c) {
    using F = typename V::F;
    F decay[N], q[N], k[N];
    F sum = Begun(qk_[i - start_], c);
    float* const own = key_[i - start_] + c;
    for (int n = 0; n < N; ++n) {
      const int64_t at = At<V>(buf_, i, c + n * V::kLanes);
      decay[n] = V::Load(buf_.decay + at);
      q[n] = LoadKept<V, kAsBf16>(buf_.q, at);
      k[n] = LoadKept<V, kAsBf16>(buf_.k, at);
      sum = V::Fma(q[n], k[n], sum);
      V::Store(own + n * V::kLanes, k[n]);
    }
    V::Store(qk_[i - start_], sum);
    for (int j = 0; j < i - start_; ++j) {
      float* const key = key_[j] + c;
      F sum_q = Begun(qk_[j], c), sum_k = Begun(kk_[j], c);
      for (int n = 0; n < N; ++n) {
        const F kj = V::Mul(V::Load(key + n * V::kLanes), decay[n]);
        V::Store(key + n * V::kLanes, kj);
        sum_q = V::Fma(q[n], kj, sum_q);
        sum_k = V::Fma(k[n], kj, sum_k);
      }
      V::Store(qk_[j], sum_q);
      V::Store(kk_[j], sum_k);
    }
  }
  // Sums as they are before channel c.
  static typename V::F Begun(const float* sum, int c) { return c == 0 ? V::Zero() : V::Load(sum); }

  const ChunkBuffers& buf_;
  const int start_, end_;
  alignas(64) float key_[kBlockRows][kMaxDimPadded];
  // Of the row at hand, by key: the lanes of its sums. Those of later keys stay 0.
  alignas(64) float qk_[kBlockRows][V::kLanes] = {};
  alignas(64) float kk_[kBlockRows][V::kLanes] = {};
};

template <class V>
void DiagonalBlock(const HeadChunk& in, const ChunkBuffers& buf, int start, int end) {
  if (KeptAsBf16<V>(in)) {
    DiagonalRows<V, true>(buf, start, end).Run();
  } else {
    DiagonalRows<V, false>(buf, start, end).Run();
  }
}

// kt[:, 0 .. start) is moved from the start of the previous row block to that of the block at
// `start`, and the previous block's own keys, decayed to its end, join it.
template <class V>
void AppendKeys(const ChunkBuffers& buf, int start) {
  const int block = start - kBlockRows;
  const int64_t ld = buf.ldk;
  const float* carry = buf.block_decay + (block / kBlockRows) * ld;
  for (int c = 0; c < buf.ldk; c += V::kLanes) {
    for (int r = 0; block > 0 && r < V::kLanes; ++r) {
      float* row = buf.kt + int64_t{c + r} * kChunkRows;
      const typename V::F factor = V::Set(carry[c + r]);
      for (int j = 0; j < block; j += V::kLanes) {
        V::Store(row + j, V::Mul(V::Load(row + j), factor));
      }
    }
    alignas(64) float tile[kBlockRows * V::kLanes];
    typename V::F suffix = V::Set(1.0f);
    for (int r = kBlockRows - 1; r >= 0; --r) {
      const int64_t at = (block + r) * ld + c;
      V::Store(tile + r * V::kLanes, V::Mul(V::Load(buf.k + at), suffix));
      suffix = V::Mul(suffix, V::Load(buf.decay + at));
    }
    for (int r = 0; r < kBlockRows; r += V::kLanes) {
      V::Transpose(tile + r * V::kLanes, V::kLanes, buf.kt + int64_t{c} * kChunkRows + block + r,
                   kChunkRows);
    }
  }
}

// One row block of Aqk or L left of the diagonal: rows of `left` times kt[:, 0 .. start).
template <class V>
struct StripBody {
  const float* left;  // [rows, K]
  int64_t ldk;
  int dim_k;
  const float* kt;
  float* out;         // row i at out + i * 64
  const float* beta;  // nullptr: 1

  template <int MR, int NV>
  void Run(int i, int column) const {
    Tile<V, MR, NV> tile;
    tile.Zero();
    tile.MultiplyAdd({left + i * ldk, ldk, 1}, kt + column, kChunkRows, dim_k);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const typename V::F factor = V::Set(beta == nullptr ? 1.0f : beta[i + r]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) {
        V::Store(out + (i + r) * kChunkRows + column + j * V::kLanes, V::Mul(factor, tile.c[r][j]));
      }
    }
  }
};

template <class V>
void IntraChunkProducts(const HeadChunk& in, const ChunkBuffers& buf) {
  LoadQueriesAndKeys<V>(in, buf);
  const int64_t ld = buf.ldk;
  for (int start = 0; start < in.rows; start += kBlockRows) {
    const int end = BlockEnd(start, in.rows);
    for (int i = start; !in.asked_for && i < end; ++i) PrefetchRow(in.v, i, in.dim_v);
    DiagonalBlock<V>(in, buf, start, end);
    if (start == 0) continue;
    AppendKeys<V>(buf, start);
    StripBody<V> strip = {buf.qh + start * ld,          ld,     in.dim_k, buf.kt,
                          buf.aqk + start * kChunkRows, nullptr};
    ForEachTile<V>(end - start, start, strip);
    strip.left = buf.kh + start * ld;
    strip.out = buf.l + start * kChunkRows;
    strip.beta = buf.beta + start;
    ForEachTile<V>(end - start, start, strip);
  }
  ExtendToChunkStart<V>(in, buf);
}

template <class V>
void IntraChunkElementwise(const HeadChunk& in, const ChunkBuffers& buf) {
  using F = typename V::F;
  LoadQueriesAndKeys<V>(in, buf);
  ExtendToChunkStart<V>(in, buf);
  const int64_t ld = buf.ldk;
  for (int j = 0; j < in.rows; ++j) {
    F qk[kChunkRows], kk[kChunkRows];
    for (int i = j; i < in.rows; ++i) qk[i] = kk[i] = V::Zero();
    for (int c = 0; c < buf.ldk; c += V::kLanes) {
      const F kj = V::Load(buf.k + j * ld + c);
      // G[i] - G[j] summed token by token, so that no two sums are subtracted, and compensated, so
      // that 63 strong gates lose no more than one.
      F exponent = V::Zero(), lost = V::Zero();
      for (int i = j; i < in.rows; ++i) {
        const int64_t at = i * ld + c;
        if (i > j) AddCompensated<V>(V::Load(buf.g + at), &exponent, &lost);
        const F decayed = V::Mul(kj, Exp<V>(exponent, lost));
        qk[i] = V::Fma(V::Load(buf.q + at), decayed, qk[i]);
        kk[i] = V::Fma(V::Load(buf.k + at), decayed, kk[i]);
      }
    }
    for (int i = j; i < in.rows; ++i) StorePair<V>(buf, i, j, qk[i], kk[i]);
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_INTRA_CHUNK_H_
