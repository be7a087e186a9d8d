// The AMX tile registers in memory, for tests on machines with AVX-512 and without them: the same
// shapes and the sums of TDPBF16PS (products of even and of odd elements apart, then together, then
// to C).
#ifndef KDA_CPU_MMA_AMX_MODEL_H_
#define KDA_CPU_MMA_AMX_MODEL_H_

#include <cstdint>

#include "cpu/mma/amx_config.h"
#include "cpu/vec/avx512.h"

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
  using V = Avx512;
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
  // The earlier and the later element of every pair.
  static V::F Low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static V::F High(__m512i pairs) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, mask));
  }
  static void Multiply(int n, int left, int right) {
    Row* const c = Tile(n);
    const Row *const a = Tile(left), *const b = Tile(right);
    for (int m = 0; m < kTileConfig.rows[n]; ++m) {
      V::F even = V::Zero(), odd = V::Zero();
      for (int k = 0; k < kTileConfig.rows[right]; ++k) {
        const __m512i x = _mm512_set1_epi32(static_cast<int>(a[m][k]));
        const __m512i y = _mm512_loadu_si512(b[k]);
        even = V::Fma(Low(x), Low(y), even);
        odd = V::Fma(High(x), High(y), odd);
      }
      const V::F sum = V::Add(_mm512_loadu_ps(c[m]), V::Add(even, odd));
      _mm512_storeu_ps(c[m], sum);
    }
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_MMA_AMX_MODEL_H_
