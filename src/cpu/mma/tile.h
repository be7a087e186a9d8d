// The one micro-kernel: a tile of MR rows by NV vectors of C kept in registers.
//
// Every element of C is summed in one order, by increasing summation index (mma/amx.h: as the tiles
// do), whatever tile it falls into: a row's bits depend neither on the rows beside it nor on how
// many there are, which is what makes results independent of packing.
#ifndef KDA_CPU_MMA_TILE_H_
#define KDA_CPU_MMA_TILE_H_

#include <cstdint>

#include "cpu/prefetch.h"

namespace kda::cpu {

// Whether an instruction set multiplies bf16 operands (vec/avx512_bf16.h) where accuracy allows.
template <class V>
inline constexpr bool kBf16Products = false;
// Whether it does so much faster than fp32 products that operands which need more than bf16 go as
// sums of two bf16, `split` (mma/amx.h).
template <class V>
inline constexpr bool kSplitProducts = false;
// Whether its tiles are registers of their own, of 16 rows, that it must
// Enter and Leave (mma/amx.h).
template <class V>
inline constexpr bool kTileRegisters = false;

// Channels of a panel: operands of bf16 products lie in panels [K / 32, 64, 32], so that a pass
// over some channels of all rows stays in few, dense cache lines (rows of 128 channels would meet
// in an eighth of the first-level cache's sets).
inline constexpr int kPanel = 32;
inline constexpr int kPanelPairs = kPanel / 2;

// A product of bf16 operands. Pairs are 32 bits, strides in pairs. Pair s of row i of A is at
//   a + s / kPanelPairs * panel_stride + i * row_stride + s % kPanelPairs
// (of rows that are not in panels, panel_stride is kPanelPairs); B has one row of pairs per pair
// summed.
struct PairProduct {
  const float* a;
  int64_t panel_stride;
  int64_t row_stride;
  const float* b;
  int64_t ldb;
  int pairs;
};

// A left operand: element (row, s) at data[row * row_stride + s * sum_stride].
struct Left {
  const float* data;
  int64_t row_stride;
  int64_t sum_stride;
};

// Loops over a tile's rows and vectors that follow a product are unrolled by pragma: g++ 12 leaves
// some as loops, for which the tile goes through the stack (24 stores and loads of 64 bytes; 64
// prompts of 28 tokens, Zen 5: 41 to 35.5 ms without).
template <class V, int MR, int NV>
struct Tile {
  typename V::F c[MR][NV];

  void Zero() {
    for (int i = 0; i < MR; ++i) {
      for (int j = 0; j < NV; ++j) c[i][j] = V::Zero();
    }
  }

  // C += A B for s in [0, n): a points at this tile's first row, b at its first column.
  template <class Steps = NothingAhead<V>>
  void MultiplyAdd(const Left& a, const float* b, int64_t ldb, int n, Steps&& ahead = Steps()) {
    const float* pa = a.data;
    for (int s = 0; s < n; ++s, pa += a.sum_stride, b += ldb) {
      ahead.Step();
      typename V::F bv[NV];
      for (int j = 0; j < NV; ++j) bv[j] = V::Load(b + j * V::kLanes);
      for (int i = 0; i < MR; ++i) {
        const typename V::F av = V::Set(pa[i * a.row_stride]);
        for (int j = 0; j < NV; ++j) c[i][j] = V::Fma(av, bv[j], c[i][j]);
      }
    }
  }

  // C = the sum of the products, one after the other. `ahead` steps with the pairs of the first.
  template <class Steps = NothingAhead<V>>
  void Dot(const PairProduct* products, int count, Steps&& ahead = Steps()) {
    Zero();
    DotAdd(products[0], ahead);
    for (int t = 1; t < count; ++t) DotAdd(products[t], NothingAhead<V>());
  }

  // C += A B for the MR columns s = 0 .. MR - 1 of a lower triangle with diagonal: row i takes only
  // s <= i, so that nothing in a later row (a NaN, say) can reach an earlier one.
  void MultiplyAddLower(const Left& a, const float* b, int64_t ldb) {
    for (int s = 0; s < MR; ++s, b += ldb) {
      typename V::F bv[NV];
      for (int j = 0; j < NV; ++j) bv[j] = V::Load(b + j * V::kLanes);
      for (int i = s; i < MR; ++i) {
        const typename V::F av = V::Set(a.data[i * a.row_stride + s * a.sum_stride]);
        for (int j = 0; j < NV; ++j) c[i][j] = V::Fma(av, bv[j], c[i][j]);
      }
    }
  }

