// Stage 4, output:  o[i] = scale ((q 2^G)[i] S + sum_{j <= i} Aqk[i, j] v_new[j])      [64, V]
//
// S is the state before the chunk. Both sums run in one chain of fp32 accumulators per element.
#ifndef KDA_CPU_OUTPUT_H_
#define KDA_CPU_OUTPUT_H_

#include "cpu/chunk.h"
#include "cpu/mma/tile.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

template <class V>
struct OutputBody {
  const HeadChunk& in;
  const ChunkBuffers& buf;
  ConstState s;

  template <int MR, int NV>
  void Run(int i, int column) const {
    Tile<V, MR, NV> tile;
    tile.Zero();
    tile.MultiplyAdd({buf.qh + i * int64_t{buf.ldk}, buf.ldk, 1}, s.data + column, s.ld, in.dim_k);
    const float* aqk = buf.aqk + i * kChunkRows;
    tile.MultiplyAdd({aqk, kChunkRows, 1}, buf.v_new + column, buf.ldv, i);
    tile.MultiplyAddLower({aqk + i, kChunkRows, 1}, buf.v_new + i * int64_t{buf.ldv} + column,
                          buf.ldv);
    const int size = SizeOf(in.o_dtype);
    for (int r = 0; r < MR; ++r) {
      char* row = in.o + (i + r) * in.o_stride;
      for (int n = 0; n < NV; ++n) {
        const int at = column + n * V::kLanes;
        if (at >= in.dim_v) break;
        alignas(64) float lanes[V::kLanes];
        V::Store(lanes, V::Mul(V::Set(in.scale), tile.c[r][n]));
        const int count = in.dim_v - at < V::kLanes ? in.dim_v - at : V::kLanes;
        StoreRow<V>(in.o_dtype, lanes, count, row + int64_t{at} * size);
      }
    }
  }
};

template <class V>
void Output(const HeadChunk& in, const ChunkBuffers& buf, ConstState s) {
  ForEachTile<V>(in.rows, buf.ldv, OutputBody<V>{in, buf, s});
}

}  // namespace kda::cpu

#endif  // KDA_CPU_OUTPUT_H_
