// Decode: every token of every sequence by the recurrence, one (sequence, value head) per task.
#include "cpu/forward.h"

namespace kda::cpu {

int64_t DecodeWorkspaceFloats(const kda_plan& plan) {
  return plan.workers * StateFloats(plan.problem);
}

namespace {

// m calls of one token each, storing a bf16 state every time, would round it every time; a window of
// m tokens gives the same bits.
bool RoundsEveryToken(const core::Problem& p) {
  const kda_tensor& kept = p.final_state.rank != 0   ? p.final_state
                           : p.checkpoints.rank != 0 ? p.checkpoints
                                                     : p.initial_state;
  return kept.rank != 0 && kept.dtype == KDA_BF16;
}

void DecodeSequence(const Run& run, const core::Sequence& s, int head, float* scratch) {
  const core::Problem& p = run.plan.problem;
  const bool round = RoundsEveryToken(p);
  StateCursor state;
  state.Begin(run, s, head, scratch);
  int64_t checkpoint = s.checkpoint_begin;
  for (int64_t t = 0; t < s.length; ++t) {
    const State next = state.Next(t + 1 == s.length);
    run.kernels.decode_token(ViewOf(run, s, head, t, 1), 0, state.Now(), next);
    if (round) run.kernels.round_state_to_bf16(static_cast<int>(p.dim_k), next);
    state.Advanced(next);
    if (checkpoint < s.checkpoint_end &&
        run.plan.checkpoints[static_cast<size_t>(checkpoint)].token == t + 1) {
      state.StoreCheckpoint(checkpoint++, state.Now());
    }
  }
  state.Finish();
}

}  // namespace

void RunDecode(const Run& run, float* workspace) {
  const kda_plan& plan = run.plan;
  const int64_t heads = plan.problem.value_heads, floats = StateFloats(plan.problem);
  ForEach(plan, static_cast<int64_t>(plan.sequences.size()) * heads,
          [&](int64_t i, int32_t worker) {
            const core::Sequence& s = plan.sequences[static_cast<size_t>(i / heads)];
            if (!s.skip)
              DecodeSequence(run, s, static_cast<int>(i % heads), workspace + worker * floats);
          });
}

}  // namespace kda::cpu
