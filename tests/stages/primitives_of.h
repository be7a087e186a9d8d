// Fills a table of primitives.h for a vector type.
#ifndef KDA_TESTS_STAGES_PRIMITIVES_OF_H_
#define KDA_TESTS_STAGES_PRIMITIVES_OF_H_

#include "cpu/intra_chunk.h"
#include "cpu/mma/tile.h"
#include "cpu/vec/math.h"
#include "cpu/vec/rows.h"
#include "stages/primitives.h"

namespace kda::cpu {

template <class V>
void ExpArray(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += V::kLanes) V::Store(y + i, Exp<V>(V::Load(x + i)));
}

template <class V>
void ExpSplitArray(const float* x, float* hi, float* lo, int n) {
  for (int i = 0; i < n; i += V::kLanes) {
    typename V::F h, l;
    const typename V::F value = V::Load(x + i);
    ExpSplit<V>(value, Exp<V>(value), &h, &l);
    V::Store(hi + i, h);
    V::Store(lo + i, l);
  }
}

template <class V>
void SigmoidArray(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += V::kLanes) V::Store(y + i, Sigmoid<V>(V::Load(x + i)));
}

template <class V>
void SoftplusArray(const float* x, float exponent, float* y, int n) {
  for (int i = 0; i < n; i += V::kLanes) {
    V::Store(y + i, SoftplusTimesPow2<V>(V::Load(x + i), V::Set(exponent)));
  }
}

template <class V>
void LoadRowOf(int dtype, const char* src, int n, float* dst) {
  LoadRow<V>(static_cast<DType>(dtype), src, n, dst);
}

template <class V>
void StoreRowOf(int dtype, const float* src, int n, char* dst) {
  StoreRow<V>(static_cast<DType>(dtype), src, n, dst);
}

template <class V>
void TransposeOf(const float* src, int64_t lds, float* dst, int64_t ldd) {
  V::Transpose(src, lds, dst, ldd);
}

template <class V>
void SumEachOf(const float* tile, float* sums) {
  V::Store(sums, V::SumEach(tile));
}

template <class V>
float SumOf(const float* lanes) {
  return V::Sum(V::Load(lanes));
}

template <class V>
struct Bf16Of {
  static void Dot(const float* a, const float* b, const float* c, float* y) {
    V::Store(y, V::Dot(V::Load(a), V::Load(b), V::Load(c)));
  }
  static void SetPair(const float* p, float* y) { V::Store(y, V::SetPair(p)); }
  static void Pairs(const float* low, const float* high, float* y) {
    V::Store(y, V::Pairs(V::Load(low), V::Load(high)));
  }
  static void Row(const float* first, const float* second, float* y) {
    V::Store(y, V::Row(V::Load(first), V::Load(second)));
  }
  static void Top(const float* x, float* y) { V::Store(y, V::Top(V::Load(x))); }
  static void StoreRounded(const float* x, uint16_t* y) { V::StoreRounded(y, V::Load(x)); }
  static constexpr Bf16Primitives kTable = {Dot, SetPair, Pairs, Row, Top, StoreRounded};
};

template <class V>
constexpr const Bf16Primitives* Bf16PrimitivesOf() {
  if constexpr (kBf16Products<V>) {
    return &Bf16Of<V>::kTable;
  } else {
    return nullptr;
  }
}

template <class V>
constexpr Primitives PrimitivesOf() {
  return {V::kLanes,        ExpArray<V>,    ExpSplitArray<V>, SigmoidArray<V>,
          SoftplusArray<V>, L2Normalize<V>, LoadRowOf<V>,     StoreRowOf<V>,
          TransposeOf<V>,   SumEachOf<V>,   SumOf<V>,         Bf16PrimitivesOf<V>()};
}

}  // namespace kda::cpu

#endif  // KDA_TESTS_STAGES_PRIMITIVES_OF_H_
