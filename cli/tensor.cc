#include "cli/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cli/error.h"

namespace kda::cli {

std::shared_ptr<char> Allocate(int64_t bytes) {
  const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Failed("no memory: {} bytes asked for", bytes);
  return std::shared_ptr<char>(static_cast<char*>(memory), [size](char* p) { munmap(p, size); });
}

int64_t Tensor::Elements() const {
  int64_t count = 1;
  for (int i = 0; i < layout.rank; ++i) count *= layout.shape[i];
  return count;
}

int64_t Tensor::Bytes() const { return Elements() * DtypeSize(layout.dtype); }

int64_t DtypeSize(int32_t dtype) {
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

const char* SafetensorsDtype(int32_t dtype) {
  switch (dtype) {
    case KDA_F32:
      return "F32";
    case KDA_BF16:
      return "BF16";
    case KDA_F16:
      return "F16";
    case KDA_I32:
      return "I32";
    default:
      return "I64";
  }
}

kda_tensor DenseLayout(kda_dtype dtype, const std::vector<int64_t>& shape) {
  kda_tensor layout = {};
  layout.dtype = dtype;
  layout.rank = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (int i = layout.rank - 1; i >= 0; --i) {
    layout.shape[i] = shape[i];
    layout.stride[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return layout;
}

Tensor NewTensor(const kda_tensor& dense_layout) {
  Tensor tensor;
  tensor.layout = dense_layout;
  tensor.owner = Allocate(tensor.Bytes());
  tensor.data = tensor.owner.get();
  return tensor;
}

Tensor NewTensor(kda_dtype dtype, const std::vector<int64_t>& shape) {
  return NewTensor(DenseLayout(dtype, shape));
}

Tensor Slice(const Tensor& tensor, int dimension, int64_t start, int64_t count) {
  Tensor slice = tensor;
  if (tensor.layout.rank == 0) return slice;
  slice.layout.shape[dimension] = count;
  if (!tensor.present()) return slice;  // a description without memory
  slice.data += start * tensor.layout.stride[dimension] * DtypeSize(tensor.layout.dtype);
  return slice;
}

void FillNan(const Tensor& dense) {
  if (dense.present()) std::memset(dense.data, 0xFF, static_cast<size_t>(dense.Bytes()));
}

uint16_t ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float FromBf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

uint16_t ToF16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);
  if (magnitude < 6.103515625e-05f) {  // subnormal: units of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(
                                            std::ldexp(static_cast<double>(magnitude), 24))));
  }
  bits &= 0x7FFFFFFF;
  bits += 0xFFF + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((bits - (112u << 23)) >> 13));
}

float FromF16(uint16_t value) {
  const int exponent = (value >> 10) & 31;
  const int mantissa = value & 1023;
  float magnitude;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (value & 0x8000) != 0 ? -magnitude : magnitude;
}

double LoadElement(const char* data, int32_t dtype, int64_t offset) {
  const char* at = data + offset * DtypeSize(dtype);
  uint16_t half;
  switch (dtype) {
    case KDA_F32: {
      float x;
      std::memcpy(&x, at, 4);
      return x;
    }
    case KDA_I32: {
      int32_t x;
      std::memcpy(&x, at, 4);
      return x;
    }
    case KDA_I64: {
      int64_t x;
      std::memcpy(&x, at, 8);
      return static_cast<double>(x);
    }
    default:
      std::memcpy(&half, at, 2);
      return dtype == KDA_BF16 ? FromBf16(half) : FromF16(half);
  }
}

void StoreElement(char* data, int32_t dtype, int64_t offset, double value) {
  char* at = data + offset * DtypeSize(dtype);
  const float x = static_cast<float>(value);
  if (dtype == KDA_F32) {
    std::memcpy(at, &x, 4);
    return;
  }
  const uint16_t half = dtype == KDA_BF16 ? ToBf16(x) : ToF16(x);
  std::memcpy(at, &half, 2);
}

void Difference::Add(double got, double want) {
  ++elements;
  if (!std::isfinite(want) || !std::isfinite(got)) {
    non_finite_got += std::isfinite(got) ? 0 : 1;
    non_finite_want += std::isfinite(want) ? 0 : 1;
    const bool same = (std::isnan(want) && std::isnan(got)) || want == got;
    if (!same) ++mismatched_non_finite;
    return;
  }
  const double error = got - want;
  max_abs = std::max(max_abs, std::fabs(error));
  sum_squared_error += error * error;
  sum_squared_want += want * want;
}

void Difference::Add(const Difference& other) {
  elements += other.elements;
  mismatched_non_finite += other.mismatched_non_finite;
  non_finite_got += other.non_finite_got;
  non_finite_want += other.non_finite_want;
  max_abs = std::max(max_abs, other.max_abs);
  sum_squared_error += other.sum_squared_error;
  sum_squared_want += other.sum_squared_want;
}

double Difference::RelativeFrobenius() const {
  if (mismatched_non_finite > 0) return std::numeric_limits<double>::infinity();
  if (sum_squared_error == 0) return 0;
  return std::sqrt(sum_squared_error / sum_squared_want);
}

Difference Compare(const Tensor& got, const Tensor& want) {
  Difference difference;
  int64_t shape[4] = {1, 1, 1, 1}, a[4] = {0, 0, 0, 0}, b[4] = {0, 0, 0, 0};
  for (int i = 0; i < got.layout.rank; ++i) {
    shape[i] = got.layout.shape[i];
    a[i] = got.layout.stride[i];
    b[i] = want.layout.stride[i];
  }
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t j = 0; j < shape[1]; ++j) {
      for (int64_t k = 0; k < shape[2]; ++k) {
        const int64_t at_a = i * a[0] + j * a[1] + k * a[2];
        const int64_t at_b = i * b[0] + j * b[1] + k * b[2];
        for (int64_t l = 0; l < shape[3]; ++l) {
          difference.Add(LoadElement(got.data, got.layout.dtype, at_a + l * a[3]),
                         LoadElement(want.data, want.layout.dtype, at_b + l * b[3]));
        }
      }
    }
  }
  return difference;
}

}  // namespace kda::cli
