// The decode kernel: one token of every sequence, states updated in place in a pool in HBM.
//
//   Sd    = e^g S                                 S [K, V] fp32, g per row
//   r     = beta (v - Sd^T k)
//   o     = scale (Sd^T q + (q . k) r)
//   S     = Sd + k r^T
//
// The states' way from HBM and back is all that matters: 64 KB in and 64 KB out for each head and
// token, against some hundred cycles of arithmetic. The kernel is a loop over items, an item being
// eight heads of one sequence; a ring of buffers in VMEM holds items on their way in, the one
// being computed, in place, and those on their way out. All arithmetic is fp32 on the vector
// units; no state is ever rounded.
//
// Along the rows of a state a key channel's numbers are the same in all lanes, and bringing
// them there is the slowest part of the arithmetic: a lane broadcast for every 8 rows. q and k
// are bf16 (with qk_l2norm their norms are put on r and o instead) and share one: two
// broadcasts a head, not three.
#ifndef KDA_TPU_DECODE_DECODE_H_
#define KDA_TPU_DECODE_DECODE_H_

#include "tpu/hlo/module.h"
#include "tpu/ir/program.h"
#include "tpu/problem.h"

namespace kda::tpu {

// Throws ir::BuildError where the problem is one the kernel does not take (problem.h):
// tokens that are not one per sequence, heads that are not a multiple of 8 or more than VMEM
// has room for, checkpoints.
void CheckDecode(const TpuProblem& problem);
ir::Program BuildDecodeKernel(const TpuProblem& problem);

// The whole of a decode step as a module: inputs, as the problem has them, initial_slots and
// final_slots [N], A_log [H], dt_bias [H, 128], q, k, v, g [1, N, H, 128], beta [1, N, H],
// initial_state [N or slots, H, 128, 128]; outputs o and final_state, in the pool's own
// memory where there is a pool.
//
// A negative initial slot skips the sequence: its rows of o are zeros, no slot is touched, whatever
// its final slot. A negative final slot: the state is not kept. Without initial_state the final
// slots say what is skipped.
//
// Preconditions, since nothing on the chip checks an address (CheckInputs in inputs.h does, before
// the call): slots are below the pool's; no two sequences write the same slot; a slot that one
// sequence writes is not read by another.
void BuildDecode(const TpuProblem& problem, hlo::Module* module);

// Tokens of a grid step.
int64_t DecodeBlock(const TpuProblem& problem);

// Whether the kernel takes beta as [N, H], else [H, N].
bool DecodeBetaByToken(const TpuProblem& problem);

}  // namespace kda::tpu

#endif  // KDA_TPU_DECODE_DECODE_H_
