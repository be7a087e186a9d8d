// The AMX tile registers. g++ 12 wants their numbers as literals.
#ifndef KDA_CPU_MMA_AMX_TILES_H_
#define KDA_CPU_MMA_AMX_TILES_H_

#include <immintrin.h>

#include <cstdint>

#include "cpu/mma/amx_config.h"

namespace kda::cpu {

struct AmxTiles {
  static void Configure() { _tile_loadconfig(&kTileConfig); }
  static void Release() { _tile_release(); }

  template <int N>
  static void ZeroC() {
    if constexpr (N == 0) _tile_zero(0);
    if constexpr (N == 1) _tile_zero(1);
    if constexpr (N == 2) _tile_zero(2);
    if constexpr (N == 3) _tile_zero(3);
  }
  template <int N>
  static void StoreC(void* c, int64_t stride) {
    if constexpr (N == 0) _tile_stored(0, c, stride);
    if constexpr (N == 1) _tile_stored(1, c, stride);
    if constexpr (N == 2) _tile_stored(2, c, stride);
    if constexpr (N == 3) _tile_stored(3, c, stride);
  }
  static void LoadA(const void* a, int64_t stride) { _tile_loadd(4, a, stride); }
  static void LoadHalfA(const void* a, int64_t stride) { _tile_loadd(5, a, stride); }
  static void LoadB(const void* b, int64_t stride) { _tile_loadd(6, b, stride); }
  static void LoadHalfB(const void* b, int64_t stride) { _tile_loadd(7, b, stride); }
  template <int N>
  static void Dot() {
    if constexpr (N == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (N == 1) _tile_dpbf16ps(1, 4, 6);
    if constexpr (N == 2) _tile_dpbf16ps(2, 4, 6);
    if constexpr (N == 3) _tile_dpbf16ps(3, 4, 6);
  }
  template <int N>
  static void DotHalf() {
    if constexpr (N == 0) _tile_dpbf16ps(0, 5, 7);
    if constexpr (N == 1) _tile_dpbf16ps(1, 5, 7);
    if constexpr (N == 2) _tile_dpbf16ps(2, 5, 7);
    if constexpr (N == 3) _tile_dpbf16ps(3, 5, 7);
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_MMA_AMX_TILES_H_
