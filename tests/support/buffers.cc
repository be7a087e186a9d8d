#include "support/buffers.h"

#include <algorithm>
#include <cstring>

#include "reference/dtypes.h"

namespace kda::test {

Guarded::Guarded(int64_t bytes, int64_t shift, unsigned char fill)
    : bytes_(bytes), total_(bytes + shift + 2 * kBandBytes + 64), fill_(fill) {
  storage_.reset(new char[static_cast<size_t>(total_)]);
  std::memset(storage_.get(), fill, static_cast<size_t>(total_));
  const auto base = reinterpret_cast<uintptr_t>(storage_.get()) + kBandBytes;
  data_ = reinterpret_cast<char*>((base + 63) / 64 * 64) + shift;
}

bool Guarded::BandsIntact() const {
  const auto is_fill = [this](char c) { return static_cast<unsigned char>(c) == fill_; };
  return std::all_of(static_cast<const char*>(storage_.get()), static_cast<const char*>(data_),
                     is_fill) &&
         std::all_of(static_cast<const char*>(data_ + bytes_),
                     static_cast<const char*>(storage_.get() + total_), is_fill);
}

TensorBuffer::TensorBuffer(kda_dtype dtype, std::vector<int64_t> shape, const Layout& layout,
                           kda_state_order order, unsigned char band)
    : dtype_(dtype), band_(band) {
  const size_t rank = shape.size(), pad = 4 - rank;
  tensor_.dtype = dtype;
  tensor_.rank = static_cast<int32_t>(rank);
  std::vector<size_t> in_memory;  // dimensions in the order they are stored
  for (size_t d = 0; d < rank; ++d) in_memory.push_back(d);
  if (order == KDA_STATE_VK) std::swap(in_memory[rank - 1], in_memory[rank - 2]);
  const bool dense = layout.stride == std::array<int64_t, 4>{0, 0, 0, 0};
  int64_t step = 1, last = 0;
  for (size_t m = rank; m-- > 0;) {
    const size_t d = in_memory[m];
    shape_[pad + d] = shape[d];
    stride_[pad + d] = dense ? step : layout.stride[m];
    step *= shape[d];
    count_ *= shape[d];
    last += (shape[d] - 1) * stride_[pad + d];
    tensor_.shape[m] = shape[d];
    tensor_.stride[m] = dense ? 0 : layout.stride[m];
  }
  gaps_ = !dense;
  const int64_t size = reference::SizeOf(dtype);
  const int64_t extent = count_ == 0 ? 0 : (last + 1) * size;
  memory_ = Guarded(extent, layout.shift * size, band);
}

// visit(element offset), in logical order.
template <class Visit>
void TensorBuffer::ForEach(const Visit& visit) const {
  if (count_ == 0) return;
  for (int64_t a = 0; a < shape_[0]; ++a) {
    for (int64_t b = 0; b < shape_[1]; ++b) {
      for (int64_t c = 0; c < shape_[2]; ++c) {
        const int64_t row = a * stride_[0] + b * stride_[1] + c * stride_[2];
        for (int64_t d = 0; d < shape_[3]; ++d) visit(row + d * stride_[3]);
      }
    }
  }
}

void TensorBuffer::Write(const std::vector<double>& values) {
  size_t i = 0;
  ForEach([&](int64_t at) { reference::Store(dtype_, data(), at, values[i++]); });
  written_.assign(memory_.data(), memory_.data() + memory_.size());
}

void TensorBuffer::Poison(unsigned char byte) {
  const int64_t size = reference::SizeOf(dtype_);
  ForEach([&](int64_t at) { std::memset(data() + at * size, byte, static_cast<size_t>(size)); });
}

Array TensorBuffer::Read() const {
  Array out;
  out.values.reserve(static_cast<size_t>(count_));
  out.bits.reserve(static_cast<size_t>(count_));
  const int64_t size = reference::SizeOf(dtype_);
  ForEach([&](int64_t at) {
    uint32_t bits = 0;
    std::memcpy(&bits, data() + at * size, static_cast<size_t>(size));
    out.bits.push_back(bits);
    out.values.push_back(reference::Load(dtype_, data(), at));
  });
  return out;
}

bool TensorBuffer::Unchanged() const {
  return memory_.BandsIntact() && std::equal(written_.begin(), written_.end(), memory_.data());
}

bool TensorBuffer::BandsIntact() const {
  if (!memory_.BandsIntact()) return false;
  if (!gaps_) return true;
  const int64_t size = reference::SizeOf(dtype_);
  std::vector<bool> element(static_cast<size_t>(memory_.size()));
  ForEach([&](int64_t at) {
    for (int64_t b = 0; b < size; ++b) element[static_cast<size_t>(at * size + b)] = true;
  });
  for (size_t i = 0; i < element.size(); ++i) {
    if (!element[i] && static_cast<unsigned char>(memory_.data()[i]) != band_) return false;
  }
  return true;
}

}  // namespace kda::test
