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

template <class V>
typename V::F LoadAs(DType dtype, const char* p) {
  switch (dtype) {
    case DType::kBF16:
      return V::LoadBf16(reinterpret_cast<const uint16_t*>(p));
    case DType::kF16:
      return V::LoadF16(reinterpret_cast<const uint16_t*>(p));
    default:
      return V::Load(reinterpret_cast<const float*>(p));
  }
}

template <class V>
void StoreAs(DType dtype, char* p, typename V::F x) {
  switch (dtype) {
    case DType::kBF16:
      return V::StoreBf16(reinterpret_cast<uint16_t*>(p), x);
    case DType::kF16:
      return V::StoreF16(reinterpret_cast<uint16_t*>(p), x);
    default:
      return V::Store(reinterpret_cast<float*>(p), x);
  }
}

static constexpr int SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// dst[0, n) = src, dst[n, pad16(n)) = 0.
template <class V>
void LoadRow(DType dtype, const char* src, int n, float* dst) {
  const int size = SizeOf(dtype);
  const int full = n - n % V::kLanes;
  for (int c = 0; c < full; c += V::kLanes) V::Store(dst + c, LoadAs<V>(dtype, src + c * size));
  if (full == n && n % kDimAlign == 0) return;
  // The tail goes through a zeroed copy so that nothing past the row is read.
  alignas(64) char tail[64] = {};
  for (int b = 0; b < (n - full) * size; ++b) tail[b] = src[full * size + b];
  if (full < n) V::Store(dst + full, LoadAs<V>(dtype, tail));
  const int written = full < n ? full + V::kLanes : full;
  for (int c = written; c < PadTo16<V>(n); c += V::kLanes) V::Store(dst + c, V::Zero());
}

template <class V>
void StoreRow(DType dtype, const float* src, int n, char* dst) {
  const int size = SizeOf(dtype);
  const int full = n - n % V::kLanes;
  for (int c = 0; c < full; c += V::kLanes) StoreAs<V>(dtype, dst + c * size, V::Load(src + c));
  if (full == n) return;
  alignas(64) char tail[64];
  StoreAs<V>(dtype, tail, V::Load(src + full));  // src is padded
  for (int b = 0; b < (n - full) * size; ++b) dst[full * size + b] = tail[b];
}

template <class V>
float LoadScalar(DType dtype, const char* src) {
  alignas(64) char element[64] = {};
  for (int b = 0; b < SizeOf(dtype); ++b) element[b] = src[b];
  alignas(64) float lanes[V::kLanes];
  V::Store(lanes, LoadAs<V>(dtype, element));
  return lanes[0];
}

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_ROWS_H_
