// What the CPU stages work on: one chunk of at most 64 tokens of one value head.
#ifndef KDA_CPU_CHUNK_H_
#define KDA_CPU_CHUNK_H_

#include <cstdint>

namespace kda::cpu {

inline constexpr int kChunkRows = 64;  // BT
inline constexpr int kBlockRows = 16;  // SB: rows of a sub-block
inline constexpr int kRowPairs = kChunkRows / 2;
inline constexpr int kDimAlign = 16;  // rows of K or V values are padded with zeros to this
inline constexpr int kMaxDimPadded = 256;

// Where the sub-block that begins at row `start` ends.
static constexpr int BlockEnd(int start, int rows) {
  return start + kBlockRows < rows ? start + kBlockRows : rows;
}

enum class DType : int32_t { kF32 = 1, kBF16 = 2, kF16 = 3 };  // as kda_dtype
static constexpr int SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
enum class Gate : int32_t { kLog = 0, kBounded = 1, kSoftplus = 2 };
enum class Solver : int32_t { kSubstitution = 1, kBlock = 2, kNeumann64 = 3 };

// Rows of a tensor in the caller's memory: row i is at data + i * stride (bytes).
struct Rows {
  const char* data;
  int64_t stride;
  DType dtype;
};

// The gate's parameters of one value head. exp(A_log) may lie far outside fp32 while its product
// with the gate's input does not, hence the power of two of its own.
struct GateParams {
  Gate gate;
  float mantissa;        // of exp(A_log), in [1, 2)
  float exponent;        // its power of two, a whole number ..
  float power[2];        // .. as two factors within fp32
  float bound;           // lower_bound
  const float* dt_bias;  // [K], nullptr: 0
};

// What is wanted after a chunk: the rows of the next one, which may be another head's with a state
// of its own. For prefetching only: what is nullptr is not asked for.
struct Upcoming {
  int rows = 0;    // of q, k and g; 0: not known
  int v_rows = 0;  // of v, which may be another chunk's
  Rows q, k, v, g;
  const char* state = nullptr;  // [K, V] fp32, dense
};

// Inputs and output of a chunk, as they lie in the caller's memory.
struct HeadChunk {
  int rows;  // 1 .. 64 tokens
  int dim_k, dim_v;
  bool asked_for;        // memory was asked for the rows by the chunk before
  const Upcoming* next;  // nullptr: nothing is asked for
  Rows q, k, v, g, beta;
  GateParams gate;
  bool beta_logits;
  bool qk_l2norm;
  float scale;
  char* o;  // row i at o + i * o_stride (bytes)
  int64_t o_stride;
  DType o_dtype;
};

// Intermediates of a chunk, fp32. K- and V-wide rows are `ldk` and `ldv` long, zero past dim_k and
// dim_v; with bf16 products g, decay, q, k and the operands made of them lie in panels
// (mma/tile.h). The square ones are [64, 64]. Rows past `rows` reach no row that exists, and are
// neither read nor written but for tiles of 16 rows (mma/amx.h). The table of buffers (buffers.cc)
// says which stage writes what and how large it is.
struct ChunkBuffers {
  int ldk = 0, ldv = 0;
  // gate_cumsum
  float* g = nullptr;      // [64, K] activated gate, natural logarithm, at least -200
  float* decay = nullptr;  // [64, K] e^g
  // [64, K] product of `decay` from the first row of the 16-row block to here
  float* prefix = nullptr;
  // [4, K] sum of g over each 16-row block, without its rounding error: block_log - block_lost
  float* block_log = nullptr;
  float* block_lost = nullptr;
  float* block_decay = nullptr;  // [4, K] e^sum
  // intra_chunk
  // [64, K] (L2-normalised; with bf16 products and without that bf16, as the caller gave them)
  float* q = nullptr;
  float* k = nullptr;     // [64, K]
  float* beta = nullptr;  // [64]
  float* qh = nullptr;    // [64, K] q e^G
  float* kh = nullptr;    // [64, K] k e^G
  float* kt = nullptr;    // [K, 64] k decayed to the start of the row block at hand, transposed
  float* aqk = nullptr;   // [64, 64] lower triangle of Aqk / scale
  float* l = nullptr;     // [64, 64] strict lower triangle of L
  float* u = nullptr;     // [64, V] (I + L)^-1 (beta v)        four-stage form only
  float* w = nullptr;     // [64, K] (I + L)^-1 (beta k e^G)    four-stage form only
  // intra_chunk with bf16 products: operands in bf16, two to a float.
  // [K / 32, 2, 64, 32] q and k decayed from the start of their 16-row block
  float* qk_block = nullptr;
  float* qk_chunk = nullptr;  // [K / 32, 2, 64, 32] q e^G and k e^G
  // [4, K / 2, 64] pairs of channels: for each row block, the keys before it relative to its start,
  // and what rounding to bf16 took from them
  float* keys = nullptr;
  float* keys_low = nullptr;
  // The same where fp32 products are split (kSplitProducts): high parts, then low parts
  float* aqk_split = nullptr;  // [2, 64, 64] bf16
  float* l_split = nullptr;    // [2, 64, 64] bf16
  float* kg_split = nullptr;   // [2, K, 64] bf16, kg transposed
  float* v_split = nullptr;  // [2, 32, V] pairs of rows of v_new; rows that do not exist are zeros
  float* solve_scratch = nullptr;  // solver neumann64: 2 [64, 64] and [64, max(K, V)]
  // inter_chunk
  float* kg = nullptr;  // [64, K] k e^(G[last] - G); one pass of fp32 has it over kh
  // [2, K] e^G[last], the state's own decay, as a sum of two (ExpSplit): high parts, then low parts
  float* state_decay = nullptr;
  float* v_new = nullptr;    // [64, V]
  float* s_pairs = nullptr;  // [K / 2, V] pairs of channels: the state before the chunk in bf16
  float* h = nullptr;        // [K, V] state before the chunk     four-stage form only
  float* row = nullptr;      // [256] one converted row, with bf16 products
};

// The state [K, V] in fp32, row c at data + c * ld.
struct ConstState {
  const float* data;
  int64_t ld;
};
struct State {
  float* data;
  int64_t ld;
};

// What decode works out of a token's vectors before it reads the state.
struct TokenVectors {
  alignas(64) float k[kMaxDimPadded];
  alignas(64) float q_decayed[kMaxDimPadded];
  alignas(64) float k_decayed[kMaxDimPadded];
  alignas(64) float hi[kMaxDimPadded];  // decay = hi + lo
  alignas(64) float lo[kMaxDimPadded];
  alignas(64) float v[kMaxDimPadded];
  alignas(64) float o[kMaxDimPadded];
  float beta;
  float qk;  // q . k
};

// One token of one head: row 0 of the chunk, the state before and after it, which may be one, and
// room.
struct DecodeHead {
  HeadChunk chunk;
  ConstState now;
  State next;
  TokenVectors* vectors;
};

// Heads that are decoded together: all their vectors are worked out first, then one state passes
// after the other. Between two states the stores of that work would wait for the many of the state
// before, and memory for them (64 tokens of 16 heads, Zen 5, one thread: 1.05 times as fast
// with eight together as one by one).
inline constexpr int kDecodeHeads = 8;

}  // namespace kda::cpu

#endif  // KDA_CPU_CHUNK_H_
