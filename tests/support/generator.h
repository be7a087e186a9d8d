// The portable generator of the test inputs: the same bits in C++ and Python.
#ifndef KDA_TESTS_SUPPORT_GENERATOR_H_
#define KDA_TESTS_SUPPORT_GENERATOR_H_

#include <cstdint>

#include "reference/dtypes.h"

namespace kda::test {

// One stream per tensor.
enum Tag : uint64_t {
  kTagQ = 1,
  kTagK = 2,
  kTagV = 3,
  kTagG = 4,
  kTagBeta = 5,
  kTagState = 6,
  kTagALog = 7,
  kTagDtBias = 8,
  kTagProbe = 0
};

inline uint64_t Mix(uint64_t x) {
  x += UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 31);
}

// Uniform in [0, 1).
inline double Uniform(uint64_t seed, uint64_t tag, uint64_t i) {
  return static_cast<double>(Mix(Mix(seed * 1000003 + tag) + i) >> 11) * 0x1p-53;
}

// Nearly normal: twelve uniforms less 6, added in order.
inline double Normal(uint64_t seed, uint64_t tag, uint64_t i) {
  double sum = 0;
  for (uint64_t j = 0; j < 12; ++j) sum += Uniform(seed, tag, 12 * i + j);
  return sum - 6;
}

inline double F32(double x) { return reference::Round(KDA_F32, x); }
inline double Bf16(double x) { return reference::Round(KDA_BF16, x); }

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_GENERATOR_H_
