#include "core/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif
#endif

namespace kda::core {

#if defined(__x86_64__)

namespace {

enum Register { kEax, kEbx, kEcx, kEdx };

// The registers that the operating system must save, as bits of XCR0.
constexpr uint64_t kYmm = 0x6;   // XMM, YMM
constexpr uint64_t kZmm = 0xe6;  // and the mask registers, both halves of ZMM
constexpr uint64_t kTiles = 0x600e6;

struct Row {
  uint64_t feature;
  const char* name;
  uint32_t leaf, subleaf;  // of cpuid
  Register reg;
  int bit;
  uint64_t saved;
};

constexpr Row kRows[] = {
    {kFma, "fma", 1, 0, kEcx, 12, kYmm},
    {kF16c, "f16c", 1, 0, kEcx, 29, kYmm},
    {kAvx, "avx", 1, 0, kEcx, 28, kYmm},
    {kAvx2, "avx2", 7, 0, kEbx, 5, kYmm},
    {kAvx512F, "avx512f", 7, 0, kEbx, 16, kZmm},
    {kAvx512Bw, "avx512bw", 7, 0, kEbx, 30, kZmm},
    {kAvx512Dq, "avx512dq", 7, 0, kEbx, 17, kZmm},
    {kAvx512Vl, "avx512vl", 7, 0, kEbx, 31, kZmm},
    {kAvx512Bf16, "avx512_bf16", 7, 1, kEax, 5, kZmm},
    {kAmxTile, "amx_tile", 7, 0, kEdx, 24, kTiles},
    {kAmxBf16, "amx_bf16", 7, 0, kEdx, 22, kTiles},
};

// 0 for a leaf the processor does not have.
uint32_t Cpuid(uint32_t leaf, uint32_t subleaf, Register reg) {
  uint32_t words[4] = {};
  if (__get_cpuid_count(leaf, subleaf, &words[0], &words[1], &words[2], &words[3]) == 0) return 0;
  return words[reg];
}

// 0 where the operating system does not say.
uint64_t Xcr0() {
  constexpr int kOsxsave = 27;
  if ((Cpuid(1, 0, kEcx) >> kOsxsave & 1) == 0) return 0;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

bool OfAmd() {
  // "AuthenticAMD"
  return Cpuid(0, 0, kEbx) == 0x68747541 && Cpuid(0, 0, kEdx) == 0x69746e65 &&
         Cpuid(0, 0, kEcx) == 0x444d4163;
}

uint64_t Detect() {
  const uint64_t saved = Xcr0();
  uint64_t features = 0;
  for (const Row& row : kRows) {
    const bool has = (Cpuid(row.leaf, row.subleaf, row.reg) >> row.bit & 1) != 0;
    if (has && (saved & row.saved) == row.saved) features |= row.feature;
  }
  if ((features & kAvx512Bf16) != 0 && OfAmd()) features |= kFastBf16Dot;
  return features;
}

}  // namespace

bool AskForTiles() {
#if defined(__linux__)
  constexpr int kArchReqXcompPerm = 0x1023, kTileData = 18;
  const int saved = errno;
  const bool granted = syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
  errno = saved;
  return granted;
#else
  return false;
#endif
}

const char* CpuFeatureName(uint64_t bit) {
  for (const Row& row : kRows) {
    if (row.feature == bit) return row.name;
  }
  return nullptr;
}

#else

namespace {
uint64_t Detect() { return 0; }
}  // namespace

bool AskForTiles() { return false; }

const char* CpuFeatureName(uint64_t) { return nullptr; }

#endif

uint64_t CpuFeatures() {
  static const uint64_t features = Detect();
  return features;
}

}  // namespace kda::core
