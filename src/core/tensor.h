// Checks of one tensor description.
#ifndef KDA_CORE_TENSOR_H_
#define KDA_CORE_TENSOR_H_

#include <cstdint>

#include "kda/kda.h"

namespace kda::core {

inline constexpr unsigned kF32Only = 1u << KDA_F32;
inline constexpr unsigned kStateDtypes = 1u << KDA_F32 | 1u << KDA_BF16;
inline constexpr unsigned kFloatDtypes = kStateDtypes | 1u << KDA_F16;

// One dimension as it must be: `size`, which came from `of`; nullptr: any size >= 0 is taken.
struct Axis {
  const char* label;  // "T"
  int64_t size;
  const char* of;  // "q"
};

struct TensorRule {
  const char* name;
  unsigned dtypes;  // 1 << kda_dtype of each one taken
  int32_t rank;
  Axis axes[KDA_MAX_RANK];
  int32_t dense;  // trailing dimensions that must be dense
  bool output;    // no two elements may share memory
};

// Checks `in` against the rule and sets *out to it with every stride explicit.
kda_status CheckTensor(const TensorRule& rule, const kda_tensor& in, kda_tensor* out,
                       kda_error* error);

int64_t SizeOfDtype(int32_t dtype);  // bytes

// Bytes from the first to past the last element of a checked tensor; 0 where it has none.
int64_t ExtentBytes(const kda_tensor& tensor);

bool SameLayout(const kda_tensor& a, const kda_tensor& b);

}  // namespace kda::core

#endif  // KDA_CORE_TENSOR_H_
