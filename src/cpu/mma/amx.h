// AMX: the micro-kernel on tile registers, 16 rows by up to 4 x 16 columns of C at a time.
//
// Tiles: 0 - 3 C, 4 A, 5 A with half the summands, 6 B, 7 B with half the summands; 16 rows of 64
// bytes, the halves for sums of 16 where 32 would take in rows that must not count. C lies in
// memory between products (stack, first-level cache), so that what surrounds a product is the same
// code as for registers. One product of 16 x 16 x 32 takes 16 cycles and its B tile 8 of loads: A
// is used four times and B once (Intel Sapphire Rapids, by its documentation; not measured).
#ifndef KDA_CPU_MMA_AMX_H_
#define KDA_CPU_MMA_AMX_H_

#include <cstdint>
#include <type_traits>

#include "cpu/mma/tile.h"
#include "cpu/vec/avx512_bf16.h"

namespace kda::cpu {

// Tiles: the tile registers (mma/amx_tiles.h) or a plain model of them (mma/amx_model.h).
template <class Tiles>
struct Amx : Avx512Bf16 {
  static constexpr int kTileRows = 16;
  static constexpr int kTileVecs = 4;
  // Around any use: sets the tiles' shapes, and gives the registers back.
  static void Enter() { Tiles::Configure(); }
  static void Leave() { Tiles::Release(); }
};

template <class Tiles>
inline constexpr bool kBf16Products<Amx<Tiles>> = true;
template <class Tiles>
inline constexpr bool kSplitProducts<Amx<Tiles>> = true;
template <class Tiles>
inline constexpr bool kTileRegisters<Amx<Tiles>> = true;

// Vectors of what the tiles leave in memory.
template <class Tiles>
struct AmxVectors : Avx512Bf16 {};

template <class Tiles, int MR, int NV>
struct Tile<Amx<Tiles>, MR, NV> {
  using V = Amx<Tiles>;
  static_assert(MR == 16 && NV <= 4 && kPanelPairs == 16);
  alignas(64) typename V::F c[MR][NV];

  template <class Steps = NothingAhead<V>>
  void Dot(const PairProduct* products, int count, Steps&& ahead = Steps()) {
    // g++ 12 does not know that a tile is loaded from memory: what it is to hold must be there now.
    __asm__ volatile("" ::: "memory");
    ForEachColumn([&](auto n) { Tiles::template ZeroC<n>(); });
    for (int t = 0; t < count; ++t) {
      const PairProduct& p = products[t];
      int s = 0;
      for (; s + kPanelPairs <= p.pairs; s += kPanelPairs) {
        Tiles::LoadA(p.a + s / kPanelPairs * p.panel_stride, p.row_stride * 4);
        ForEachColumn([&](auto n) {
          Tiles::LoadB(p.b + s * p.ldb + n * V::kLanes, p.ldb * 4);
          Tiles::template Dot<n>();
          for (int step = 0; t == 0 && step < kPanelPairs / NV; ++step) ahead.Step();
        });
      }
      if (s == p.pairs) continue;
      Tiles::LoadHalfA(p.a + s / kPanelPairs * p.panel_stride, p.row_stride * 4);
      ForEachColumn([&](auto n) {
        Tiles::LoadHalfB(p.b + s * p.ldb + n * V::kLanes, p.ldb * 4);
        Tiles::template DotHalf<n>();
      });
    }
    ForEachColumn([&](auto n) { Tiles::template StoreC<n>(Column(n), sizeof(c[0])); });
  }

  // In fp32, four rows of C in registers at a time.
  void MultiplyAddLower(const Left& a, const float* b, int64_t ldb) {
    constexpr int kRows = 4;
    for (int top = 0; top < MR; top += kRows) {
      Tile<AmxVectors<Tiles>, kRows, NV> part;
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < NV; ++j) part.c[i][j] = c[top + i][j];
      }
      const float* const left = a.data + top * a.row_stride;
      part.MultiplyAdd({left, a.row_stride, a.sum_stride}, b, ldb, top);
      part.MultiplyAddLower({left + top * a.sum_stride, a.row_stride, a.sum_stride}, b + top * ldb,
                            ldb);
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < NV; ++j) c[top + i][j] = part.c[i][j];
      }
    }
  }

 private:
  char* Column(int n) { return reinterpret_cast<char*>(c) + n * sizeof(typename V::F); }
  template <int N>
  using Index = std::integral_constant<int, N>;
  template <class Body>
  static void ForEachColumn(const Body& body) {
    body(Index<0>());
    if constexpr (NV > 1) body(Index<1>());
    if constexpr (NV > 2) body(Index<2>());
    if constexpr (NV > 3) body(Index<3>());
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_MMA_AMX_H_
