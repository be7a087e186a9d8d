// Tokens between the caller's packed rows and 64-row chunks, as operations on arrays.
//
// Aligned: every sequence begins at a row that is a multiple of 64; what is between is zeros. There
// are as many chunks as sequences of any lengths could need: ceil((T + 63 N) / 64).
#ifndef KDA_TPU_LADDER_LAYOUT_H_
#define KDA_TPU_LADDER_LAYOUT_H_

#include <cstdint>

#include "tpu/hlo/module.h"

namespace kda::tpu {

int64_t AlignedChunks(int64_t tokens, int64_t sequences);

// All i32, computed from cu_seqlens [N + 1].
struct ChunkTables {
  hlo::Value first_chunk, chunk_count;  // [N]
  hlo::Value sequence, begins, ends;    // [chunks], of inter_chunk's flat grid
  hlo::Value rows;                      // [chunks]: tokens in it
  hlo::Value start;    // [chunks]: its first aligned row; 0 where it does not exist
  hlo::Value row;      // [64 chunks]: the same of rows; 64 chunks where none is
  hlo::Value source;   // [64 chunks]: the packed row an aligned one comes from
  hlo::Value holds;    // [64 chunks] i1: there is one
  hlo::Value aligned;  // [T]: the aligned row a packed one comes from
  hlo::Value owned;    // [T] i1: it is some sequence's
};
ChunkTables MakeChunkTables(hlo::Value cu_seqlens, int64_t tokens);

// [T, ..] to [64 chunks, ..] and back.
hlo::Value Align(const ChunkTables& tables, hlo::Value packed);
hlo::Value Unalign(const ChunkTables& tables, hlo::Value aligned);

// [64 chunks, H, D] to what kernels take, [H, 64 chunks, D], and back: by one transpose, or, as
// published, by gathering every chunk and scattering every row.
hlo::Value ToHeads(hlo::Value aligned);
hlo::Value FromHeads(hlo::Value by_head);
hlo::Value GatherChunks(const ChunkTables& tables, hlo::Value aligned);
hlo::Value ScatterChunks(const ChunkTables& tables, hlo::Value by_head);

}  // namespace kda::tpu

#endif  // KDA_TPU_LADDER_LAYOUT_H_
