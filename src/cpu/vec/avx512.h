// AVX-512 (F, BW, DQ, VL): 16 fp32 lanes, 32 registers.
#ifndef KDA_CPU_VEC_AVX512_H_
#define KDA_CPU_VEC_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace kda::cpu {

struct Avx512 {
  using F = __m512;
  static constexpr int kLanes = 16;
  // Micro-kernel: 6 x 4 accumulators + 4 columns of B leave 4 registers; A comes in as embedded
  // broadcasts.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 4;

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  // Within 1 ulp for 2^-126 < |a| < 2^126; a division takes 16 cycles on Intel.
  static F Reciprocal(F a) {
    const F x = _mm512_rcp14_ps(a);
    return Fma(x, Fnma(a, x, Set(1.0f)), x);
  }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
  static F Fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  // The second operand where either is NaN.
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Abs(F a) { return _mm512_abs_ps(a); }
  static F Round(F a) {  // to nearest even
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F SelectLess(F a, F b, F yes, F no) {  // a < b ? yes : no
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  // 2^n for whole n in [-127, 127]; 0 at -127.
  static F Pow2(F n) {
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
  }
  static F Scale(F a, F n) { return _mm512_scalef_ps(a, n); }  // a 2^n, n whole
  static float Sum(F a) {  // within 128-bit lanes, then of these
    a = Add(a, _mm512_permute_ps(a, 0x4e));
    a = Add(a, _mm512_permute_ps(a, 0xb1));
    const F pairs = AddLanes(a, a);
    return _mm512_cvtss_f32(AddLanes(pairs, pairs));
  }
  // Lane r: the Sum of row r of a 16 x 16 tile, with a quarter of the shuffles.
  static F SumEach(const float* tile) {
    F a[16];
    for (int i = 0; i < 16; ++i) a[i] = Load(tile + i * 16);
    for (int i = 0; i < 8; ++i)
      a[i] = Add(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                 _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 4; ++i) {
      const __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
      a[i] = Add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                 _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    // Each 128-bit lane of a[i] has a part of the sums of rows 4 i .. 4 i + 3.
    const F low = AddLanes(a[0], a[1]), high = AddLanes(a[2], a[3]);
    return AddLanes(low, high);
  }

  static F LoadBf16(const uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static F LoadF16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void StoreBf16(uint16_t* p, F x) {  // to nearest even; NaN stays NaN
    const __m512i b = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(b, _mm512_set1_epi32(0x400000));
    const __m512i r = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
  }
  static void StoreRounded(uint16_t* p, F x) { StoreBf16(p, x); }
  static void StoreF16(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // dst[c * ldd + r] = src[r * lds + c] for a 16 x 16 tile.
  static void Transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    F a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = Load(src + i * lds);
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      for (int h = 0; h < 2; ++h) {
        const __m512d lo = _mm512_castps_pd(b[i + h]), hi = _mm512_castps_pd(b[i + h + 2]);
        a[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
        a[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
      }
    }
    // a[4 g + c] holds column c of each 128-bit lane for rows 4 g .. 4 g + 3.
    for (int c = 0; c < 4; ++c) {
      const F r0 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
      const F r1 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
      const F r2 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
      const F r3 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
      Store(dst + c * ldd, _mm512_shuffle_f32x4(r0, r1, 0x88));
      Store(dst + (4 + c) * ldd, _mm512_shuffle_f32x4(r2, r3, 0x88));
      Store(dst + (8 + c) * ldd, _mm512_shuffle_f32x4(r0, r1, 0xdd));
      Store(dst + (12 + c) * ldd, _mm512_shuffle_f32x4(r2, r3, 0xdd));
    }
  }

 private:
  // 128-bit lanes a0 + a1, a2 + a3, b0 + b1, b2 + b3.
  static F AddLanes(F a, F b) {
    return Add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_AVX512_H_
