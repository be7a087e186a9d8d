#include "core/tensor.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "core/plan.h"

namespace kda::core {
namespace {

kda_status CheckDtype(const TensorRule& rule, int32_t dtype, kda_error* error) {
  if (dtype >= 0 && dtype < 32 && (rule.dtypes >> dtype & 1) != 0) return KDA_OK;
  char allowed[32] = "";
  int length = 0;
  for (int32_t i = 1; kda_dtype_name(i) != nullptr; ++i) {
    if ((rule.dtypes >> i & 1) == 0) continue;
    length += std::snprintf(allowed + length, sizeof allowed - static_cast<size_t>(length), "%s%s",
                            length > 0 ? ", " : "", kda_dtype_name(i));
  }
  const char* name = kda_dtype_name(dtype);
  return Fail(error, KDA_ERROR_DTYPE, rule.name, "dtype is %d (%s), must be one of %s", dtype,
              name != nullptr ? name : "unknown", allowed);
}

kda_status CheckShape(const TensorRule& rule, const kda_tensor& in, kda_error* error) {
  if (in.rank != rule.rank) {
    return Fail(error, KDA_ERROR_SHAPE, rule.name, "rank is %d%s, must be %d", in.rank,
                in.rank == 0 ? " (absent)" : "", rule.rank);
  }
  for (int32_t i = 0; i < rule.rank; ++i) {
    const Axis& axis = rule.axes[i];
    const int64_t size = in.shape[i];
    if (size < 0) {
      return Fail(error, KDA_ERROR_SHAPE, rule.name,
                  "dimension %d (%s) is %" PRId64 ", must not be negative", i, axis.label, size);
    }
    if (axis.of != nullptr && size != axis.size) {
      return Fail(error, KDA_ERROR_SHAPE, rule.name,
                  "dimension %d (%s) is %" PRId64 ", must be %" PRId64 ", as in %s", i, axis.label,
                  size, axis.size, axis.of);
    }
  }
  return KDA_OK;
}

bool IsDense(const kda_tensor& t) {  // as the header has it: no stride given
  return std::all_of(t.stride, t.stride + t.rank, [](int64_t stride) { return stride == 0; });
}

kda_status Overflow(const TensorRule& rule, const kda_tensor& t, kda_error* error) {
  char text[KDA_MAX_RANK][64];
  for (int32_t i = 0; i < KDA_MAX_RANK; ++i) {
    text[i][0] = '\0';
    if (i < t.rank) {
      std::snprintf(text[i], sizeof text[i], "%s%" PRId64 " (stride %" PRId64 ")",
                    i > 0 ? ", " : "", t.shape[i], t.stride[i]);
    }
  }
  return Fail(error, KDA_ERROR_OVERFLOW, rule.name, "[%s%s%s%s] does not fit in 2^63 - 1 bytes",
              text[0], text[1], text[2], text[3]);
}

// Row-major strides. False: one does not fit. A dimension of size 0 counts as 1.
bool FillDense(kda_tensor* t) {
  int64_t stride = 1;
  for (int32_t i = t->rank - 1; i >= 0; --i) {
    t->stride[i] = stride;
    if (__builtin_mul_overflow(stride, std::max<int64_t>(t->shape[i], 1), &stride)) return false;
  }
  return true;
}

bool ExtentFits(const kda_tensor& t) {
  int64_t last = 0;
  for (int32_t i = 0; i < t.rank; ++i) {
    int64_t step;
    if (__builtin_mul_overflow(std::max<int64_t>(t.shape[i] - 1, 0), t.stride[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return false;
    }
  }
  int64_t bytes;
  return !__builtin_add_overflow(last, 1, &last) &&
         !__builtin_mul_overflow(last, SizeOfDtype(t.dtype), &bytes);
}

// The strides of the last `dense` dimensions are those of a dense tensor. A dimension of one
// element is never stepped along; it is given the dense stride all the same.
kda_status CheckContiguous(const TensorRule& rule, kda_tensor* t, kda_error* error) {
  int64_t expected = 1;
  for (int32_t i = t->rank - 1; i >= t->rank - rule.dense; --i) {
    if (t->shape[i] <= 1) t->stride[i] = expected;
    if (t->stride[i] != expected) {
      return Fail(error, KDA_ERROR_STRIDE, rule.name,
                  "stride of dimension %d (%s) is %" PRId64 ", must be %" PRId64 " (contiguous)", i,
                  rule.axes[i].label, t->stride[i], expected);
    }
    expected *= t->shape[i];
  }
  return KDA_OK;
}

// Each dimension steps past all that lies below it, so that no two elements share memory.
kda_status CheckNested(const TensorRule& rule, const kda_tensor& t, kda_error* error) {
  const auto steps_less = [&t](int32_t a, int32_t b) {
    return std::make_pair(t.stride[a], t.shape[a]) < std::make_pair(t.stride[b], t.shape[b]);
  };
  int32_t order[KDA_MAX_RANK] = {0, 1, 2,
                                 3};  // by stride; g++ 12 misreads std::sort of 4 as larger
  for (int32_t k = 1; k < t.rank; ++k) {
    for (int32_t j = k; j > 0 && steps_less(order[j], order[j - 1]); --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  int64_t below = 1;  // elements spanned by the dimensions seen
  for (int32_t k = 0; k < t.rank; ++k) {
    const int32_t i = order[k];
    if (t.shape[i] <= 1) continue;
    if (t.stride[i] < below) {
      return Fail(error, KDA_ERROR_STRIDE, rule.name,
                  "stride of dimension %d (%s) is %" PRId64 ", must be at least %" PRId64
                  ": the elements of an output must not share memory",
                  i, rule.axes[i].label, t.stride[i], below);
    }
    below += (t.shape[i] - 1) * t.stride[i];
  }
  return KDA_OK;
}

bool IsEmpty(const kda_tensor& t) {
  return std::any_of(t.shape, t.shape + t.rank, [](int64_t size) { return size == 0; });
}

}  // namespace

kda_status CheckTensor(const TensorRule& rule, const kda_tensor& in, kda_tensor* out,
                       kda_error* error) {
  kda_status status = CheckShape(rule, in, error);
  if (status == KDA_OK) status = CheckDtype(rule, in.dtype, error);
  if (status != KDA_OK) return status;
  kda_tensor t = in;
  for (int32_t i = t.rank; i < KDA_MAX_RANK; ++i) t.shape[i] = t.stride[i] = 0;
  if (IsDense(t)) {
    if (!FillDense(&t)) return Overflow(rule, t, error);
  } else {
    for (int32_t i = 0; i < t.rank; ++i) {
      if (t.stride[i] < 0) {
        return Fail(error, KDA_ERROR_STRIDE, rule.name,
                    "stride of dimension %d (%s) is %" PRId64 ", must not be negative", i,
                    rule.axes[i].label, t.stride[i]);
      }
      if (t.shape[i] <= 1) t.stride[i] = 0;  // never stepped along, however far that would be
    }
  }
  if (!ExtentFits(t)) return Overflow(rule, t, error);
  if (!IsEmpty(t)) {
    status = CheckContiguous(rule, &t, error);
    if (status == KDA_OK && rule.output) status = CheckNested(rule, t, error);
    if (status != KDA_OK) return status;
  }
  *out = t;
  return KDA_OK;
}

int64_t SizeOfDtype(int32_t dtype) {
  switch (dtype) {
    case KDA_F32:
    case KDA_I32:
      return 4;
    case KDA_I64:
      return 8;
    default:
      return 2;
  }
}

int64_t ExtentBytes(const kda_tensor& t) {
  if (t.rank == 0 || IsEmpty(t)) return 0;
  int64_t last = 0;
  for (int32_t i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.stride[i];
  return (last + 1) * SizeOfDtype(t.dtype);
}

bool SameLayout(const kda_tensor& a, const kda_tensor& b) {
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int32_t i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
    if (a.shape[i] > 1 && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

}  // namespace kda::core
