// Tensors between guard bands: inputs between NaNs that must never show, outputs between 0xA5 bytes
// that must never change.
#ifndef KDA_TESTS_SUPPORT_BUFFERS_H_
#define KDA_TESTS_SUPPORT_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/case.h"

namespace kda::test {

inline constexpr int64_t kBandBytes = 4096;
inline constexpr unsigned char kOutputBand = 0xA5;

// `bytes` bytes at 64-byte alignment plus `shift`, in a band of `fill` on both sides; filled with
// it.
class Guarded {
 public:
  Guarded() = default;
  Guarded(int64_t bytes, int64_t shift, unsigned char fill);
  char* data() const { return data_; }
  int64_t size() const { return bytes_; }
  bool BandsIntact() const;

 private:
  std::unique_ptr<char[]> storage_;
  char* data_ = nullptr;
  int64_t bytes_ = 0, total_ = 0;
  unsigned char fill_ = 0;
};

// What a tensor holds, element by element in its logical order.
struct Array {
  std::vector<double> values;
  std::vector<uint32_t> bits;

  bool operator==(const Array& other) const { return bits == other.bits; }
};

// A tensor of at most four dimensions in memory. `order` VK swaps the last two in memory only.
class TensorBuffer {
 public:
  TensorBuffer() = default;
  TensorBuffer(kda_dtype dtype, std::vector<int64_t> shape, const Layout& layout,
               kda_state_order order, unsigned char band);

  const kda_tensor& tensor() const { return tensor_; }
  char* data() const { return memory_.data(); }
  int64_t count() const { return count_; }

  void Write(const std::vector<double>& values);  // and remembers every byte, for Unchanged
  void Poison(unsigned char byte);                // elements only: gaps keep the band's byte
  Array Read() const;

  bool Unchanged() const;    // since Write
  bool BandsIntact() const;  // bands and gaps between elements

 private:
  template <class Visit>
  void ForEach(const Visit& visit) const;

  kda_tensor tensor_ = {};
  kda_dtype dtype_ = KDA_F32;
  int64_t shape_[4] = {1, 1, 1, 1}, stride_[4] = {0, 0, 0, 0};  // logical order, padded in front
  int64_t count_ = 1;
  bool gaps_ = false;
  unsigned char band_ = 0;
  Guarded memory_;
  std::vector<char> written_;
};

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_BUFFERS_H_
