// Stage 4, output:  o[i] = scale ((q e^G)[i] S + sum_{j <= i} Aqk[i, j] v_new[j])      [64, V]
//
// S is the state before the chunk. Both sums run in one chain of fp32 accumulators per element.
#ifndef KDA_CPU_OUTPUT_H_
#define KDA_CPU_OUTPUT_H_

#include "cpu/chunk.h"
#include "cpu/inter_chunk.h"
#include "cpu/mma/tile.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

template <class V>
struct OutputBody {
  const HeadChunk& in;
  const ChunkBuffers& buf;
  StateRead<V> read;
  Ahead<V>* ahead;

  template <int MR, int NV>
  void Run(int i, int column) const {
    if (column >= in.dim_v) return;  // the padding of a small dim_v can fill whole tiles
    Tile<V, MR, NV> tile;
    const float* aqk = buf.aqk + i * kChunkRows;
    if constexpr (kSplitProducts<V>) {
      const SplitProduct within = TimesValues(buf, buf.aqk_split, i, column, i);
      const PairProduct products[] = {read.Product(i, column), within.parts[0], within.parts[1],
                                      within.parts[2]};
      tile.Dot(products, 4, *ahead);
    } else {
      read.Multiply(i, column, &tile, *ahead);
      tile.MultiplyAdd({aqk, kChunkRows, 1}, buf.v_new + column, buf.ldv, i);
    }
    tile.MultiplyAddLower({aqk + i, kChunkRows, 1}, buf.v_new + i * int64_t{buf.ldv} + column,
                          buf.ldv);
    const typename V::F scale = V::Set(in.scale);
    constexpr int kWidth = NV * V::kLanes;
    const int count = in.dim_v - column < kWidth ? in.dim_v - column : kWidth;
    const int rows = MR < in.rows - i ? MR : in.rows - i;
    if (in.o_dtype == DType::kBF16 && count == kWidth) {  // as StoreRow, without a row in memory
      for (int r = 0; r < rows; ++r) {
        auto* const o = reinterpret_cast<uint16_t*>(in.o + (i + r) * in.o_stride) + column;
        for (int n = 0; n < NV; ++n)
          V::StoreRounded(o + n * V::kLanes, V::Mul(scale, tile.c[r][n]));
      }
      return;
    }
    for (int r = 0; r < rows; ++r) {
      alignas(64) float row[kWidth];
      for (int n = 0; n < NV; ++n) V::Store(row + n * V::kLanes, V::Mul(scale, tile.c[r][n]));
      char* const o = in.o + (i + r) * in.o_stride + int64_t{column} * SizeOf(in.o_dtype);
      StoreRow<V>(in.o_dtype, row, count, o);
    }
  }
};

template <class V>
void Output(const HeadChunk& in, const ChunkBuffers& buf, ConstState s) {
  Ahead<V> ahead;
  if (in.next != nullptr) {
    ahead.Add(in.next->g, in.dim_k, in.next->rows);
    ahead.Add(in.next->q, in.dim_k, in.next->rows);
  }
  ahead.Spread(TilesOf<V>(in.rows, buf.ldv) * (kBf16Products<V> ? buf.ldk / 2 : in.dim_k));
  ForEachTile<V>(in.rows, buf.ldv, OutputBody<V>{in, buf, ReadByQueries<V>(in, buf, s), &ahead});
}

}  // namespace kda::cpu

#endif  // KDA_CPU_OUTPUT_H_
