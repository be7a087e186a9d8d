// The mega kernel's memory and what its stages share.
#ifndef KDA_TPU_MEGA_KERNEL_H_
#define KDA_TPU_MEGA_KERNEL_H_

#include <functional>
#include <string>
#include <vector>

#include "tpu/ir/builder.h"
#include "tpu/mega/emission.h"
#include "tpu/mega/mega.h"
#include "tpu/problem.h"

namespace kda::tpu::mega {

using ir::Builder;
using ir::Concat;
using ir::DType;
using ir::Index;
using ir::Ref;
using ir::Shape;
using ir::Value;

inline constexpr int64_t kBlock = 32;        // rows of a block: half a chunk
inline constexpr int64_t kBetaWindow = 256;  // tokens of beta fetched for a chunk
inline constexpr int64_t kBufferRows = 128;  // a chunk's rows are the last 64; see Copies

// bf16 matrices [n][rows, 128], kept as 32-bit words, two rows in one: whole registers.
class Packed {
 public:
  Packed() = default;
  Packed(Builder* b, const std::string& name, int64_t n, int64_t rows)
      : ref_(b->Scratch(name, DType::kI32, {n, rows / 2, kDim})) {}
  Value Words(int i) const { return ir::Load(ref_.At(i)); }
  Value Words(int i, int64_t row, int64_t rows) const { return ir::Load(Part(i, row, rows)); }
  void SetWords(int i, Value words) const { ir::Store(ref_.At(i), words); }
  void SetWords(int i, int64_t row, int64_t rows, Value words) const {
    ir::Store(Part(i, row, rows), words);
  }
  Value Get(int i) const { return ir::Bits(Words(i), DType::kBF16); }
  Value Get(int i, int64_t row, int64_t rows) const {
    return ir::Bits(Words(i, row, rows), DType::kBF16);
  }
  void Set(int i, Value bf16) const { SetWords(i, ir::Bits(bf16, DType::kI32)); }
  void Set(int i, int64_t row, int64_t rows, Value bf16) const {
    SetWords(i, row, rows, ir::Bits(bf16, DType::kI32));
  }
  const Ref& ref() const { return ref_; }

 private:
  Ref Part(int i, int64_t row, int64_t rows) const { return ref_.At(i).Rows(row / 2, rows / 2); }
  Ref ref_;
};

// The chunks' table, in SMEM: one entry per chunk, in a ring.
struct ChunkTable {
  Ref token;        // the first, along T
  Ref valid;        // tokens of a sequence that is not skipped; rows beyond are zeros
  Ref rows;         // rows of o to write: as many tokens as there are, skipped or not
  Ref first, last;  // 1: of its sequence
  Ref sequence;
  Ref state;       // place in the ring of states
  Ref checkpoint;  // row to write after it, -1: none; only with checkpoints
};

// What the walk over the sequences keeps of the next chunk.
enum Walk : int64_t {
  kNextSequence,
  kOffset,         // tokens of it before the chunk
  kStatePlace,     // in the ring of states
  kToCheckpoint,   // tokens to the next checkpoint; only with checkpoints
  kCheckpointRow,  // its row
  kWalkSize
};

inline void Require(bool ok, const char* what) {
  if (!ok) throw ir::BuildError(what);
}

inline Value ToBF16(Value x) { return Cast(x, DType::kBF16); }
// x as the sum of two bf16 numbers, good to 2^-17: its upper half, and what that leaves.
struct Halves {
  Value high, low;
};
Halves InHalves(Value x);
Value Ones(Value mask);                 // 1.0 where it holds, in fp32
Value BlockDiagonal(Value a, Value b);  // [a | 0; 0 | b]

// A pair of heads' vectors of one chunk.
struct Pair {
  Value head[2];
};

// Whether the gate's bound allows the faster intra_chunk stage.
bool HasBoundedWay(const TpuProblem& problem);

struct Kernel {
  Kernel(Builder* builder, const TpuProblem& p, const MegaOptions& o);

  // kernel.cc, of the constructor
  void DeclareArguments();
  void DeclareScratch();
  void DeclareTables();

  // chunks.cc: the table, copies in and out, states.
  void StartWalk();
  Value CountChunks();
  void WalkToCheckpoint(const Index& at, Value rows, Value valid, Value live, Value ends);
  void WalkTo(Value chunk);  // fills the entry of the chunk after those so far
  Value Entry(const Ref& field, Value chunk) const;
  // Chunk u of a step in stage A, and in stage C.
  Value ChunkA(Value of_step, int u) const { return of_step * unroll + u; }
  Value ChunkC(Value of_step, int u) const { return (of_step - 2.0) * unroll + u; }
  void StartInputs(Value step, Value slot);
  void WaitInputs(Value slot);
  void MakeZeros(Value step);
  Value SlotOf(const Ref& slots, Value sequence) const;
  Value Kept(Value sequence) const;
  void WaitStates(Value step);
  void MoveStateIn(Value step);
  void MoveStateOut(Value step);
  void StoreCheckpoint(Value step);
  void ForPieces(Value rows, const std::function<void(Value from, int64_t n)>& body);
  void StartOutput(Value step);
  void WaitOutput(Value step);
  void ZeroUnowned(Value from);
  void Finish(Value steps);

