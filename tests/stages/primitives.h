// The vector layer's functions over arrays, one table per instruction set, for vec_test.cc. The
// files that fill a table are compiled for their instruction set and include no std headers.
#ifndef KDA_TESTS_STAGES_PRIMITIVES_H_
#define KDA_TESTS_STAGES_PRIMITIVES_H_

#include <cstdint>

namespace kda::cpu {

// What a vector type with products of bf16 operands has besides: each over 16 lanes, a pair of bf16
// as the bits of a float.
struct Bf16Primitives {
  void (*dot)(const float* a, const float* b, const float* c, float* y);
  void (*set_pair)(const float* p, float* y);
  void (*pairs)(const float* low, const float* high, float* y);
  void (*row)(const float* first, const float* second, float* y);
  void (*top)(const float* x, float* y);
  void (*store_rounded)(const float* x, uint16_t* y);
};

struct Primitives {
  int lanes;
  // Over n floats, n a multiple of 16.
  void (*exp)(const float* x, float* y, int n);
  void (*exp_split)(const float* x, float* hi, float* lo, int n);
  void (*sigmoid)(const float* x, float* y, int n);
  void (*softplus_times_pow2)(const float* x, float exponent, float* y, int n);
  void (*l2_normalize)(float* x, int n);
  // Rows of any length; dtype as kda_dtype.
  void (*load_row)(int dtype, const char* src, int n, float* dst);
  void (*store_row)(int dtype, const float* src, int n, char* dst);
  // A lanes x lanes tile.
  void (*transpose)(const float* src, int64_t lds, float* dst, int64_t ldd);
  void (*sum_each)(const float* tile, float* sums);
  float (*sum)(const float* lanes);
  const Bf16Primitives* bf16;  // nullptr: it has none
};

// nullptr: it has the vector layer of another one.
const Primitives* PrimitivesFor(const char* isa);

}  // namespace kda::cpu

#endif  // KDA_TESTS_STAGES_PRIMITIVES_H_
