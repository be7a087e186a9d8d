// Decode: every token of every sequence by the recurrence, one (sequence, some value heads) per task.
#include <algorithm>

#include "cpu/forward.h"

namespace kda::cpu {

int64_t DecodeWorkspaceFloats(const kda_plan& plan) {
  return plan.workers * kDecodeHeads * StateFloats(plan.problem);
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

// Heads first .. first + count - 1 of a sequence. `scratch`: a state for each.
void DecodeSequence(const Run& run, const core::Sequence& s, int first, int count, float* scratch) {
  const core::Problem& p = run.plan.problem;
  const bool round = RoundsEveryToken(p);
  StateCursor states[kDecodeHeads];
  for (int h = 0; h < count; ++h) {
    states[h].Begin(run, s, first + h, scratch + h * StateFloats(p));
  }
  int64_t checkpoint = s.checkpoint_begin;
  for (int64_t t = 0; t < s.length; ++t) {
    DecodeHead heads[kDecodeHeads];
    for (int h = 0; h < count; ++h) {
      heads[h] = {ViewOf(run, s, first + h, t, 1), states[h].Now(),
                  states[h].Next(t + 1 == s.length)};
    }
    run.kernels.decode_token(heads, count);
    for (int h = 0; h < count; ++h) {
      if (round) run.kernels.round_state_to_bf16(static_cast<int>(p.dim_k), heads[h].next);
      states[h].Advanced(heads[h].next);
    }
    ForEachCheckpoint(run.plan, s, t, 1, &checkpoint, [&](int64_t row, int) {
      for (int h = 0; h < count; ++h) states[h].StoreCheckpoint(row, states[h].Now());
    });
  }
  for (int h = 0; h < count; ++h) states[h].Finish();
}

}  // namespace

void RunDecode(const Run& run, float* workspace) {
  const kda_plan& plan = run.plan;
  const int64_t heads = plan.problem.value_heads;
  const int64_t sequences = static_cast<int64_t>(plan.sequences.size());
  // As many heads a task as leave every worker some tasks.
  const int64_t together = std::clamp<int64_t>(sequences * heads / (4 * plan.workers), 1,
                                               std::min<int64_t>(heads, kDecodeHeads));
  const int64_t groups = (heads + together - 1) / together;
  ForEach(plan, sequences * groups, [&](int64_t i, int32_t worker) {
    const core::Sequence& s = plan.sequences[static_cast<size_t>(i / groups)];
    const int64_t first = i % groups * together;
    if (s.skip) return;
    DecodeSequence(run, s, static_cast<int>(first),
                   static_cast<int>(std::min(together, heads - first)),
                   workspace + worker * kDecodeHeads * StateFloats(plan.problem));
  });
}

}  // namespace kda::cpu
