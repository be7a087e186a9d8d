// AVX2 + FMA + F16C: 8 fp32 lanes, 16 registers.
#ifndef KDA_CPU_VEC_AVX2_H_
#define KDA_CPU_VEC_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace kda::cpu {

struct Avx2 {
  using F = __m256;
  static constexpr int kLanes = 8;
  // Micro-kernel: 6 x 2 accumulators + 2 columns of B + 1 broadcast of A = 15 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 2;

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Reciprocal(F a) { return Div(Set(1.0f), a); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
  static F Fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  // The second operand where either is NaN.
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Abs(F a) { return _mm256_andnot_ps(Set(-0.0f), a); }
  static F Round(F a) {  // to nearest even
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F SelectLess(F a, F b, F yes, F no) {  // a < b ? yes : no
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  // 2^n for whole n in [-127, 127]; 0 at -127.
  static F Pow2(F n) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
  }
  // a 2^n for a whole n <= 127; 0 from n = -127 down.
  static F Scale(F a, F n) { return Mul(a, Pow2(Max(Set(-127.0f), n))); }
  static float Sum(F a) {  // within 128-bit lanes, then of these
    a = _mm256_hadd_ps(a, a);
    a = _mm256_hadd_ps(a, a);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
  }
  // Lane r: the Sum of row r of an 8 x 8 tile.
  static F SumEach(const float* tile) {
    F a[4];
    for (int i = 0; i < 4; ++i) a[i] = _mm256_hadd_ps(Load(tile + i * 16), Load(tile + i * 16 + 8));
    const F low = _mm256_hadd_ps(a[0], a[1]), high = _mm256_hadd_ps(a[2], a[3]);
    return Add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
  }

  static F LoadBf16(const uint16_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  static F LoadF16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void StoreBf16(uint16_t* p, F x) {  // to nearest even; NaN stays NaN
    const __m256i b = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(b, _mm256_set1_epi32(0x400000));
    const __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static void StoreRounded(uint16_t* p, F x) { StoreBf16(p, x); }
  static void StoreF16(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // dst[c * ldd + r] = src[r * lds + c] for an 8 x 8 tile.
  static void Transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    F a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = Load(src + i * lds);
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      for (int h = 0; h < 2; ++h) {
        const __m256d lo = _mm256_castps_pd(b[i + h]), hi = _mm256_castps_pd(b[i + h + 2]);
        a[i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo, hi));
        a[i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo, hi));
      }
    }
    for (int c = 0; c < 4; ++c) {
      Store(dst + c * ldd, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
      Store(dst + (4 + c) * ldd, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
    }
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_AVX2_H_
