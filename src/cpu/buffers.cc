#include "cpu/buffers.h"

namespace kda::cpu {

using B = ChunkBuffers;

// clang-format off
const BufferRow kBufferTable[kBufferRows] = {
    // member         written by   read later by                K  V  1    K KV/2 fixed  where
    {&B::g,             kGateCumsum, kIntraChunk | kInterChunk,  1, 0, 0,   0, 0, 0,    kAlways},
    {&B::decay,         kGateCumsum, kIntraChunk | kInterChunk,  1, 0, 0,   0, 0, 0,    kAlways},
    {&B::prefix,        kGateCumsum, kIntraChunk,                1, 0, 0,   0, 0, 0,    kFp32Operands},
    {&B::block_log,     kGateCumsum, kInterChunk,                0, 0, 0,   4, 0, 0,    kAlways},
    {&B::block_lost,    kGateCumsum, kInterChunk,                0, 0, 0,   4, 0, 0,    kAlways},
    {&B::block_decay,   kGateCumsum, kIntraChunk,                0, 0, 0,   4, 0, 0,    kAlways},
    {&B::q,             kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kAlways},
    {&B::k,             kIntraChunk, kInterChunk,                1, 0, 0,   0, 0, 0,    kAlways},
    {&B::beta,          kIntraChunk, 0,                          0, 0, 1,   0, 0, 0,    kAlways},
    {&B::qh,            kIntraChunk, kOutput,                    1, 0, 0,   0, 0, 0,    kFp32Operands},
    {&B::kh,            kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kFp32Operands},
    {&B::kt,            kIntraChunk, 0,                          0, 0, 0,  64, 0, 0,    kFp32Operands},
    {&B::qk_block,      kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kBf16Operands},
    {&B::qk_chunk,      kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kBf16Operands},
    {&B::keys,          kIntraChunk, 0,                          0, 0, 0, 128, 0, 0,    kBf16Operands},
    {&B::aqk_split,     kIntraChunk, 0,                          0, 0, 64,  0, 0, 0,    kSplitOperands},
    {&B::l_split,       kIntraChunk, 0,                          0, 0, 64,  0, 0, 0,    kSplitOperands},
    {&B::kg_split,      kInterChunk, 0,                          0, 0, 0,  64, 0, 0,    kSplitOperands},
    {&B::v_split,       kInterChunk, kOutput,                    0, 1, 0,   0, 0, 0,    kSplitOperands},
    {&B::aqk,           kIntraChunk, kOutput,                    0, 0, 64,  0, 0, 0,    kAlways},
    {&B::l,             kIntraChunk, 0,                          0, 0, 64,  0, 0, 0,    kAlways},
    {&B::u,             kIntraChunk, kInterChunk,                0, 1, 0,   0, 0, 0,    kStaged},
    {&B::w,             kIntraChunk, kInterChunk,                1, 0, 0,   0, 0, 0,    kStaged},
    {&B::solve_scratch, kIntraChunk, 0,                          0, 0, 0,   0, 0, 64 * 384, kFp32Operands},
    {&B::kg,            kInterChunk, 0,                          1, 0, 0,   0, 0, 0,    kBf16Operands},
    {&B::v_new,         kInterChunk, kOutput,                    0, 1, 0,   0, 0, 0,    kAlways},
    {&B::s_pairs,       kInterChunk, kOutput,                    0, 0, 0,   0, 1, 0,    kBf16Operands},
    {&B::h,             kInterChunk, kOutput,                    0, 0, 0,   0, 2, 0,    kStaged},
    {&B::row,           kGateCumsum, 0,                          0, 0, 0,   0, 0, 256,  kAlways},
};
// clang-format on

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

int64_t FloatsOf(Which which, const ChunkDims& dims) {
  int64_t floats = 0;
  for (const BufferRow& row : kBufferTable) {
    if (Includes(which, row)) floats += FloatsOf(row, dims);
  }
  return floats;
}

void LayOut(Which which, const ChunkDims& dims, float* base, ChunkBuffers* buffers) {
  buffers->kg = nullptr;
  buffers->ldk = static_cast<int>(dims.ldk);
  buffers->ldv = static_cast<int>(dims.ldv);
  for (const BufferRow& row : kBufferTable) {
    if (!Includes(which, row)) continue;
    buffers->*row.member = base;
    base += FloatsOf(row, dims);
  }
  if (buffers->kg == nullptr) buffers->kg = buffers->kh;  // kh is done with when kg begins
}

}  // namespace kda::cpu
