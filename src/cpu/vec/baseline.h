// Any x86-64 (SSE2): 4 fp32 lanes, 16 registers, no fused multiply-add.
#ifndef KDA_CPU_VEC_BASELINE_H_
#define KDA_CPU_VEC_BASELINE_H_

#include <emmintrin.h>

#include <cstdint>

namespace kda::cpu {

struct Baseline {
  using F = __m128;
  static constexpr int kLanes = 4;
  // Micro-kernel: 4 x 2 accumulators + 2 columns of B + broadcast + product = 12 registers.
  static constexpr int kTileRows = 4;
  static constexpr int kTileVecs = 2;

  static F Zero() { return _mm_setzero_ps(); }
  static F Set(float x) { return _mm_set1_ps(x); }
  static F Load(const float* p) { return _mm_loadu_ps(p); }
  static void Store(float* p, F x) { _mm_storeu_ps(p, x); }
  static F Add(F a, F b) { return _mm_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm_div_ps(a, b); }
  static F Reciprocal(F a) { return Div(Set(1.0f), a); }
  static F Fma(F a, F b, F c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }   // a b + c
  static F Fnma(F a, F b, F c) { return _mm_sub_ps(c, _mm_mul_ps(a, b)); }  // c - a b
  // The second operand where either is NaN.
  static F Max(F a, F b) { return _mm_max_ps(a, b); }
  static F Min(F a, F b) { return _mm_min_ps(a, b); }
  static F Abs(F a) { return _mm_andnot_ps(Set(-0.0f), a); }
  // To nearest even, for |a| < 2^31; the callers clamp first.
  static F Round(F a) { return _mm_cvtepi32_ps(_mm_cvtps_epi32(a)); }
  static F SelectLess(F a, F b, F yes, F no) {  // a < b ? yes : no
    const F mask = _mm_cmplt_ps(a, b);
    return _mm_or_ps(_mm_and_ps(mask, yes), _mm_andnot_ps(mask, no));
  }
  // 2^n for whole n in [-127, 127]; 0 at -127.
  static F Pow2(F n) {
    const __m128i e = _mm_add_epi32(_mm_cvtps_epi32(n), _mm_set1_epi32(127));
    return _mm_castsi128_ps(_mm_slli_epi32(e, 23));
  }
  // a 2^n for a whole n <= 127; 0 from n = -127 down.
  static F Scale(F a, F n) { return Mul(a, Pow2(Max(Set(-127.0f), n))); }
  static float Sum(F a) {
    F s = _mm_add_ps(a, _mm_movehl_ps(a, a));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
  }
  // Lane r: the Sum of row r of a 4 x 4 tile.
  static F SumEach(const float* tile) {
    F a = Load(tile), b = Load(tile + 4), c = Load(tile + 8), d = Load(tile + 12);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    return Add(Add(a, c), Add(b, d));
  }

  static F LoadBf16(const uint16_t* p) {
    const __m128i h = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), h));
  }
  static F LoadF16(const uint16_t* p) {
    // Exponent rebias by one multiplication by 2^112: exact for normal and subnormal halves.
    const __m128i h = _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                                         _mm_setzero_si128());
    const __m128i magnitude = _mm_and_si128(h, _mm_set1_epi32(0x7fff));
    const __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
    // Subnormal halves as whole numbers times 2^-24, which no flush-to-zero mode touches.
    const F subnormal = _mm_mul_ps(_mm_cvtepi32_ps(magnitude), Set(5.9604644775390625e-8f));
    const __m128i rebias = _mm_add_epi32(_mm_slli_epi32(magnitude, 13), _mm_set1_epi32(112 << 23));
    const __m128i special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
    const __m128i normal = _mm_add_epi32(rebias, _mm_and_si128(special, _mm_set1_epi32(112 << 23)));
    const __m128i small = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x0400));
    const __m128i bits = _mm_or_si128(_mm_and_si128(small, _mm_castps_si128(subnormal)),
                                      _mm_andnot_si128(small, normal));
    return _mm_castsi128_ps(_mm_or_si128(bits, sign));
  }
  static void StoreBf16(uint16_t* p, F x) {  // to nearest even; NaN stays NaN
    const __m128i b = _mm_castps_si128(x);
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(b, 16), _mm_set1_epi32(1));
    const __m128i up = _mm_add_epi32(b, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
    const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
    const __m128i quiet = _mm_or_si128(b, _mm_set1_epi32(0x400000));
    const __m128i r = _mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, up));
    // Sign-extended halves pack without saturating.
    const __m128i half = _mm_srai_epi32(r, 16);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(half, half));
  }
  static void StoreRounded(uint16_t* p, F x) { StoreBf16(p, x); }
  static void StoreF16(uint16_t* p, F x) {
    float lane[4];
    Store(lane, x);
    for (int i = 0; i < 4; ++i) p[i] = HalfOf(lane[i]);
  }

  // dst[c * ldd + r] = src[r * lds + c] for a 4 x 4 tile.
  static void Transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    F a = Load(src), b = Load(src + lds), c = Load(src + 2 * lds), d = Load(src + 3 * lds);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    Store(dst, a);
    Store(dst + ldd, b);
    Store(dst + 2 * ldd, c);
    Store(dst + 3 * ldd, d);
  }

 private:
  static uint16_t HalfOf(float value) {  // to nearest even, in whole-number arithmetic
    const uint32_t bits =
        static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(value))));
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
      return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);
    const int exponent = static_cast<int>(magnitude >> 23);
    const int shift = exponent < 113 ? 126 - exponent : 13;
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t half = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
    if (rest > middle || (rest == middle && (half & 1u))) ++half;
    // A normal half carries its hidden bit, 0x400, into the exponent field.
    if (exponent >= 113) half += static_cast<uint32_t>(exponent - 113) << 10;
    return static_cast<uint16_t>(sign | half);
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_BASELINE_H_
