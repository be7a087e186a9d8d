#include "tpu/ir/types.h"

#include <cstring>

namespace kda::tpu::ir {

int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (int64_t n : shape) {
    if (__builtin_mul_overflow(count, n, &count) || count > kMostElements) {
      throw BuildError("a shape of " + ToString(shape) + " has more than " +
                       std::to_string(kMostElements) + " elements");
    }
  }
  return count;
}

int64_t BitsOf(DType dtype) {
  switch (dtype) {
    case DType::kI1:
      return 1;
    case DType::kI32:
    case DType::kF32:
      return 32;
    case DType::kBF16:
      return 16;
    case DType::kDmaSemaphore:
      break;
  }
  return 0;
}

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

std::string ToString(DType dtype) {
  switch (dtype) {
    case DType::kI1:
      return "i1";
    case DType::kI32:
      return "i32";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kDmaSemaphore:
      break;
  }
  return "!tpu.dma_semaphore";
}

std::string ToString(const Shape& shape) {
  std::string text;
  for (int64_t n : shape) text += (text.empty() ? "" : "x") + std::to_string(n);
  return text;
}

std::string ToString(const Type& type) {
  const std::string shape = type.shape.empty() ? "" : ToString(type.shape) + "x";
  switch (type.space) {
    case Space::kValue:
      return type.shape.empty() ? ToString(type.dtype)
                                : "vector<" + shape + ToString(type.dtype) + ">";
    case Space::kHbm:
      return "memref<" + shape + ToString(type.dtype) + ", #tpu.memory_space<hbm>>";
    case Space::kVmem:
      return "memref<" + shape + ToString(type.dtype) + ", #tpu.memory_space<vmem>>";
    case Space::kSmem:
      return "memref<" + shape + ToString(type.dtype) + ", #tpu.memory_space<smem>>";
    case Space::kSemaphore:
      break;
  }
  return "memref<" + shape + ToString(type.dtype) + ", #tpu.memory_space<semaphore_mem>>";
}

uint16_t ToBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float FromBF16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

}  // namespace kda::tpu::ir
