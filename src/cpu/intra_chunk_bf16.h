// Stage 2, intra_chunk, where products of bf16 operands are fast:
//
//   Aqk[i, j] = sum_c q[i, c] k[j, c] e^(G[i, c] - G[j, c])               j <= i    [64, 64]
//   L[i, j]   = beta[i] sum_c k[i, c] k[j, c] e^(G[i, c] - G[j, c])       j <  i    [64, 64]
//
// The safe-gate form of intra_chunk.h: off the diagonal of 16-row blocks its operands are rounded
// to bf16, with the exponent split at the start m of the row block, (G[i] - m) and (m - G[j]),
// both <= 0 for any gate; on it keys are decayed token by token in fp32 (DiagonalRows). Keys are
// taken as sums of two bf16, high and low: where keys are alike and gates slow, v_new of
// neighbouring tokens are large and cancel, but not with errors that differ from key to key.
// (Errors of a row's own key or query are one for the whole row.) Nothing looks at a later row.
#ifndef KDA_CPU_INTRA_CHUNK_BF16_H_
#define KDA_CPU_INTRA_CHUNK_BF16_H_

#include "cpu/chunk.h"
#include "cpu/intra_chunk.h"
#include "cpu/mma/tile.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

// A panel's channels of a row: two vectors.
template <class V>
struct Wide {
  typename V::F x[2];

  static Wide Load(const float* p) { return {{V::Load(p), V::Load(p + V::kLanes)}}; }
  template <bool kAsBf16>
  static Wide LoadKept(const float* p, int64_t at) {
    return {
        {kda::cpu::LoadKept<V, kAsBf16>(p, at), kda::cpu::LoadKept<V, kAsBf16>(p, at + V::kLanes)}};
  }
  static Wide Set(float x) { return {{V::Set(x), V::Set(x)}}; }
  void Store(float* p) const {
    V::Store(p, x[0]);
    V::Store(p + V::kLanes, x[1]);
  }
  void StoreRow(float* p) const { V::Store(p, V::Row(x[0], x[1])); }
  Wide operator*(const Wide& y) const { return {{V::Mul(x[0], y.x[0]), V::Mul(x[1], y.x[1])}}; }
  // As a sum of two bf16, good to 2^-17.
  Wide High() const { return {{V::Top(x[0]), V::Top(x[1])}}; }
  Wide Low() const { return {{V::Sub(x[0], V::Top(x[0])), V::Sub(x[1], V::Top(x[1]))}}; }
};

// The rows of 16 keys' channels at hand, bf16, become columns of `keys` [K / 2, 64].
template <class V>
struct KeyBlock {
  alignas(64) float rows[kBlockRows * V::kLanes];

  void StoreTransposed(float* keys) const { V::Transpose(rows, V::kLanes, keys, kChunkRows); }
};

// One panel of the chunk, `c` its first channel.
template <class V>
class OperandPanel {
 public:
  using W = Wide<V>;

  OperandPanel(const HeadChunk& in, const ChunkBuffers& buf, int c)
      : in_(in), buf_(buf), c_(c), as_bf16_(KeptAsBf16<V>(in)) {}

  // Queries and keys, decayed from the start of their block and from that of the chunk. Copies them
  // into buf where they are not normalised: those are there.
  void StoreRows() {
    W carry = W::Set(1.0f);
    for (int start = 0; start < in_.rows; start += kBlockRows) {
      W decay = W::Set(1.0f);
      const int end = BlockEnd(start, in_.rows);
      for (int i = start; i < end; ++i) {
        decay = decay * W::Load(buf_.decay + At(i));
        if (as_bf16_) {
          Copy(in_.q, i, buf_.q);
          Copy(in_.k, i, buf_.k);
        }
        const W q = Kept(buf_.q, i), k = Kept(buf_.k, i);
        (q * decay).StoreRow(buf_.qk_block + HalfAt(i));
        (k * decay).StoreRow(buf_.qk_block + HalfAt(kChunkRows + i));
        const W chunk = decay * carry;
        (q * chunk).StoreRow(buf_.qk_chunk + HalfAt(i));
        (k * chunk).StoreRow(buf_.qk_chunk + HalfAt(kChunkRows + i));
      }
      carry = carry * BlockDecay(start);
    }
  }

  // Keys decayed to the start of every later block.
  void StoreEarlierKeys() {
    for (int start = 0; start + kBlockRows < in_.rows; start += kBlockRows) {
      alignas(64) float ended[kBlockRows * kPanel];  // decayed to the end of their block
      W suffix = W::Set(1.0f);
      for (int r = kBlockRows - 1; r >= 0; --r) {
        (Kept(buf_.k, start + r) * suffix).Store(ended + r * kPanel);
        suffix = suffix * W::Load(buf_.decay + At(start + r));
      }
      W between = W::Set(1.0f);
      for (int later = start + kBlockRows; later < in_.rows; later += kBlockRows) {
        KeyBlock<V> high, low;
        for (int r = 0; r < kBlockRows; ++r) {
          const W key = W::Load(ended + r * kPanel) * between;
          key.High().StoreRow(high.rows + r * V::kLanes);
          key.Low().StoreRow(low.rows + r * V::kLanes);
        }
        const int64_t at = KeysAt(later / kBlockRows, start);
        high.StoreTransposed(buf_.keys + at);
        low.StoreTransposed(buf_.keys_low + at);
        between = between * BlockDecay(later);
      }
    }
  }

