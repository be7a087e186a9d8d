// The table of a chunk's intermediates: sizes and offsets both derive from it.
#ifndef KDA_CPU_BUFFERS_H_
#define KDA_CPU_BUFFERS_H_

#include <cstdint>

#include "cpu/chunk.h"

namespace kda::cpu {

enum Stage : unsigned { kGateCumsum = 1, kIntraChunk = 2, kInterChunk = 4, kOutput = 8 };

// The forms that have a buffer.
enum Use { kAlways, kFp32Operands, kBf16Operands, kSplitOperands, kStaged };

// What the one pass in two halves (forward_split.cc) needs it for, of which
// the second has a part of V.
enum class Apart {
  kOneHalf,   // in one of them
  kEnds,      // in the first, and in the second where the state is wanted within the chunk
  kOperands,  // from the first to the second
};

struct BufferRow {
  float* ChunkBuffers::*member;
  Stage written_by;
  // Other stages that read it in the staged form, which keeps it in memory until then.
  unsigned read_by;
  int per_row_k, per_row_v, per_row;  // floats a row: this times K, V and 1 ..
  int fixed_k, fixed_half_kv, fixed;  // .. and once per chunk: this times K, K V / 2 and 1
  Use use;
  Apart apart;
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

int64_t FloatsApart(Which which, const ChunkDims& dims, Apart apart);
// Where a chunk's are.
struct ApartBases {
  float *one_half, *ends, *operands;
};
void LayOutApart(Which which, const ChunkDims& dims, ApartBases bases, ChunkBuffers* buffers);
// Another place for those operands that have other values where the state
// is wanted within the chunk.
int64_t EndFloats(Which which, const ChunkDims& dims);
void LayOutEnd(Which which, const ChunkDims& dims, float* base, ChunkBuffers* buffers);

}  // namespace kda::cpu

#endif  // KDA_CPU_BUFFERS_H_
