// Arrays that callers pass to a kernel program and get back: dense, row-major.
#ifndef KDA_TPU_IR_ARRAY_H_
#define KDA_TPU_IR_ARRAY_H_

#include <cstdint>
#include <vector>

#include "tpu/ir/types.h"

namespace kda::tpu::ir {

class Array {
 public:
  Array() = default;                // no elements: an argument that is not given
  Array(DType dtype, Shape shape);  // zeros
  static Array F32(const Shape& shape, const std::vector<float>& values);
  static Array BF16(const Shape& shape, const std::vector<float>& values);  // rounded to nearest
  static Array I32(const Shape& shape, const std::vector<int32_t>& values);
  static Array Full(DType dtype, const Shape& shape, double value);
  // Any dtype from floats: rounded to bf16, truncated to i32.
  static Array From(DType dtype, const Shape& shape, const std::vector<float>& values);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  Type type() const { return {dtype_, shape_, Space::kHbm}; }
  int64_t size() const { return dtype_ == DType::kDmaSemaphore ? 0 : ElementCount(shape_); }
  bool empty() const { return bytes_.empty(); }

  // The elements; i1 takes a byte. Each throws std::logic_error when the dtype is another one.
  float* f32() { return reinterpret_cast<float*>(Data(DType::kF32)); }
  const float* f32() const { return reinterpret_cast<const float*>(Data(DType::kF32)); }
  int32_t* i32() { return reinterpret_cast<int32_t*>(Data(DType::kI32)); }
  const int32_t* i32() const { return reinterpret_cast<const int32_t*>(Data(DType::kI32)); }
  uint16_t* bf16() { return reinterpret_cast<uint16_t*>(Data(DType::kBF16)); }
  const uint16_t* bf16() const { return reinterpret_cast<const uint16_t*>(Data(DType::kBF16)); }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  int64_t byte_count() const { return static_cast<int64_t>(bytes_.size()); }

  // One element, by its place in row-major order or by its indices.
  double Get(int64_t at) const;
  void Set(int64_t at, double value);
  double At(const Shape& indices) const { return Get(Offset(indices)); }
  void SetAt(const Shape& indices, double value) { Set(Offset(indices), value); }
  int64_t Offset(const Shape& indices) const;
  std::vector<float> Floats() const;

  // Same bits: NaNs equal themselves, 0 and -0 differ.
  bool operator==(const Array& other) const;
  bool operator!=(const Array& other) const { return !(*this == other); }

 private:
  unsigned char* Data(DType dtype);
  const unsigned char* Data(DType dtype) const;

  DType dtype_ = DType::kDmaSemaphore;
  Shape shape_;
  std::vector<unsigned char> bytes_;
};

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_ARRAY_H_
