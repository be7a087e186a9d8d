// The published ladder on the TPU: four stages as kernels, and the switches that made them fast.
//
//   off (all)        align, gate_cumsum, intra_chunk, inter_chunk, output; tokens are gathered per chunk
//                    before and scattered after every stage; one head a step; the recurrence's grid is N
//                    x H x the most chunks a sequence can have
//   safe_gate        strips of matrix products for Aqk and L, the Neumann chain for the solve
//   fuse             two kernels: gate_intra, inter_output
//   unified_layout   head-major arrays of chunks from end to end, one transpose each
//   flat_grid        the recurrence's grid is H x the chunks that there are
//   head_block       all heads in one step, [T, H, D] as given
//
// unified_layout, flat_grid and head_block change no bit of the result.
#ifndef KDA_TPU_LADDER_LADDER_H_
#define KDA_TPU_LADDER_LADDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kda/kda.h"
#include "tpu/hlo/module.h"
#include "tpu/problem.h"

namespace kda::tpu {

// How the heads of the last step are ordered.
enum class HeadForm {
  kGrid,        // one per grid step: head_block off
  kSerial,      // a loop in the kernel
  kInterleaved  // stage by stage, side by side
};

struct LadderOptions {
  uint32_t switches = KDA_SWITCHES_ALL;
  // Switches that must not fall back: an error if they cannot be on.
  uint32_t forced = 0;
  // AUTO: as published: neumann64 with safe_gate, substitution without.
  int32_t solver = KDA_SOLVER_AUTO;  // kda_solver, as in kda_options
  HeadForm form = HeadForm::kInterleaved;
  // For one kernel: what the published ones were given, less where the chip (TpuProblem) has less.
  int64_t vmem_bytes = int64_t{32} << 20;
};

struct LadderPlan {
  uint32_t switches = 0;  // in effect
  kda_solver solver = KDA_SOLVER_AUTO;
  HeadForm form = HeadForm::kGrid;
  int64_t chunks = 0;       // of the aligned layout
  int64_t vmem_bytes = 0;   // of the largest kernel
  std::string description;  // one line, with every fallback and its reason
};

// Throws ir::BuildError where a forced switch cannot be on, or the problem is none of the ladder's.
LadderPlan PlanLadder(const TpuProblem& problem, const LadderOptions& options);

// VMEM that one step of the kernels may take with all heads in it.
int64_t HeadBlockVmemBytes(const TpuProblem& problem, bool safe_gate);

struct Ladder {
  LadderPlan plan;
  // Inputs q, k, v [1, T, H, 128], g, beta [1, T, H], A_log [H], dt_bias [H, 128], cu_seqlens
  // [N + 1], initial_state [N, H, 128, 128], those that the problem has; outputs o [1, T, H, 128],
  // final_state. Rows of o past the last sequence are zero.
  std::unique_ptr<hlo::Module> module;
};

Ladder BuildLadder(const TpuProblem& problem, const LadderOptions& options);

}  // namespace kda::tpu

#endif  // KDA_TPU_LADDER_LADDER_H_