 private:
  void Copy(const Rows& rows, int i, float* kept) const {
    __builtin_memcpy(reinterpret_cast<uint16_t*>(kept) + At(i),
                     rows.data + i * rows.stride + 2 * c_, 2 * kPanel);
  }
  W Kept(const float* p, int i) const {
    return as_bf16_ ? W::template LoadKept<true>(p, At(i)) : W::template LoadKept<false>(p, At(i));
  }
  int64_t At(int i) const { return kda::cpu::At<V>(buf_, i, c_); }
  // Of queries, from kChunkRows on of keys, in bf16.
  int64_t HalfAt(int i) const { return c_ * int64_t{kChunkRows} + i * kPanelPairs; }
  W BlockDecay(int start) const {
    return W::Load(buf_.block_decay + int64_t{start / kBlockRows} * buf_.ldk + c_);
  }
  int64_t KeysAt(int row_block, int column) const {
    return (int64_t{row_block} * buf_.ldk / 2 + c_ / 2) * kChunkRows + column;
  }

  const HeadChunk& in_;
  const ChunkBuffers& buf_;
  const int c_;
  const bool as_bf16_;  // q and k in buf
};

// x as a sum of two bf16, good to 2^-17, to element `at` of the two [64, 64] halves of `split`.
template <class V>
void StoreSplit(float* split, int at, typename V::F x) {
  auto* const high = reinterpret_cast<uint16_t*>(split) + at;
  const typename V::F top = V::Top(x);
  V::StoreRounded(high, top);
  V::StoreRounded(high + kChunkRows * kChunkRows, V::Sub(x, top));
}

// One row block of Aqk or L: rows of `left` times keys.
template <class V>
struct DotStripBody {
  const float* left;  // rows of qk_block
  int64_t ldk;
  const float* keys;  // [K / 2, 64] pairs
  const float* keys_low;
  float* out;         // row i at out + i * 64
  float* split;       // [2, 64, 64] bf16, row i at split + i * 32
  const float* beta;  // nullptr: 1

  template <int MR, int NV>
  void Run(int i, int column) const {
    Tile<V, MR, NV> tile;
    const PairProduct with_keys = {left + i * kPanelPairs,
                                   2 * kChunkRows * kPanelPairs,
                                   kPanelPairs,
                                   keys + column,
                                   kChunkRows,
                                   static_cast<int>(ldk / 2)};
    PairProduct products[] = {with_keys, with_keys};
    products[1].b = keys_low + column;
    tile.Dot(products, 2);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const typename V::F factor = V::Set(beta == nullptr ? 1.0f : beta[i + r]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) {
        const int at = (i + r) * kChunkRows + column + j * V::kLanes;
        const typename V::F x = V::Mul(factor, tile.c[r][j]);
        V::Store(out + at, x);
        if constexpr (kSplitProducts<V>) StoreSplit<V>(split, at, x);
      }
    }
  }
};

// Row i of a [2, 64, 64] split operand, where there are such.
template <class V>
float* SplitRow(float* split, int i) {
  return kSplitProducts<V> ? split + i * kRowPairs : nullptr;
}

template <class V>
void LoadToPanels(const HeadChunk& in, const Rows& rows, int i, const ChunkBuffers& buf,
                  float* panels) {
  LoadKeyRow<V>(in, rows, i, buf.row);
  for (int c = 0; c < buf.ldk; c += V::kLanes)
    V::Store(panels + At<V>(buf, i, c), V::Load(buf.row + c));
}

template <class V>
void IntraChunkBf16(const HeadChunk& in, const ChunkBuffers& buf) {
  LoadBeta<V>(in, 0, in.rows, buf.beta);
  for (int i = 0; in.qk_l2norm && i < in.rows; ++i) {
    LoadToPanels<V>(in, in.q, i, buf, buf.q);
    LoadToPanels<V>(in, in.k, i, buf, buf.k);
  }
  for (int c = 0; c < buf.ldk; c += kPanel) {
    OperandPanel<V> panel(in, buf, c);
    panel.StoreRows();
    panel.StoreEarlierKeys();
  }
  const int64_t ld = buf.ldk;
  for (int start = 0; start < in.rows; start += kBlockRows) {
    const int end = BlockEnd(start, in.rows);
    for (int i = start; !in.asked_for && i < end; ++i) PrefetchRow(in.v, i, in.dim_v);
    const int64_t keys = (start / kBlockRows) * ld / 2 * kChunkRows;
    DotStripBody<V> strip = {buf.qk_block + start * kPanelPairs,
                             ld,
                             buf.keys + keys,
                             buf.keys_low + keys,
                             buf.aqk + start * kChunkRows,
                             SplitRow<V>(buf.aqk_split, start),
                             nullptr};
    ForEachTile<V>(end - start, start, strip);
    strip.left = buf.qk_block + (kChunkRows + start) * kPanelPairs;
    strip.out = buf.l + start * kChunkRows;
    strip.split = SplitRow<V>(buf.l_split, start);
    strip.beta = buf.beta + start;
    ForEachTile<V>(end - start, start, strip);
    DiagonalBlock<V>(in, buf, start, end);
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_INTRA_CHUNK_BF16_H_
