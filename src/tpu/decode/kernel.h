// The decode kernel's memory and what its parts share.
#ifndef KDA_TPU_DECODE_KERNEL_H_
#define KDA_TPU_DECODE_KERNEL_H_

#include "tpu/decode/decode.h"
#include "tpu/ir/builder.h"

namespace kda::tpu::decode {

using ir::Builder;
using ir::DType;
using ir::Index;
using ir::Ref;
using ir::Shape;
using ir::Value;

inline constexpr int64_t kHeads = 8;  // of an item
inline constexpr int64_t kRing = 8;   // items whose states are on chip, 512 KB each; a power of two
inline constexpr int64_t kAhead = 4;  // items whose states are on their way in
inline constexpr int64_t kBlock = 16;  // tokens of a grid step
inline constexpr int kBetaSteps = 3;   // 2^3 grid steps for each 128 tokens, the lanes of beta
static_assert(kBlock << kBetaSteps == kDim, "beta's windows are those of whole grid steps");

enum Walk : int64_t { kNextSequence, kNextGroup, kWalkSize };

// Matrices of `rows`, one row per head. |k| = |q| = 1 unless the kernel normalises.
enum Row : int64_t {
  kV,   // beta v / |k|
  kK,   // beta / |k|^2      r = kV - kK (Sd^T k)
  kQ,   // scale / |q|       o = kQ (Sd^T q) + kQK r
  kQK,  // scale q . k / |q|
};

struct Kernel {
  Kernel(Builder* builder, const TpuProblem& problem);

  void WriteStep();

  // copies.cc
  void StartWalk();
  void ReadAhead(Value item);  // its table entry and the copy of its state
  void WaitState();
  void StartWrite();
  void WaitWrite(Value place);
  Ref StateOf(const Ref& array, Value slot, Value group) const;
  Value SlotOf(const Ref& slots, Value sequence) const;

  // gate_cumsum.cc
  void PrepareGates();
  Value GateCumsum(Value group, Value g) const;  // e^g

  // intra_chunk.cc
  void PrepareBeta();
  void IntraChunk(Value item);  // of an item of the grid step, for InterChunk and Output
  void IntraChunkOfNext();

  // inter_chunk.cc
  void InterChunk();  // of all heads of the item, each with its Output
  Value RowOf(Row row, int64_t head) const;

  // output.cc
  void Output(int64_t head, Value queries, Value decayed, Value r);
  void StoreOutput();

  Builder* const b;
  const TpuProblem problem;
  const int64_t groups;  // items of a token
  const int64_t block;   // tokens of a grid step

  // Arguments. Items in turn: [N groups, 8, 128].
  Ref initial_slots, final_slots;
  Ref a_log;    // [H], in SMEM
  Ref dt_bias;  // [groups, 8, 128]
  Ref q, k, v, g, o;
  Ref beta;           // [N, H], or [H, up to 128 tokens]
  Ref initial_state;  // [N or slots, H, 128, 128]
  Ref final_state;

  // Scratch.
  Ref states;                  // [kRing, 8, 128, 128]
  Ref gate_scale, gate_shift;  // [groups, 8, 128]
  Ref betas;                   // [H, up to 128 tokens] fp32, activated
  // Of the item being computed and of the next one, in turn:
  Ref columns;  // [2, 128, 16]: e^g of the heads, then k (low half) and q (high half)
  Ref rows;     // [2, 4, 8, 128]: one matrix per Row
  Ref o_rows;   // [8, 128]
  // In SMEM, per place in the ring: its item, and whether its state is being written.
  Ref sequence_of, group_of, writing;
  Ref walk;  // the next item to read, by Walk
  Ref in_semaphore, out_semaphore;

  // Of the grid step and of the item being written.
  Value step, count, item, place, turn, local;
};

}  // namespace kda::tpu::decode

#endif  // KDA_TPU_DECODE_KERNEL_H_