  // An item is a pair of heads of one of the step's chunks: item = u * pairs + pair. Its rows in a
  // buffer, in fp32, and back.
  int ChunkOf(int item) const { return item / pairs; }
  int PairOf(int item) const { return item % pairs; }
  Ref StateOf(int item, int e) const;  // [128, 128]
  Pair LoadPair(const Ref& buffer, int item) const;
  Pair LoadKeys(const Ref& buffer, int item) const;  // normalised where the problem wants it
  void StorePair(int item, Value low, Value high) const;

  // The stages, in the order of their names' files; each returns what it does to an item.
  void PrepareConstants();
  void PrepareGates();
  void PrepareStep();
  Value BetaStart(Value chunk) const;  // the window's first token
  void PrepareBeta();
  std::vector<Stage> GateCumsum();
  std::vector<Stage> IntraChunk();           // bounded gates
  std::vector<Stage> IntraChunkUnbounded();  // any gate
  void PrepareLevels();
  std::vector<Stage> Solve();
  std::vector<Stage> InterChunk();
  void KeepLn(int item, Value ln);
  std::vector<Stage> Refine();  // of v_new, where precise
  void WidenDecay(int head);    // head of the step: 2 item, 2 item + 1
  std::vector<Stage> Output();
  void FinishStep();

  Value LevelSums(int pair, int matrix) const;  // intra_chunk_unbounded.cc
  void LevelOperands(int pair, int level);
  void LevelProduct(int pair, int level);
  void UnboundedEnds(int pair);
  void NormaliseRows(int pair);
  Pair Queries(int pair) const;  // normalised where the problem wants it
  Pair Keys(int pair) const;
  Value BetaRow(int pair) const;     // [1, 128], along a pair's lanes
  Value Weights(Value words) const;  // solve.cc
  Value Quad(Value product) const;

  Builder* const b;
  const TpuProblem problem;
  const MegaOptions options;
  const int64_t heads;   // of a step
  const int64_t groups;  // of heads
  const int pairs;
  const int unroll;          // chunks of a step
  const int items;           // unroll * pairs
  const int64_t ring;        // chunks whose table entries are kept
  const int64_t state_ring;  // sequences whose states are on chip; one more is the dummies'
  const int64_t copy_rows;   // of a chunk that one copy moves: 64, or all there are
  bool bounded;              // exponents of a block fit fp32 (see gate_cumsum.cc)

  // Arguments.
  Ref cu_seqlens, initial_slots, final_slots;
  Ref a_log, dt_bias, q, k, v, g, beta, initial_state;
  Ref o, final_state, checkpoints;

  // Scratch.
  Ref q_in, k_in, v_in, g_in;               // [2, unroll, kBufferRows, heads, 128] bf16
  Ref beta_in;                              // [2, unroll, heads, kBetaWindow]
  Ref o_out;                                // [2, unroll, 64, heads, 128] bf16
  Ref state;                                // [state_ring + 1, heads, 128, 128] fp32
  Ref gate_scale, gate_shift, gate_factor;  // [heads, 128]
  Ref beta_lanes;                           // [unroll * heads, 128]: beta along the lanes of a pair
  Packed prefix_matrix;                     // [1][80, 128]; unbounded gates:
  Packed level_sums;                        // [4][64, 128]
  Ref level_map;                            // [64, 128]
  Ref unit_rows;       // [4 items, 64, 128]: q, then k of a pair's heads, normalised
  Packed level_masks;  // [6][32, 128]
  Packed l_both, l_diag, l_off, t_work, t_done, product;
  Packed qk_next, qk, aqk_next, aqk, aqk_low_next, aqk_low;
  Packed ln_next, ln, ln_low_next, ln_low;  // only where precise: Ln for Refine
  Ref kg_next, kg;                          // [items, 128, 128], fp32
  Ref decay_new, decay_next, decay;         // [unroll * heads, 128]: e^G[last]
  Ref decay_wide;           // [unroll * heads, 128, 128]: decay down the rows of a state
  Ref beta_next, beta_now;  // [items, 128]
  ChunkTable table;
  Ref walk;  // SMEM: of the next chunk, by Walk
  Ref in_semaphore, v_semaphore, o_semaphore, state_in_semaphore, state_out_semaphore,
      checkpoint_semaphore;

  // Of the step being written.
  Value step, slot, head0;
  Value group;
  std::vector<Value> valid_a, valid_c, state_c;     // per chunk of the step
  Value row, lane;                                  // iota [64, 128]
  Value causal, low_lanes;                          // masks
  Value strictly_lower;                             // of a 32-row quad
  Value lanes_h0, lanes_h1, lanes_low, lanes_high;  // word masks [16, 128]
  Value decay_columns;                              // [128, unroll * heads]
  std::vector<Value> gate_hi_lo, prefix, x0, x1;
  std::vector<Pair> exponents, q_up, k_up, k_down, k_cross, q_start, k_start, k_end;
  std::vector<Pair> read, rest;
  std::vector<Value> v_new, left_over_of, update;
  std::vector<Halves> kg_columns;
  // What an order of emission must respect: a pair's memory is read before it is written again.
  std::vector<bool> qk_read, l_read, t_read, state_done;
  bool beta_ready = false;          // beta_lanes are the step's
  std::vector<bool> decay_widened;  // per head of the step
};

}  // namespace kda::tpu::mega

#endif  // KDA_TPU_MEGA_KERNEL_H_
