#include "cpu/buffers.h"

namespace kda::cpu {

using B = ChunkBuffers;

// clang-format off
const BufferRow kBufferTable[kBufferRows] = {
    // member         written by   read later by                K  V  1    K KV/2 fixed  where
    {&B::g,             kGateCumsum, kIntraChunk | kInterChunk,  1, 0, 0,   0, 0, 0,    kAlways},
    {&B::decay,         kGateCumsum, kIntraChunk | kInterChunk,  1, 0, 0,   0, 0, 0,    kAlways},
    {&B::prefix,        kGateCumsum, kIntraChunk,                1, 0, 0,   0, 0, 0,    kFp32Products},
    {&B::block_log,     kGateCumsum, kInterChunk,                0, 0, 0,   4, 0, 0,    kAlways},
    {&B::block_lost,    kGateCumsum, kInterChunk,                0, 0, 0,   4, 0, 0,    kAlways},
    {&B::block_decay,   kGateCumsum, kIntraChunk,                0, 0, 0,   4, 0, 0,    kAlways},
    {&B::q,             kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kAlways},
    {&B::k,             kIntraChunk, kInterChunk,                1, 0, 0,   0, 0, 0,    kAlways},
    {&B::beta,          kIntraChunk, 0,                          0, 0, 1,   0, 0, 0,    kAlways},
    {&B::qh,            kIntraChunk, kOutput,                    1, 0, 0,   0, 0, 0,    kFp32Products},
    {&B::kh,            kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kFp32Products},
    {&B::kt,            kIntraChunk, 0,                          0, 0, 0,  64, 0, 0,    kFp32Products},
    {&B::qk_block,      kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kBf16Products},
    {&B::qk_chunk,      kIntraChunk, 0,                          1, 0, 0,   0, 0, 0,    kBf16Products},
    {&B::keys,          kIntraChunk, 0,                          0, 0, 0, 128, 0, 0,    kBf16Products},
    {&B::aqk,           kIntraChunk, kOutput,                    0, 0, 64,  0, 0, 0,    kAlways},
    {&B::l,             kIntraChunk, 0,                          0, 0, 64,  0, 0, 0,    kAlways},
    {&B::u,             kIntraChunk, kInterChunk,                0, 1, 0,   0, 0, 0,    kStaged},
    {&B::w,             kIntraChunk, kInterChunk,                1, 0, 0,   0, 0, 0,    kStaged},
    {&B::solve_scratch, kIntraChunk, 0,                          0, 0, 0,   0, 0, 64 * 384, kFp32Products},
    {&B::kg,            kInterChunk, 0,                          1, 0, 0,   0, 0, 0,    kBf16Products},
    {&B::v_new,         kInterChunk, kOutput,                    0, 1, 0,   0, 0, 0,    kAlways},
    {&B::s_pairs,       kInterChunk, kOutput,                    0, 0, 0,   0, 1, 0,    kBf16Products},
    {&B::h,             kInterChunk, kOutput,                    0, 0, 0,   0, 2, 0,    kStaged},
    {&B::row,           kGateCumsum, 0,                          0, 0, 0,   0, 0, 256,  kAlways},
};
// clang-format on

bool Includes(Which which, const BufferRow& row) {
  switch (which) {
    case Which::kFused:
      return row.use == kAlways || row.use == kFp32Products;
    case Which::kFusedBf16:
      return row.use == kAlways || row.use == kBf16Products;
    case Which::kStagedKept:
      return row.use != kBf16Products && row.read_by != 0;
    case Which::kStagedLocal:
      return row.use != kBf16Products && row.read_by == 0;
    default:
      return row.use != kBf16Products;
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
  buffers->ldk = static_cast<int>(dims.ldk);
  buffers->ldv = static_cast<int>(dims.ldv);
  for (const BufferRow& row : kBufferTable) {
    if (!Includes(which, row)) continue;
    buffers->*row.member = base;
    base += FloatsOf(row, dims);
  }
  if (which != Which::kFusedBf16) buffers->kg = buffers->kh;  // kh is done with when kg begins
}

}  // namespace kda::cpu
