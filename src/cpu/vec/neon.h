// NEON, which every aarch64 has: 4 fp32 lanes, 32 registers, fused multiply-add.
#ifndef KDA_CPU_VEC_NEON_H_
#define KDA_CPU_VEC_NEON_H_

#include <arm_neon.h>

#include <cstdint>

namespace kda::cpu {

struct Neon {
  using F = float32x4_t;
  static constexpr int kLanes = 4;
  // Micro-kernel: 6 x 4 accumulators + 4 columns of B leave 4 registers for broadcasts of A.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 4;

  static F Zero() { return vdupq_n_f32(0.0f); }
  static F Set(float x) { return vdupq_n_f32(x); }
  static F Load(const float* p) { return vld1q_f32(p); }
  static void Store(float* p, F x) { vst1q_f32(p, x); }
  static F Add(F a, F b) { return vaddq_f32(a, b); }
  static F Sub(F a, F b) { return vsubq_f32(a, b); }
  static F Mul(F a, F b) { return vmulq_f32(a, b); }
  static F Div(F a, F b) { return vdivq_f32(a, b); }
  static F Reciprocal(F a) { return Div(Set(1.0f), a); }
#if defined(__clang__)
  static F Fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }   // a b + c
  static F Fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }  // c - a b
#else
  // g++ 12 takes its intrinsics for calls that may read memory: every accumulator of a loop would
  // be stored at each step.
  static F Fma(F a, F b, F c) {
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
  }
  static F Fnma(F a, F b, F c) {
    __asm__("fmls %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
  }
#endif
  // The second operand where either is NaN, or both are zero.
  static F Max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F Min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F Abs(F a) { return vabsq_f32(a); }
  static F Round(F a) { return vrndnq_f32(a); }  // to nearest even
  static F SelectLess(F a, F b, F yes, F no) {   // a < b ? yes : no
    return vbslq_f32(vcltq_f32(a, b), yes, no);
  }
  // 2^n for whole n in [-127, 127]; 0 at -127.
  static F Pow2(F n) {
    const int32x4_t e = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
  }
  // a 2^n for a whole n <= 127; 0 from n = -127 down.
  static F Scale(F a, F n) { return Mul(a, Pow2(Max(Set(-127.0f), n))); }
  static float Sum(F a) { return vaddvq_f32(a); }
  // Lane r: the Sum of row r of a 4 x 4 tile.
  static F SumEach(const float* tile) {
    return vpaddq_f32(vpaddq_f32(Load(tile), Load(tile + 4)),
                      vpaddq_f32(Load(tile + 8), Load(tile + 12)));
  }

  static F LoadBf16(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
  }
  static F LoadF16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static void StoreBf16(uint16_t* p, F x) {  // to nearest even; NaN stays NaN
    const uint32x4_t b = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t number = vceqq_f32(x, x);
    const uint32x4_t quiet = vorrq_u32(b, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(number, up, quiet), 16));
  }
  static void StoreRounded(uint16_t* p, F x) { StoreBf16(p, x); }
  static void StoreF16(uint16_t* p, F x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

  // dst[c * ldd + r] = src[r * lds + c] for a 4 x 4 tile.
  static void Transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    const F a = Load(src), b = Load(src + lds), c = Load(src + 2 * lds), d = Load(src + 3 * lds);
    const float32x4x2_t ab = vtrnq_f32(a, b), cd = vtrnq_f32(c, d);  // columns 0 2, 1 3
    for (int i = 0; i < 2; ++i) {
      Store(dst + i * ldd, vcombine_f32(vget_low_f32(ab.val[i]), vget_low_f32(cd.val[i])));
      Store(dst + (2 + i) * ldd, vcombine_f32(vget_high_f32(ab.val[i]), vget_high_f32(cd.val[i])));
    }
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_NEON_H_
