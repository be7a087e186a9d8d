// The AMX tile registers in plain C++, for tests on machines without them: the same shapes and the
// sums of TDPBF16PS (products of even and of odd elements apart, then together, then to C).
#ifndef KDA_CPU_MMA_AMX_MODEL_H_
#define KDA_CPU_MMA_AMX_MODEL_H_

#include <cstdint>

#include "cpu/mma/amx_config.h"

namespace kda::cpu {

struct AmxModel {
  static void Configure() {
    __builtin_memset(&Registers(), 0, sizeof(State));  // as LDTILECFG does
    Registers().configured = true;
  }
  static void Release() { Registers().configured = false; }

  template <int N>
  static void ZeroC() {
    __builtin_memset(Tile(N), 0, sizeof(TileData));
  }
  template <int N>
  static void LoadC(const void* c, int64_t stride) {
    Load(N, c, stride);
  }
  template <int N>
  static void StoreC(void* c, int64_t stride) {
    for (int r = 0; r < kTileConfig.rows[N]; ++r) {
      __builtin_memcpy(static_cast<char*>(c) + r * stride, Tile(N)[r], kTileConfig.row_bytes[N]);
    }
  }
  static void LoadA(const void* a, int64_t stride) { Load(4, a, stride); }
  static void LoadHalfA(const void* a, int64_t stride) { Load(5, a, stride); }
  static void LoadB(const void* b, int64_t stride) { Load(6, b, stride); }
  static void LoadHalfB(const void* b, int64_t stride) { Load(7, b, stride); }
  template <int N>
  static void Dot() {
    Multiply(N, 4, 6);
  }
  template <int N>
  static void DotHalf() {
    Multiply(N, 5, 7);
  }

 private:
  using TileData = uint32_t[16][16];
  struct State {
    bool configured;
    TileData tile[8];
  };
  static State& Registers() {
    static thread_local State state;
    return state;
  }
  using Row = uint32_t[16];
  // Without a configuration every use of a tile is a fault.
  static Row* Tile(int n) {
    if (!Registers().configured) __builtin_trap();
    return Registers().tile[n];
  }
  static void Load(int n, const void* p, int64_t stride) {
    Row* const tile = Tile(n);
    for (int r = 0; r < kTileConfig.rows[n]; ++r) {
      __builtin_memcpy(tile[r], static_cast<const char*>(p) + r * stride, kTileConfig.row_bytes[n]);
    }
  }
  static float Float(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }
  static float Low(uint32_t pair) { return Float(pair << 16); }
  static float High(uint32_t pair) { return Float(pair & 0xffff0000u); }
  static void Multiply(int n, int left, int right) {
    Row* const c = Tile(n);
    const Row *const a = Tile(left), *const b = Tile(right);
    for (int m = 0; m < kTileConfig.rows[n]; ++m) {
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < kTileConfig.rows[right]; ++k) {
        for (int j = 0; j < 16; ++j) {
          even[j] = __builtin_fmaf(Low(a[m][k]), Low(b[k][j]), even[j]);
          odd[j] = __builtin_fmaf(High(a[m][k]), High(b[k][j]), odd[j]);
        }
      }
      for (int j = 0; j < 16; ++j) {
        const float sum = Float(c[m][j]) + (even[j] + odd[j]);
        __builtin_memcpy(&c[m][j], &sum, sizeof(sum));
      }
    }
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_MMA_AMX_MODEL_H_
