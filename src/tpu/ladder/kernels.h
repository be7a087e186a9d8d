// The kernels of the ladder (ladder.h): the four stages on blocks of memory.
//
// Arrays are head-major, [H, T, D] with T = 64 chunks, but where `native` says [T, H, D] for q, k,
// v, g, o and [T, H] for beta. Chunk c is rows 64 c .. 64 c + 63 and holds `rows[c]` tokens of one
// sequence; what follows them is zeros in q, k, v, beta and anything in g.
#ifndef KDA_TPU_LADDER_KERNELS_H_
#define KDA_TPU_LADDER_KERNELS_H_

#include <cstdint>

#include "tpu/ir/program.h"
#include "tpu/ladder/gate_cumsum.h"
#include "tpu/ladder/intra_chunk.h"

namespace kda::tpu {

struct LadderKernel {
  int64_t heads = 0, chunks = 0, sequences = 0;
  // Heads of one grid step: 1, or all of them. `serial`: one after the other in a loop; else stage
  // by stage, side by side, on the native layout.
  bool head_block = false;
  bool serial = false;
  bool native() const { return head_block && !serial; }
  // Grid of the recurrence: 0: the chunks; else N x H x this, for sequences
  // of at most as many chunks.
  int64_t longest = 0;
  GateForm gate;
  IntraOptions intra;
  bool l2norm = false;
  double scale = 1;
  ir::DType gate_dtype = ir::DType::kBF16, beta_dtype = ir::DType::kBF16;
  int64_t vmem_limit = 0;
};

// rows [chunks]; g, a [H, 1, 128], bias [H, 1, 128] -> G.
ir::Program GateCumsumKernel(const LadderKernel& k);

// q, k, v, G, beta [H, T, 1] -> u, w, kg, Aqk, T if asked for.
ir::Program IntraKernel(const LadderKernel& k);

// Sequence tables, u, w, kg, G, S_initial [N, H, 128, 128] -> v_new f32, S before each
// chunk [H, chunks, 128, 128] f32, final states, which share memory with S_initial: those
// of empty sequences stay. Tables: of the flat grid, sequence, begins and ends [chunks]
// i32: of which sequence a chunk is, and whether its first or last; of the other, first
// chunk and chunk count [N].
ir::Program InterKernel(const LadderKernel& k);

// q, v_new, G, S, Aqk -> o.
ir::Program OutputKernel(const LadderKernel& k);

// Stages 1 and 2: rows [chunks]; q, k, v, g, beta, a, bias -> G, u, w, kg, Aqk.
ir::Program GateIntraKernel(const LadderKernel& k);

// VMEM of that one's windows, without writing its body.
int64_t GateIntraWindows(const LadderKernel& k);

// Stages 3 and 4: tables; q, u, w, kg, G, Aqk, S_initial -> o, final states.
ir::Program InterOutputKernel(const LadderKernel& k);

// VMEM of that one's windows and scratch.
int64_t InterOutputWindows(const LadderKernel& k);

}  // namespace kda::tpu

#endif  // KDA_TPU_LADDER_KERNELS_H_
