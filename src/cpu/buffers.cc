#include "cpu/buffers.h"

namespace kda::cpu {

using B = ChunkBuffers;

// clang-format off
const BufferRow kBufferTable[kBufferRows] = {
    // member         written by   read later by               K  V  1   K KV fixed  staged only
    {&B::g,             kGateCumsum, kIntraChunk | kInterChunk,  1, 0, 0,  0, 0, 0,    false},
    {&B::decay,         kGateCumsum, kIntraChunk | kInterChunk,  1, 0, 0,  0, 0, 0,    false},
    {&B::prefix,        kGateCumsum, kIntraChunk,                1, 0, 0,  0, 0, 0,    false},
    {&B::block_log,     kGateCumsum, kInterChunk,                0, 0, 0,  4, 0, 0,    false},
    {&B::block_lost,    kGateCumsum, kInterChunk,                0, 0, 0,  4, 0, 0,    false},
    {&B::block_decay,   kGateCumsum, kIntraChunk,                0, 0, 0,  4, 0, 0,    false},
    {&B::q,             kIntraChunk, 0,                          1, 0, 0,  0, 0, 0,    false},
    {&B::k,             kIntraChunk, kInterChunk,                1, 0, 0,  0, 0, 0,    false},
    {&B::beta,          kIntraChunk, 0,                          0, 0, 1,  0, 0, 0,    false},
    {&B::qh,            kIntraChunk, kOutput,                    1, 0, 0,  0, 0, 0,    false},
    {&B::kh,            kIntraChunk, 0,                          1, 0, 0,  0, 0, 0,    false},
    {&B::kt,            kIntraChunk, 0,                          0, 0, 0, 64, 0, 0,    false},
    {&B::aqk,           kIntraChunk, kOutput,                    0, 0, 64, 0, 0, 0,    false},
    {&B::l,             kIntraChunk, 0,                          0, 0, 64, 0, 0, 0,    false},
    {&B::u,             kIntraChunk, kInterChunk,                0, 1, 0,  0, 0, 0,    true},
    {&B::w,             kIntraChunk, kInterChunk,                1, 0, 0,  0, 0, 0,    true},
    {&B::solve_scratch, kIntraChunk, 0,                          0, 0, 0,  0, 0, 64 * 384, false},
    {&B::v_new,         kInterChunk, kOutput,                    0, 1, 0,  0, 0, 0,    false},
    {&B::h,             kInterChunk, kOutput,                    0, 0, 0,  0, 1, 0,    true},
    {&B::row,           kGateCumsum, 0,                          0, 0, 0,  0, 0, 256,  false},
};
// clang-format on

bool Includes(Which which, const BufferRow& row) {
  switch (which) {
    case Which::kFused:
      return !row.staged_only;
    case Which::kStagedKept:
      return row.read_by != 0;
    case Which::kStagedLocal:
      return row.read_by == 0;
    default:
      return true;
  }
}

int64_t FloatsOf(const BufferRow& row, const ChunkDims& dims) {
  const int64_t per_row = row.per_row_k * dims.ldk + row.per_row_v * dims.ldv + row.per_row;
  return per_row * dims.rows + row.fixed_k * dims.ldk + row.fixed_kv * dims.ldk * dims.ldv +
         row.fixed;
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
  buffers->kg = buffers->kh;  // kh is done with when kg begins
}

}  // namespace kda::cpu
