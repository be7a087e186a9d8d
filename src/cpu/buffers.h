// The table of a chunk's intermediates: sizes and offsets both derive from it.
#ifndef KDA_CPU_BUFFERS_H_
#define KDA_CPU_BUFFERS_H_

#include <cstdint>

#include "cpu/chunk.h"

namespace kda::cpu {

enum Stage : unsigned { kGateCumsum = 1, kIntraChunk = 2, kInterChunk = 4, kOutput = 8 };

// The forms that have a buffer.
enum Use { kAlways, kFp32Operands, kBf16Operands, kSplitOperands, kStaged };

struct BufferRow {
  float* ChunkBuffers::*member;
  Stage written_by;
  // Other stages that read it in the staged form, which keeps it in memory until then.
  unsigned read_by;
  int per_row_k, per_row_v, per_row;  // floats a row: this times K, V and 1 ..
  int fixed_k, fixed_half_kv, fixed;  // .. and once per chunk: this times K, K V / 2 and 1
  Use use;
  bool kept_apart;  // kept from intra_chunk to inter_chunk and output where those run apart
};

inline constexpr int kBufferRows = 31;
extern const BufferRow kBufferTable[kBufferRows];

struct ChunkDims {
  int64_t ldk, ldv;  // padded K, V
  int64_t rows;      // padded to 16
};

enum class Which {
  kFused,       // one pass, fp32 products
  kFusedBf16,   // one pass, bf16 products
  kFusedSplit,  // one pass, bf16 products and split ones
  kStagedAll,   // four stages (fp32 products)
  kStagedKept,  // those kept between stages
  kStagedLocal  // the others
};

bool Includes(Which which, const BufferRow& row);
int64_t FloatsOf(const BufferRow& row, const ChunkDims& dims);
int64_t FloatsOf(Which which, const ChunkDims& dims);
// Points the members that `which` includes into `base`, one after the other in table order.
void LayOut(Which which, const ChunkDims& dims, float* base, ChunkBuffers* buffers);

// The one pass in two halves (forward_split.cc): what is kept of every chunk, which does not depend
// on V, and what one worker has.
int64_t KeptFloats(Which which, const ChunkDims& dims);
int64_t LocalFloats(Which which, const ChunkDims& dims);
// Where in the kept the operands begin; those before, only what ends within the chunk needs.
int64_t OperandsAt(Which which, const ChunkDims& dims);
void LayOutApart(Which which, const ChunkDims& dims, float* kept, float* local,
                 ChunkBuffers* buffers);
// What of the kept stage inter_chunk writes, in a place of its own: a checkpoint within the chunk has
// other values there.
int64_t EndFloats(Which which, const ChunkDims& dims);
void LayOutEnd(Which which, const ChunkDims& dims, float* base, ChunkBuffers* buffers);

}  // namespace kda::cpu

#endif  // KDA_CPU_BUFFERS_H_
