// Tensors in host memory, as the command line reads, makes and compares them.
#ifndef KDA_CLI_TENSOR_H_
#define KDA_CLI_TENSOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kda/kda.hpp"

namespace kda::cli {

// Memory on a 64-byte boundary, not initialised (its pages are touched first by who writes them).
// Throws Error when there is none.
std::shared_ptr<char> Allocate(int64_t bytes);

// A view of shared memory. `layout` always has explicit strides; absent: data is null.
struct Tensor {
  kda_tensor layout = {};
  char* data = nullptr;
  std::shared_ptr<char> owner;

  bool present() const { return data != nullptr; }
  int64_t shape(int dimension) const { return layout.shape[dimension]; }
  int64_t Elements() const;
  int64_t Bytes() const;  // of the elements; only for dense tensors those of the memory
};

int64_t DtypeSize(int32_t dtype);
// Name of the safetensors format ("BF16"); of messages and flags: kda_dtype_name ("bf16").
const char* SafetensorsDtype(int32_t dtype);

// Dense and row-major.
Tensor NewTensor(kda_dtype dtype, const std::vector<int64_t>& shape);
// The same description without memory, for plans made before the outputs are allocated.
kda_tensor DenseLayout(kda_dtype dtype, const std::vector<int64_t>& shape);
Tensor NewTensor(const kda_tensor& dense_layout);

// Elements [start, start + count) of `dimension`; same memory.
Tensor Slice(const Tensor& tensor, int dimension, int64_t start, int64_t count);

// Every byte 0xFF: NaN in every float type, so what a run leaves out cannot pass as a result.
void FillNan(const Tensor& dense);

// bf16, round to nearest even; fp16 likewise.
uint16_t ToBf16(float x);
uint16_t ToF16(float x);
float FromBf16(uint16_t bits);
float FromF16(uint16_t bits);

double LoadElement(const char* data, int32_t dtype, int64_t offset);
void StoreElement(char* data, int32_t dtype, int64_t offset, double value);

// Distance of `got` from `want`, over any number of tensor pairs.
struct Difference {
  int64_t elements = 0;
  int64_t mismatched_non_finite = 0;  // finite on one side only, or different infinities
  int64_t non_finite_got = 0, non_finite_want = 0;
  double max_abs = 0;
  double sum_squared_error = 0;
  double sum_squared_want = 0;

  void Add(double got, double want);
  void Add(const Difference& other);
  double RelativeFrobenius() const;  // infinite where something is not finite
};
// Same shapes; any strides and dtypes.
Difference Compare(const Tensor& got, const Tensor& want);

}  // namespace kda::cli

#endif  // KDA_CLI_TENSOR_H_
