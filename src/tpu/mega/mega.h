// The mega kernel: KDA prefill in one kernel per call, from q, k, v, g [T, H, 128] as they lie in
// HBM to o and the final states. Nothing else touches HBM.
//
// A loop over the chunks that exist, of every sequence in turn; all heads of a group in one step;
// three stages of three successive chunks side by side in one straight piece of code, so that the
// matrix units always have independent work:
//
//   A  gate_cumsum, intra_chunk   of chunk s        q~, k~, Aqk, L
//   B  solve                      of chunk s - 1    T = (I + L)^-1
//   C  inter_chunk, output        of chunk s - 2    v_new = T (v - k^ S), o, S
//
// Heads go in pairs side by side in the lanes, in 32-token blocks: [h0 c0 | h1 c0 | h0 c1 | h1 c1].
#ifndef KDA_TPU_MEGA_MEGA_H_
#define KDA_TPU_MEGA_MEGA_H_

#include "tpu/hlo/module.h"
#include "tpu/ir/program.h"
#include "tpu/problem.h"

namespace kda::tpu {

// The order of emission (mega/emission.h): where each stage's track lies, as fractions of the step,
// and how many items apart its stages work (0: stage by stage; not of stage C with two chunks a
// step, where a head's chunks depend on each other). An order that cannot be is refused.
struct MegaOptions {
  int unroll = 1;  // chunks of a step, 1 or 2; always 1 with checkpoints, or where precise
  double start_a = 0.24, end_a = 1.14;
  double start_b = -0.10, end_b = 1.08;
  double start_c = -0.07, end_c = 0.81;
  double start_d = 0.03, end_d = 0.50;  // decays along the rows of states
  double beta = -0.01;                  // where beta is put along the lanes
  double copies = 0.14;                 // where the next step's copies are started
  int lag_a = 4, lag_b = 0, lag_c = 5;
};

// The label of the kernel's loop over its steps.
inline constexpr char kStepsLabel[] = "steps";

// Throws ir::BuildError where the problem is one the kernel does not take (problem.h): heads that
// are not a multiple of 8, a gate that is not bf16.
void CheckMega(const TpuProblem& problem);  // all but VMEM, which no heads that it takes run out of
ir::Program BuildMegaKernel(const TpuProblem& problem, const MegaOptions& options);
ir::Program BuildMegaKernel(const TpuProblem& problem);  // with MegaDefaults

// The fastest order known for a problem's heads and gate.
MegaOptions MegaDefaults(const TpuProblem& problem);

// The whole of a prefill as a module: inputs q, k, v, g [1, T, H, 128], beta [1, T, H],
// cu_seqlens [N + 1] and, as the problem has them, initial_slots and final_slots [N], A_log [H],
// dt_bias [H, 128], initial_state [N or slots, H, 128, 128]; outputs o, final_state, in the pool's
// own memory where there is a pool, and checkpoints.
//
// A negative initial slot skips the sequence: its rows of o are zeros, no slot and no checkpoint is
// touched, whatever its final slot. A negative final slot: the state is not kept. Without
// initial_state the final slots say what is skipped.
//
// Preconditions, since nothing on the chip checks an address (CheckInputs in inputs.h does, before
// the call): cu_seqlens rise from 0 and end at T or before; slots are below the pool's; no two
// sequences write the same slot; a slot that one sequence writes is not read by another.
void BuildMega(const TpuProblem& problem, hlo::Module* module, const MegaOptions& options);
void BuildMega(const TpuProblem& problem, hlo::Module* module);  // with MegaDefaults

// Heads of one step: the largest of 24, 16, 8 that divides `heads`; 0 if none does.
int64_t MegaHeadGroup(int64_t heads);

// Rows of `checkpoints`, [rows, H, 128, 128]: T / checkpoint_every, as many as there can
// be; 0 without. Those of the call's sequences come first, sequence by sequence; the
// others are left as they are.
int64_t MegaCheckpointRows(const TpuProblem& problem);

// Columns of the beta array the kernel is given, [groups, heads of a group, columns]: T, padded so
// that two tiles of 128 from any tile's start on lie within. Tokens along the lanes is how XLA lays
// out beta [1, T, H] by itself.
int64_t MegaBetaColumns(const TpuProblem& problem);

}  // namespace kda::tpu

#endif  // KDA_TPU_MEGA_MEGA_H_
