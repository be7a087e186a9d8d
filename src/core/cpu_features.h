// What the processor and the operating system offer, as one mask.
#ifndef KDA_CORE_CPU_FEATURES_H_
#define KDA_CORE_CPU_FEATURES_H_

#include <cstdint>

namespace kda::core {

// One bit each. A bit may also stand for a fact of no instruction set's own, such as an instruction
// that is there but slow: what an instruction set cannot do without, or AUTO does not take it
// without, is a mask of these (core/isa.h).
inline constexpr uint64_t kFma = 1 << 0;
inline constexpr uint64_t kF16c = 1 << 1;
inline constexpr uint64_t kAvx = 1 << 2;
inline constexpr uint64_t kAvx2 = 1 << 3;
inline constexpr uint64_t kAvx512F = 1 << 4;
inline constexpr uint64_t kAvx512Bw = 1 << 5;
inline constexpr uint64_t kAvx512Dq = 1 << 6;
inline constexpr uint64_t kAvx512Vl = 1 << 7;
inline constexpr uint64_t kAvx512Bf16 = 1 << 8;
inline constexpr uint64_t kAmxTile = 1 << 9;
inline constexpr uint64_t kAmxBf16 = 1 << 10;
// vdpbf16ps does twice the multiply-adds of an fp32 one a cycle: on AMD (measured on Zen 5: 511
// against 256 GFLOP/s); on Intel it does half of them (110 against 220).
inline constexpr uint64_t kFastBf16Dot = 1 << 11;

// Linux lends the tile registers to a process that asks; from then on it refuses signal stacks too
// small for them, so this is done for a plan that will use them (ChooseProducts). False: refused.
bool AskForTiles();

// Detected once; only what the operating system also saves.
uint64_t CpuFeatures();

// As Linux calls it in /proc/cpuinfo; nullptr: not a bit of the processor.
const char* CpuFeatureName(uint64_t bit);

}  // namespace kda::core

#endif  // KDA_CORE_CPU_FEATURES_H_
