// AVX-512 with BF16: Avx512, and products of bf16 operands summed in fp32.
//
// The operands of such a product are pairs: one 32-bit element holds two bf16 that are neighbours
// along the summed dimension, the earlier one in the low half.
#ifndef KDA_CPU_VEC_AVX512_BF16_H_
#define KDA_CPU_VEC_AVX512_BF16_H_

#include "cpu/mma/tile.h"
#include "cpu/vec/avx512.h"

namespace kda::cpu {

alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                         21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                         11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

struct Avx512Bf16 : Avx512 {
  // c + a.low b.low + a.high b.high in every lane; subnormal operands count as 0.
  static F Dot(F a, F b, F c) { return _mm512_dpbf16_ps(c, Bf16(a), Bf16(b)); }
  static F SetPair(const float* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
  }
  // Lane i: `low`[i], `high`[i].
  static F Pairs(F low, F high) {
    const __m512i both = Int(_mm512_cvtne2ps_pbh(high, low));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), both));
  }
  // 32 elements in a row: `first`, then `second`.
  static F Row(F first, F second) {
    return _mm512_castsi512_ps(Int(_mm512_cvtne2ps_pbh(second, first)));
  }
  // x rounded to bf16, half away from zero: x - Top(x) is at most 2^-8 |x|.
  static F Top(F x) {
    const __m512i half = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(half, mask));
  }
  // StoreBf16 of what arithmetic leaves: no subnormals.
  static void StoreRounded(uint16_t* p, F x) {
    const __m256bh half = _mm512_cvtneps_pbh(x);
    __builtin_memcpy(p, &half, sizeof(half));
  }

 private:
  static __m512bh Bf16(F x) {
    __m512bh y;
    __builtin_memcpy(&y, &x, sizeof(y));
    return y;
  }
  static __m512i Int(__m512bh x) {
    __m512i y;
    __builtin_memcpy(&y, &x, sizeof(y));
    return y;
  }
};

template <>
inline constexpr bool kBf16Products<Avx512Bf16> = true;

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_AVX512_BF16_H_
