// The AMX tile registers in plain C++, for tests on machines without them: the same shapes and the
// sums of TDPBF16PS (products of even and of odd elements apart, then together, then to C).
#ifndef KDA_CPU_MMA_AMX_MODEL_H_
#define KDA_CPU_MMA_AMX_MODEL_H_

#include <cstdint>

namespace kda::cpu {

struct AmxModel {
  static void Configure() { Registers().configured = true; }
  static void Release() { Registers().configured = false; }

  template <int N>
  static void ZeroC() {
    __builtin_memset(Registers().tile[N], 0, sizeof(TileData));
  }
  template <int N>
  static void LoadC(const void* c, int64_t stride) {
    Load(Registers().tile[N], c, stride, 16, 64);
  }
  template <int N>
  static void StoreC(void* c, int64_t stride) {
    for (int r = 0; r < 16; ++r) {
      __builtin_memcpy(static_cast<char*>(c) + r * stride, Registers().tile[N][r], 64);
    }
  }
  static void LoadA(const void* a, int64_t stride) { Load(Registers().tile[4], a, stride, 16, 64); }
  static void LoadHalfA(const void* a, int64_t stride) {
    Load(Registers().tile[5], a, stride, 16, 32);
  }
  static void LoadB(const void* b, int64_t stride) { Load(Registers().tile[6], b, stride, 16, 64); }
  static void LoadHalfB(const void* b, int64_t stride) {
    Load(Registers().tile[7], b, stride, 8, 64);
  }
  template <int N>
  static void Dot() {
    Multiply(Registers().tile[N], Registers().tile[4], Registers().tile[6], 16);
  }
  template <int N>
  static void DotHalf() {
    Multiply(Registers().tile[N], Registers().tile[5], Registers().tile[7], 8);
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
  static void Load(TileData& tile, const void* p, int64_t stride, int rows, int bytes) {
    for (int r = 0; r < rows; ++r) {
      __builtin_memcpy(tile[r], static_cast<const char*>(p) + r * stride,
                       static_cast<unsigned>(bytes));
    }
  }
  static float Float(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }
  static float Low(uint32_t pair) { return Float(pair << 16); }
  static float High(uint32_t pair) { return Float(pair & 0xffff0000u); }
  static void Multiply(TileData& c, const TileData& a, const TileData& b, int pairs) {
    if (!Registers().configured) __builtin_trap();
    for (int m = 0; m < 16; ++m) {
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < pairs; ++k) {
        for (int n = 0; n < 16; ++n) {
          even[n] = __builtin_fmaf(Low(a[m][k]), Low(b[k][n]), even[n]);
          odd[n] = __builtin_fmaf(High(a[m][k]), High(b[k][n]), odd[n]);
        }
      }
      for (int n = 0; n < 16; ++n) {
        const float sum = Float(c[m][n]) + (even[n] + odd[n]);
        __builtin_memcpy(&c[m][n], &sum, sizeof(sum));
      }
    }
  }
};

}  // namespace kda::cpu

#endif  // KDA_CPU_MMA_AMX_MODEL_H_
