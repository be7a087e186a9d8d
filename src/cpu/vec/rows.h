// Rows in the caller's dtype to and from zero-padded fp32 rows.
#ifndef KDA_CPU_VEC_ROWS_H_
#define KDA_CPU_VEC_ROWS_H_

#include <cstdint>

#include "cpu/chunk.h"

namespace kda::cpu {

template <class V>
int PadTo16(int n) {
  return (n + kDimAlign - 1) & ~(kDimAlign - 1);
}

template <class V, DType D>
typename V::F LoadAs(const char* p) {
  if constexpr (D == DType::kBF16) return V::LoadBf16(reinterpret_cast<const uint16_t*>(p));
  if constexpr (D == DType::kF16) return V::LoadF16(reinterpret_cast<const uint16_t*>(p));
  if constexpr (D == DType::kF32) return V::Load(reinterpret_cast<const float*>(p));
}

template <class V, DType D>
void StoreAs(char* p, typename V::F x) {
  if constexpr (D == DType::kBF16) V::StoreBf16(reinterpret_cast<uint16_t*>(p), x);
  if constexpr (D == DType::kF16) V::StoreF16(reinterpret_cast<uint16_t*>(p), x);
  if constexpr (D == DType::kF32) V::Store(reinterpret_cast<float*>(p), x);
}

// Elements [c, c + kLanes) of a row of n; zeros past it, of which nothing is read.
template <class V, DType D>
typename V::F LoadPart(const char* row, int c, int n) {
  constexpr int kSize = SizeOf(D);
  if (c + V::kLanes <= n) return LoadAs<V, D>(row + c * kSize);
  alignas(64) char tail[64] = {};
  for (int b = 0; b < (n - c) * kSize; ++b) tail[b] = row[c * kSize + b];
  return LoadAs<V, D>(tail);
}

template <class V, DType D>
void LoadRowAs(const char* src, int n, float* dst) {
  constexpr int kSize = SizeOf(D);
  const int full = n - n % V::kLanes;
  for (int c = 0; c < full; c += V::kLanes) V::Store(dst + c, LoadAs<V, D>(src + c * kSize));
  for (int c = full; c < PadTo16<V>(n); c += V::kLanes)
    V::Store(dst + c, LoadPart<V, D>(src, c, n));
}

// dst[0, n) = src, dst[n, pad16(n)) = 0.
template <class V>
void LoadRow(DType dtype, const char* src, int n, float* dst) {
  switch (dtype) {
    case DType::kBF16:
      return LoadRowAs<V, DType::kBF16>(src, n, dst);
    case DType::kF16:
      return LoadRowAs<V, DType::kF16>(src, n, dst);
    default:
      return LoadRowAs<V, DType::kF32>(src, n, dst);
  }
}

template <class V, DType D>
void StoreRowAs(const float* src, int n, char* dst) {
  constexpr int kSize = SizeOf(D);
  const int full = n - n % V::kLanes;
  for (int c = 0; c < full; c += V::kLanes) StoreAs<V, D>(dst + c * kSize, V::Load(src + c));
  if (full == n) return;
  alignas(64) char tail[64];
  StoreAs<V, D>(tail, V::Load(src + full));  // src is padded
  for (int b = 0; b < (n - full) * kSize; ++b) dst[full * kSize + b] = tail[b];
}

// src is readable up to pad16(n).
template <class V>
void StoreRow(DType dtype, const float* src, int n, char* dst) {
  switch (dtype) {
    case DType::kBF16:
      return StoreRowAs<V, DType::kBF16>(src, n, dst);
    case DType::kF16:
      return StoreRowAs<V, DType::kF16>(src, n, dst);
    default:
      return StoreRowAs<V, DType::kF32>(src, n, dst);
  }
}

// What storing as bf16 and loading again does; count a multiple of V::kLanes.
template <class V>
void RoundToBf16(const float* src, float* dst, int count) {
  alignas(64) uint16_t half[V::kLanes];
  for (int c = 0; c < count; c += V::kLanes) {
    V::StoreBf16(half, V::Load(src + c));
    V::Store(dst + c, V::LoadBf16(half));
  }
}

template <class V>
float LoadScalar(DType dtype, const char* src) {
  if (dtype == DType::kF16) {
    alignas(64) float row[kDimAlign];
    LoadRow<V>(dtype, src, 1, row);
    return row[0];
  }
  uint32_t bits = 0;
  __builtin_memcpy(&bits, src, dtype == DType::kBF16 ? 2 : 4);
  if (dtype == DType::kBF16) bits <<= 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_ROWS_H_
