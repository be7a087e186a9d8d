// States between the caller's memory (fp32 or bf16, [K, V] or [V, K]) and fp32 [K, V] rows of `ld`.
#ifndef KDA_CPU_STATE_IO_H_
#define KDA_CPU_STATE_IO_H_

#include <cstdint>

#include "cpu/chunk.h"
#include "cpu/vec/rows.h"

namespace kda::cpu {

struct StateShape {
  int dim_k, dim_v;
  DType dtype;
  bool value_major;  // [V, K]
};

// dst has PadTo16(dim_k) rows; columns past dim_v become zero.
template <class V>
void LoadState(const StateShape& shape, const char* src, State dst) {
  const int64_t size = SizeOf(shape.dtype);
  if (!shape.value_major) {
    for (int c = 0; c < shape.dim_k; ++c) {
      LoadRow<V>(shape.dtype, src + c * size * shape.dim_v, shape.dim_v, dst.data + c * dst.ld);
    }
    return;
  }
  alignas(64) float rows[V::kLanes * kMaxDimPadded];
  for (int v = 0; v < PadTo16<V>(shape.dim_v); v += V::kLanes) {
    for (int r = 0; r < V::kLanes; ++r) {
      float* row = rows + r * kMaxDimPadded;
      if (v + r < shape.dim_v) {
        LoadRow<V>(shape.dtype, src + (v + r) * size * shape.dim_k, shape.dim_k, row);
      } else {
        for (int c = 0; c < PadTo16<V>(shape.dim_k); ++c) row[c] = 0.0f;
      }
    }
    for (int c = 0; c < shape.dim_k; c += V::kLanes) {
      V::Transpose(rows + c, kMaxDimPadded, dst.data + c * dst.ld + v, dst.ld);
    }
  }
}

// src has PadTo16(dim_k) rows.
template <class V>
void StoreState(const StateShape& shape, ConstState src, char* dst) {
  const int64_t size = SizeOf(shape.dtype);
  if (!shape.value_major) {
    for (int c = 0; c < shape.dim_k; ++c) {
      StoreRow<V>(shape.dtype, src.data + c * src.ld, shape.dim_v, dst + c * size * shape.dim_v);
    }
    return;
  }
  alignas(64) float rows[V::kLanes * kMaxDimPadded];
  for (int v = 0; v < shape.dim_v; v += V::kLanes) {
    for (int c = 0; c < shape.dim_k; c += V::kLanes) {
      V::Transpose(src.data + c * src.ld + v, src.ld, rows + c, kMaxDimPadded);
    }
    for (int r = 0; r < V::kLanes && v + r < shape.dim_v; ++r) {
      StoreRow<V>(shape.dtype, rows + r * kMaxDimPadded, shape.dim_k,
                  dst + (v + r) * size * shape.dim_k);
    }
  }
}

// What storing the state as bf16 and loading it again does to it.
template <class V>
void RoundStateToBf16(int dim_k, State s) {
  for (int c = 0; c < dim_k; ++c) {
    RoundToBf16<V>(s.data + c * s.ld, s.data + c * s.ld, static_cast<int>(s.ld));
  }
}

}  // namespace kda::cpu

#endif  // KDA_CPU_STATE_IO_H_
