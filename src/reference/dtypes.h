// Elements of the stored dtypes to and from fp64, for the reference; the kernels have their own.
#ifndef KDA_REFERENCE_DTYPES_H_
#define KDA_REFERENCE_DTYPES_H_

#include <cstdint>

#include "kda/kda.h"

namespace kda::reference {

// Bytes of one element of F32, BF16 or F16.
int64_t SizeOf(int32_t dtype);

// Element `index` of `data`. Exact for every dtype.
double Load(int32_t dtype, const void* data, int64_t index);

// fp64 -> fp32 -> dtype, each step to nearest even. Past the largest number of fp16: infinity.
void Store(int32_t dtype, void* data, int64_t index, double value);

// `value` as it would be read back after Store.
double Round(int32_t dtype, double value);

}  // namespace kda::reference

#endif  // KDA_REFERENCE_DTYPES_H_
