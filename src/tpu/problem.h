// What a TPU program is built for. Shapes are those of include/kda/kda.h with K = V = 128 and B = 1
// (batches are packed); what varies from call to call (cu_seqlens, slots) is an input of the program.
#ifndef KDA_TPU_PROBLEM_H_
#define KDA_TPU_PROBLEM_H_

#include <cstdint>
#include <vector>

#include "kda/kda.h"
#include "tpu/ir/types.h"

namespace kda::tpu {

inline constexpr int64_t kChunk = 64;  // BT
inline constexpr int64_t kDim = 128;   // K = V

struct TpuProblem {
  int64_t tokens = 0;     // T of the arrays
  int64_t heads = 0;      // H = HV
  int64_t sequences = 0;  // N
  // The sequences' lengths. The program takes any cu_seqlens of N + 1 offsets; these say how often its
  // parts run, which is what predictions weigh.
  std::vector<int64_t> lengths;

  kda_gate gate = KDA_GATE_BOUNDED;
  double lower_bound = -5;
  bool has_a_log = true;
  bool has_dt_bias = true;
  bool qk_l2norm = false;
  bool beta_logits = false;
  double scale = 0.08838834764831845;  // K^-0.5
  ir::DType gate_dtype = ir::DType::kBF16;
  ir::DType beta_dtype = ir::DType::kBF16;

  bool initial_state = true;  // absent: zeros
  bool final_state = true;    // absent: not written
  int64_t slots = 0;  // rows of a state pool addressed by slot indices; 0: [N, H, K, V], in turn
  int64_t checkpoint_every = 0;  // tokens; 0: none
};

inline int64_t ChunksOf(int64_t length) { return (length + kChunk - 1) / kChunk; }

}  // namespace kda::tpu

#endif  // KDA_TPU_PROBLEM_H_
