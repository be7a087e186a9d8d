// A problem together with its memory, and the ways to cut smaller problems on the same data.
#ifndef KDA_CLI_CASE_H_
#define KDA_CLI_CASE_H_

#include <string>
#include <vector>

#include "cli/tensor.h"

namespace kda::cli {

struct Case {
  kda_mode mode = KDA_PREFILL;
  kda_gate gate = KDA_GATE_LOG;
  kda_state_order state_order = KDA_STATE_KV;
  uint64_t flags = 0;
  double scale = KDA_DEFAULT_SCALE;
  double lower_bound = 0;
  int64_t checkpoint_every = 0;

  Tensor q, k, v, g, beta, A_log, dt_bias, initial_state;
  Tensor cu_seqlens, slots, has_initial, checkpoint_offsets, checkpoint_tokens;  // rank 1
  Tensor o, final_state, checkpoints;  // layouts first, memory once a plan has accepted them

  int64_t batch() const { return q.shape(0); }
  int64_t tokens() const { return q.shape(1); }
  int64_t heads() const { return q.shape(2); }
  int64_t value_heads() const { return v.shape(2); }
  int64_t dim_k() const { return q.shape(3); }
  int64_t dim_v() const { return v.shape(3); }
};

struct PlanOptions : Options {
  uint32_t forced_on = 0;  // KDA_SWITCH_* asked for one by one
};

// Where one sequence lies. Lengths are only meaningful once a plan has accepted the offsets.
struct Span {
  int64_t batch = 0, first = 0, length = 0;
};
std::vector<Span> Spans(const Case& problem);
int64_t SequenceTokens(const Case& problem);

// Sets the layouts of the outputs from those of the inputs. Throws where q or v are not [B,T,H,D].
void DescribeOutputs(kda_dtype o_dtype, Case* problem);
// Memory for them. A pool of state slots starts as a copy of the given one: slots that no sequence
// writes keep what they hold.
void AllocateOutputs(Case* problem);

Problem MakeProblem(const Case& problem);
Args MakeArgs(const Case& problem);
// Throws Error, also where a switch that was forced on cannot run; of others the plan says so.
Plan CreatePlan(const Case& problem, const PlanOptions& options);

// The heads [head, head + count) of q and k, and the value heads that read them.
Case HeadSlice(const Case& problem, int64_t head, int64_t count);
// The first `tokens` tokens of sequence n, as a batch of one. For problems without slots and
// checkpoints.
Case SequenceSlice(const Case& problem, int64_t n, int64_t tokens);

}  // namespace kda::cli

#endif  // KDA_CLI_CASE_H_
