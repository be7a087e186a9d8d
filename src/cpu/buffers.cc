#include "cpu/buffers.h"

namespace kda::cpu {

using B = ChunkBuffers;

constexpr Stage kCumsum = kGateCumsum, kIntra = kIntraChunk, kInter = kInterChunk;
constexpr Apart kHalf = Apart::kOneHalf, kEnds = Apart::kEnds, kOper = Apart::kOperands;
// Solver neumann64 has two [64, 64] and one [64, max(K, V)].
constexpr int kSolve = kChunkRows * (2 * kChunkRows + kMaxDimPadded), kRow = kMaxDimPadded;

// clang-format off
constexpr BufferRow kBufferTable[kBufferRows] = {
    // member           written  read later by    K  V   1    K KV/2 fixed  where           apart
    {&B::g,             kCumsum, kIntra | kInter, 1, 0,  0,   0, 0, 0,      kAlways,        kEnds},
    {&B::decay,         kCumsum, kIntra | kInter, 1, 0,  0,   0, 0, 0,      kAlways,        kEnds},
    {&B::prefix,        kCumsum, kIntra,          1, 0,  0,   0, 0, 0,      kFp32Operands,  kHalf},
    {&B::block_log,     kCumsum, kInter,          0, 0,  0,   4, 0, 0,      kAlways,        kEnds},
    {&B::block_lost,    kCumsum, kInter,          0, 0,  0,   4, 0, 0,      kAlways,        kEnds},
    {&B::block_decay,   kCumsum, kIntra,          0, 0,  0,   4, 0, 0,      kAlways,        kHalf},
    {&B::q,             kIntra,  0,               1, 0,  0,   0, 0, 0,      kAlways,        kHalf},
    {&B::k,             kIntra,  kInter,          1, 0,  0,   0, 0, 0,      kAlways,        kEnds},
    {&B::beta,          kIntra,  0,               0, 0,  1,   0, 0, 0,      kAlways,        kOper},
    {&B::qh,            kIntra,  kOutput,         1, 0,  0,   0, 0, 0,      kFp32Operands,  kOper},
    {&B::kh,            kIntra,  0,               1, 0,  0,   0, 0, 0,      kFp32Operands,  kOper},
    {&B::kt,            kIntra,  0,               0, 0,  0,  64, 0, 0,      kFp32Operands,  kHalf},
    {&B::qk_block,      kIntra,  0,               1, 0,  0,   0, 0, 0,      kBf16Operands,  kHalf},
    {&B::qk_chunk,      kIntra,  0,               1, 0,  0,   0, 0, 0,      kBf16Operands,  kOper},
    {&B::keys,          kIntra,  0,               0, 0,  0, 128, 0, 0,      kBf16Operands,  kHalf},
    {&B::keys_low,      kIntra,  0,               0, 0,  0, 128, 0, 0,      kBf16Operands,  kHalf},
    {&B::aqk_split,     kIntra,  0,               0, 0, 64,   0, 0, 0,      kSplitOperands, kOper},
    {&B::l_split,       kIntra,  0,               0, 0, 64,   0, 0, 0,      kSplitOperands, kOper},
    {&B::kg_split,      kInter,  0,               0, 0,  0,  64, 0, 0,      kSplitOperands, kOper},
    {&B::v_split,       kInter,  kOutput,         0, 1,  0,   0, 0, 0,      kSplitOperands, kHalf},
    {&B::aqk,           kIntra,  kOutput,         0, 0, 64,   0, 0, 0,      kAlways,        kOper},
    {&B::l,             kIntra,  0,               0, 0, 64,   0, 0, 0,      kAlways,        kOper},
    {&B::u,             kIntra,  kInter,          0, 1,  0,   0, 0, 0,      kStaged,        kHalf},
    {&B::w,             kIntra,  kInter,          1, 0,  0,   0, 0, 0,      kStaged,        kHalf},
    {&B::solve_scratch, kIntra,  0,               0, 0,  0,   0, 0, kSolve, kFp32Operands,  kHalf},
    {&B::kg,            kInter,  0,               1, 0,  0,   0, 0, 0,      kBf16Operands,  kOper},
    {&B::state_decay,   kInter,  0,               0, 0,  0,   2, 0, 0,      kAlways,        kOper},
    {&B::v_new,         kInter,  kOutput,         0, 1,  0,   0, 0, 0,      kAlways,        kHalf},
    {&B::s_pairs,       kInter,  kOutput,         0, 0,  0,   0, 1, 0,      kBf16Operands,  kHalf},
    {&B::h,             kInter,  kOutput,         0, 0,  0,   0, 2, 0,      kStaged,        kHalf},
    {&B::row,           kIntra,  0,               0, 0,  0,   0, 0, kRow,   kBf16Operands,  kHalf},
};
// clang-format on

// What both halves need is laid out by parts of V of any width in the same places.
constexpr bool SharedRowsDoNotDependOnV() {
  for (const BufferRow& row : kBufferTable) {
    if (row.apart != Apart::kOneHalf && (row.per_row_v != 0 || row.fixed_half_kv != 0))
      return false;
  }
  return true;
}
static_assert(SharedRowsDoNotDependOnV());
static_assert(kBufferTable[kBufferRows - 1].member == &B::row, "kBufferRows is another number");

namespace {

bool OfStaged(const BufferRow& row) {
  return row.use != kBf16Operands && row.use != kSplitOperands;
}

}  // namespace

bool Includes(Which which, const BufferRow& row) {
  switch (which) {
    case Which::kFused:
      return row.use == kAlways || row.use == kFp32Operands;
    case Which::kFusedBf16:
      return row.use == kAlways || row.use == kBf16Operands;
    case Which::kFusedSplit:
      return row.use == kAlways || row.use == kBf16Operands || row.use == kSplitOperands;
    case Which::kStagedKept:
      return OfStaged(row) && row.read_by != 0;
    case Which::kStagedLocal:
      return OfStaged(row) && row.read_by == 0;
    default:
      return OfStaged(row);
  }
}

int64_t FloatsOf(const BufferRow& row, const ChunkDims& dims) {
  const int64_t per_row = row.per_row_k * dims.ldk + row.per_row_v * dims.ldv + row.per_row;
  return per_row * dims.rows + row.fixed_k * dims.ldk +
         row.fixed_half_kv * (dims.ldk * dims.ldv / 2) + row.fixed;
}

namespace {

// Of the rows that `which` includes and `of` picks.
template <class Of>
int64_t FloatsOfRows(Which which, const ChunkDims& dims, const Of& of) {
  int64_t floats = 0;
  for (const BufferRow& row : kBufferTable) {
    if (Includes(which, row) && of(row)) floats += FloatsOf(row, dims);
  }
  return floats;
}

// kg is in kh's place unless it has one of its own; apart, kh is not to be written.
bool HasKg(Which which) { return which != Which::kFused; }
int64_t KgFloats(Which which, const ChunkDims& dims) {
  return HasKg(which) ? 0 : dims.rows * dims.ldk;
}

bool IsOfEnd(const BufferRow& row) {
  return row.apart == Apart::kOperands && row.written_by == kInterChunk;
}

// Each of the rows that `which` includes at the base that `base_of` has for it, which moves on to
// the next; nullptr: the row stays where it is.
template <class BaseOf>
void LayOutRows(Which which, const ChunkDims& dims, ChunkBuffers* buffers, const BaseOf& base_of) {
  for (const BufferRow& row : kBufferTable) {
    float** const base = Includes(which, row) ? base_of(row) : nullptr;
    if (base == nullptr) continue;
    buffers->*row.member = *base;
    *base += FloatsOf(row, dims);
  }
}

}  // namespace

int64_t FloatsOf(Which which, const ChunkDims& dims) {
  return FloatsOfRows(which, dims, [](const BufferRow&) { return true; });
}

int64_t FloatsApart(Which which, const ChunkDims& dims, Apart apart) {
  const auto is_of = [apart](const BufferRow& row) { return row.apart == apart; };
  return FloatsOfRows(which, dims, is_of) + (apart == Apart::kOperands ? KgFloats(which, dims) : 0);
}

void LayOutApart(Which which, const ChunkDims& dims, ApartBases bases, ChunkBuffers* buffers) {
  buffers->ldk = static_cast<int>(dims.ldk);
  buffers->ldv = static_cast<int>(dims.ldv);
  const auto base_of = [&bases](const BufferRow& row) {
    return row.apart == Apart::kOperands ? &bases.operands
           : row.apart == Apart::kEnds   ? &bases.ends
                                         : &bases.one_half;
  };
  LayOutRows(which, dims, buffers, base_of);
  if (!HasKg(which)) buffers->kg = bases.operands;
}

int64_t EndFloats(Which which, const ChunkDims& dims) {
  return FloatsOfRows(which, dims, IsOfEnd) + KgFloats(which, dims);
}

void LayOutEnd(Which which, const ChunkDims& dims, float* base, ChunkBuffers* buffers) {
  const auto base_of = [&base](const BufferRow& row) { return IsOfEnd(row) ? &base : nullptr; };
  LayOutRows(which, dims, buffers, base_of);
  if (!HasKg(which)) buffers->kg = base;
}

void LayOut(Which which, const ChunkDims& dims, float* base, ChunkBuffers* buffers) {
  buffers->kg = nullptr;
  buffers->ldk = static_cast<int>(dims.ldk);
  buffers->ldv = static_cast<int>(dims.ldv);
  LayOutRows(which, dims, buffers, [&base](const BufferRow&) { return &base; });
  if (buffers->kg == nullptr) buffers->kg = buffers->kh;  // kh is done with when kg begins
}

}  // namespace kda::cpu