 private:
  template <class Steps>
  void DotAdd(const PairProduct& p, Steps&& ahead) {
    const float* b = p.b;
    for (int s = 0; s < p.pairs; ++s, b += p.ldb) {
      ahead.Step();
      const float* const a = p.a + s / kPanelPairs * p.panel_stride + s % kPanelPairs;
      typename V::F bv[NV];
      for (int j = 0; j < NV; ++j) bv[j] = V::Load(b + j * V::kLanes);
      for (int i = 0; i < MR; ++i) {
        const typename V::F av = V::SetPair(a + i * p.row_stride);
        for (int j = 0; j < NV; ++j) c[i][j] = V::Dot(av, bv[j], c[i][j]);
      }
    }
  }
};

// Covers rows [0, rows) x columns [0, cols) (cols a multiple of V::kLanes) with tiles:
// body.Run<MR, NV>(first_row, first_column). Columns outermost: a panel of B stays
// in the first-level cache while all rows pass over it.
template <class V, int MR, int NV, class Body>
void ForEachRowTile(int rows, int column, Body& body) {
  int i = 0;
  for (; i + MR <= rows; i += MR) body.template Run<MR, NV>(i, column);
  const int rest = rows - i;
  if constexpr (MR > 1) {
    if (rest != 0) {
      if (rest == 1) return body.template Run<1, NV>(i, column);
      if constexpr (MR > 2) {
        if (rest == 2) return body.template Run<2, NV>(i, column);
      }
      if constexpr (MR > 3) {
        if (rest == 3) return body.template Run<3, NV>(i, column);
      }
      if constexpr (MR > 4) {
        if (rest == 4) return body.template Run<4, NV>(i, column);
      }
      if constexpr (MR > 5) {
        if (rest == 5) return body.template Run<5, NV>(i, column);
      }
    }
  }
}

template <class V, class Body>
void ForEachTileInRegisters(int rows, int cols, Body& body) {
  constexpr int kMR = V::kTileRows, kNV = V::kTileVecs;
  static_assert(kMR <= 6 && kNV <= 4, "extend the remainder cases");
  int column = 0;
  for (; column + kNV * V::kLanes <= cols; column += kNV * V::kLanes) {
    ForEachRowTile<V, kMR, kNV>(rows, column, body);
  }
  const int rest = (cols - column) / V::kLanes;
  if constexpr (kNV > 3) {
    if (rest == 3) return ForEachRowTile<V, kMR, 3>(rows, column, body);
  }
  if constexpr (kNV > 2) {
    if (rest == 2) return ForEachRowTile<V, kMR, 2>(rows, column, body);
  }
  if (rest == 1) ForEachRowTile<V, kMR, 1>(rows, column, body);
}

// Where rows come in 16s (Amx) the last ones are computed whether they exist or not: the buffers
// have room for them, the caller's memory has not.
template <class V, class Body>
void ForEachTileOf16(int rows, int cols, Body& body) {
  for (int i = 0; i < rows; i += 16) {
    int column = 0;
    for (; column + 4 * V::kLanes <= cols; column += 4 * V::kLanes) {
      body.template Run<16, 4>(i, column);
    }
    const int rest = (cols - column) / V::kLanes;
    if (rest == 3) body.template Run<16, 3>(i, column);
    if (rest == 2) body.template Run<16, 2>(i, column);
    if (rest == 1) body.template Run<16, 1>(i, column);
  }
}

// How many of them.
template <class V>
int64_t TilesOf(int rows, int cols) {
  constexpr int kWidth = V::kTileVecs * V::kLanes;
  return int64_t{(rows + V::kTileRows - 1) / V::kTileRows} * ((cols + kWidth - 1) / kWidth);
}

template <class V, class Body>
void ForEachTile(int rows, int cols, Body body) {
  if constexpr (kTileRegisters<V>) {
    ForEachTileOf16<V>(rows, cols, body);
  } else {
    ForEachTileInRegisters<V>(rows, cols, body);
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_MMA_TILE_H_
