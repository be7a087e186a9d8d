// The stages, compiled for one instruction set: isa/<name>.cc fills one of these, a row of
// isa_table.cc points to it.
#ifndef KDA_CPU_KERNELS_H_
#define KDA_CPU_KERNELS_H_

#include "cpu/buffers.h"
#include "cpu/chunk.h"
#include "cpu/state_io.h"

namespace kda::cpu {

struct Kernels {
  Which buffers;  // of the one pass
  // Around every use on a thread (KernelSession); nullptr: nothing to do.
  void (*enter)();
  void (*leave)();
  // Stage gate_cumsum: g -> g, decay, prefix, the block sums.
  void (*gate_cumsum)(const HeadChunk&, const ChunkBuffers&);
  // Stage intra_chunk: q, k, beta -> aqk, l, qh, kh (and the loaded q, k, beta).
  void (*intra_chunk_products)(const HeadChunk&, const ChunkBuffers&);
  // This, solve_uw and delta_rule_uw only with fp32 operands: nullptr where products take bf16.
  void (*intra_chunk_elementwise)(const HeadChunk&, const ChunkBuffers&);
  void (*solve_uw)(const HeadChunk&, const ChunkBuffers&, Solver);
  // Stage inter_chunk: v (or u, w) and the state -> v_new; the state after `rows` rows, first what
  // of it does not depend on V.
  void (*delta_rule)(const HeadChunk&, const ChunkBuffers&, ConstState, Solver);
  void (*delta_rule_uw)(const HeadChunk&, const ChunkBuffers&, ConstState);
  void (*decay_to_end)(const HeadChunk&, const ChunkBuffers&, int rows);
  void (*advance_state)(const HeadChunk&, const ChunkBuffers&, int rows, ConstState, State);
  // Stage output: o.
  void (*output)(const HeadChunk&, const ChunkBuffers&, ConstState);
  // One token of the recurrence, of some heads.
  void (*decode_token)(const DecodeHead*, int count);
  void (*load_state)(const StateShape&, const char*, State);
  void (*store_state)(const StateShape&, ConstState, char*);
  void (*round_state_to_bf16)(int dim_k, State);
};

// x86-64; the last two with bf16 products
extern const Kernels kBaselineKernels, kAvx2Kernels, kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels, kAmxKernels;
// aarch64
extern const Kernels kNeonKernels;

}  // namespace kda::cpu

#endif  // KDA_CPU_KERNELS_H_
