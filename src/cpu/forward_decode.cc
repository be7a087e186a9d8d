// Decode: every token of every sequence by the recurrence, one (sequence,
// some value heads) per task.
#include <algorithm>
#include <atomic>
#include <new>

#include "cpu/forward.h"

namespace kda::cpu {

namespace {

// Heads of a task: as many as leave every worker some tasks.
int64_t HeadsTogether(const kda_plan& plan) {
  const int64_t heads = plan.problem.value_heads, live = static_cast<int64_t>(plan.live.size());
  return std::clamp<int64_t>(live * heads / (4 * plan.workers), 1,
                             std::min<int64_t>(heads, kDecodeHeads));
}

// Of a worker, for each head of a task: its vectors and the state between tokens.
constexpr int64_t kVectorFloats = sizeof(TokenVectors) / sizeof(float);
int64_t HeadFloats(const kda_plan& plan) { return kVectorFloats + StateFloats(plan.problem); }

// m calls of one token each, storing a bf16 state every time, would round it every time; a window
// of m tokens gives the same bits.
bool RoundsEveryToken(const core::Problem& p) {
  const kda_tensor& kept = p.final_state.rank != 0   ? p.final_state
                           : p.checkpoints.rank != 0 ? p.checkpoints
                                                     : p.initial_state;
  return kept.rank != 0 && kept.dtype == KDA_BF16;
}

// Heads first .. first + count - 1 of a sequence. `scratch`: HeadFloats for each.
void DecodeSequence(const Run& run, const core::Sequence& s, int first, int count, float* scratch) {
  const core::Problem& p = run.plan.problem;
  const bool round = RoundsEveryToken(p);
  StateCursor states[kDecodeHeads];
  TokenVectors* vectors[kDecodeHeads];
  GateParams gates[kDecodeHeads];
  for (int h = 0; h < count; ++h, scratch += HeadFloats(run.plan)) {
    vectors[h] = new (scratch) TokenVectors;
    states[h].Begin(run, s, first + h, scratch + kVectorFloats);
    gates[h] = GateOf(run, first + h);
  }
  int64_t checkpoint = s.checkpoint_begin;
  for (int64_t t = 0; t < s.length; ++t) {
    DecodeHead heads[kDecodeHeads];
    for (int h = 0; h < count; ++h) {
      heads[h] = {ViewOf(run, s, first + h, gates[h], t, 1), states[h].Now(),
                  states[h].Next(t + 1 == s.length), vectors[h]};
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

// Tasks in order, a range of them for each worker, who goes on with the others' when its own are
// done: states side by side stay with one thread, and from call to call with the same, in its own
// part of the caches, where the pool's threads come in the same order (always, if they are two).
class Ranges {
 public:
  Ranges(int64_t tasks, int32_t workers) : count_(std::min<int64_t>(workers, kMost)) {
    for (int64_t r = 0; r < count_; ++r) {
      ranges_[r].next = tasks * r / count_;
      ranges_[r].end = tasks * (r + 1) / count_;
    }
  }

  template <class Task>
  void Run(int32_t worker, const Task& task) {
    for (int64_t r = 0; r < count_; ++r) {
      Range& range = ranges_[(worker + r) % count_];
      for (int64_t i = range.next++; i < range.end; i = range.next++) task(i);
    }
  }

 private:
  static constexpr int64_t kMost = 64;
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };
  int64_t count_;
  Range ranges_[kMost];
};

}  // namespace

int64_t DecodeWorkspaceFloats(const kda_plan& plan) {
  return plan.workers * HeadsTogether(plan) * HeadFloats(plan);
}

void RunDecode(const Run& run, float* workspace) {
  const kda_plan& plan = run.plan;
  const int64_t heads = plan.problem.value_heads, together = HeadsTogether(plan);
  const int64_t groups = core::CeilDiv(heads, together);
  Ranges ranges(static_cast<int64_t>(plan.live.size()) * groups, plan.workers);
  ForEach(plan, plan.workers, [&](int64_t, int32_t worker) {
    float* const scratch = workspace + worker * together * HeadFloats(plan);
    ranges.Run(worker, [&](int64_t i) {
      const int64_t first = i % groups * together, count = std::min(together, heads - first);
      DecodeSequence(run, LiveSequence(plan, i / groups), static_cast<int>(first),
                     static_cast<int>(count), scratch);
    });
  });
}

}  // namespace kda::cpu
