#include "tpu/ir/array.h"

#include <cstring>
#include <stdexcept>
#include <utility>

namespace kda::tpu::ir {

namespace {

size_t ElementBytes(DType dtype) {
  return dtype == DType::kI1 ? 1 : static_cast<size_t>(BitsOf(dtype)) / 8;
}

void CheckCount(const Shape& shape, size_t count) {
  if (ElementCount(shape) != static_cast<int64_t>(count)) {
    throw std::logic_error("Array: " + std::to_string(count) + " values for " + ToString(shape));
  }
}

Shape Checked(Shape shape) {
  for (int64_t n : shape) {
    if (n < 0) throw BuildError("an array of shape " + ToString(shape) + ": below 0");
  }
  return shape;
}

}  // namespace

Array::Array(DType dtype, Shape shape)
    : dtype_(dtype),
      shape_(Checked(std::move(shape))),
      bytes_(static_cast<size_t>(ElementCount(shape_)) * ElementBytes(dtype)) {}

Array Array::F32(const Shape& shape, const std::vector<float>& values) {
  return From(DType::kF32, shape, values);
}

Array Array::BF16(const Shape& shape, const std::vector<float>& values) {
  return From(DType::kBF16, shape, values);
}

Array Array::I32(const Shape& shape, const std::vector<int32_t>& values) {
  CheckCount(shape, values.size());
  Array array(DType::kI32, shape);
  if (!values.empty()) std::memcpy(array.data(), values.data(), array.bytes_.size());
  return array;
}

Array Array::Full(DType dtype, const Shape& shape, double value) {
  Array array(dtype, shape);
  for (int64_t i = 0; i < array.size(); ++i) array.Set(i, value);
  return array;
}

Array Array::From(DType dtype, const Shape& shape, const std::vector<float>& values) {
  CheckCount(shape, values.size());
  Array array(dtype, shape);
  if (values.empty()) return array;
  if (dtype == DType::kF32) {  // copied: the bits of a NaN too
    std::memcpy(array.data(), values.data(), array.bytes_.size());
    return array;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kBF16) {
      array.bf16()[i] = ToBF16(values[i]);
    } else {
      array.Set(static_cast<int64_t>(i), static_cast<double>(values[i]));
    }
  }
  return array;
}

double Array::Get(int64_t at) const {
  if (at < 0 || at >= size()) throw std::logic_error("Array: element " + std::to_string(at));
  const size_t i = static_cast<size_t>(at);
  switch (dtype_) {
    case DType::kF32:
      return static_cast<double>(f32()[i]);
    case DType::kBF16:
      return static_cast<double>(FromBF16(bf16()[i]));
    case DType::kI32:
      return i32()[i];
    case DType::kI1:
      return bytes_[i];
    case DType::kDmaSemaphore:
      break;
  }
  return 0;
}

void Array::Set(int64_t at, double value) {
  if (at < 0 || at >= size()) throw std::logic_error("Array: element " + std::to_string(at));
  const size_t i = static_cast<size_t>(at);
  switch (dtype_) {
    case DType::kF32:
      f32()[i] = static_cast<float>(value);
      break;
    case DType::kBF16:
      bf16()[i] = ToBF16(static_cast<float>(value));
      break;
    case DType::kI32:
      i32()[i] = static_cast<int32_t>(value);
      break;
    case DType::kI1:
      bytes_[i] = value != 0 ? 1 : 0;
      break;
    case DType::kDmaSemaphore:
      break;
  }
}

int64_t Array::Offset(const Shape& indices) const {
  if (indices.size() != shape_.size()) throw std::logic_error("Array: rank of the indices");
  int64_t offset = 0;
  for (size_t i = 0; i < shape_.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= shape_[i]) {
      throw std::logic_error("Array: index " + std::to_string(indices[i]) + " of " +
                             std::to_string(shape_[i]));
    }
    offset = offset * shape_[i] + indices[i];
  }
  return offset;
}

std::vector<float> Array::Floats() const {
  std::vector<float> values(static_cast<size_t>(size()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = dtype_ == DType::kF32 ? f32()[i] : static_cast<float>(Get(static_cast<int64_t>(i)));
  }
  return values;
}

bool Array::operator==(const Array& other) const {
  return dtype_ == other.dtype_ && shape_ == other.shape_ && bytes_ == other.bytes_;
}

unsigned char* Array::Data(DType dtype) {
  if (dtype != dtype_) {
    throw std::logic_error("Array: of " + ToString(dtype_) + ", not " + ToString(dtype));
  }
  return bytes_.data();
}

const unsigned char* Array::Data(DType dtype) const {
  return const_cast<Array*>(this)->Data(dtype);
}

}  // namespace kda::tpu::ir
