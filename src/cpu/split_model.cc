#include "cpu/split_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <vector>

#include "cpu/forward.h"

namespace kda::cpu {

namespace {

// What a chunk of one head takes, in units of one pass with K = V = 128: the first half, a column
// of the second, what each part of the second does anew, and a part of less than 32 columns
// besides, which is half a tile of AVX-512's micro-kernels. Processor time on Zen 5, T = 8192,
// H = 1: first half 0.37 with bf16 products and bounded gates, 0.3 with fp32 ones, up to 0.45 with
// softplus gates; in all, one worker with 1, 2, 4 and 8 parts: 1.01 0.99 1.06 1.50 with bf16
// products, 1.02 1.01 1.05 1.43 with AVX-512, 1.01 1.02 1.02 1.06 with AVX2.
constexpr double kFirstHalf = 0.37, kColumn = 0.63 / 128, kPart = 0.01, kNarrowPart = 0.045;
// Of the time of one pass, or of that with fewer parts. What the above leaves out, threads that
// wait for each other and for each other's memory, must not eat up the gain.
constexpr double kWorthwhile = 0.85, kMorePartsWorthwhile = 0.95;
// Above, one pass leaves no thread idle for long.
constexpr int64_t kMostPairsPerThread = 4;
constexpr int64_t kFewestColumns = 16;  // of a part
constexpr int64_t kNarrow = 32;

// Chunks of the sequences that are not skipped.
struct Chunks {
  explicit Chunks(const kda_plan& plan) {
    for (const int64_t n : plan.live) {
      const int64_t count =
          core::CeilDiv(plan.sequences[static_cast<size_t>(n)].length, kChunkRows);
      of.push_back(count);
      total += count;
      longest = std::max(longest, count);
      shortest = of.size() == 1 ? count : std::min(shortest, count);
    }
  }
  std::vector<int64_t> of;
  int64_t total = 0, longest = 0, shortest = 0;
};

// How long one pass takes: threads take blocks of heads as they become free.
double TimeOfOnePass(const kda_plan& plan, const Chunks& chunks) {
  const core::Problem& p = plan.problem;
  const double chunk = kFirstHalf + kColumn * static_cast<double>(PaddedDim(p.dim_v));
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int32_t i = 0; i < plan.execution.threads; ++i) free_at.push(0);
  double time = 0;
  for (const int64_t count : chunks.of) {
    for (int64_t head = 0; head < p.value_heads; head += plan.heads_per_step) {
      const int64_t heads = std::min<int64_t>(plan.heads_per_step, p.value_heads - head);
      const double end = free_at.top() + chunk * static_cast<double>(count * heads);
      free_at.pop();
      free_at.push(end);
      time = std::max(time, end);
    }
  }
  return time;
}

// What a chunk of one head takes with `parts` parts of V, and of that what
// waits for the chunk before.
struct ChunkTime {
  ChunkTime(const core::Problem& p, int64_t parts) {
    const int64_t width = WidthOf(p, parts);
    const double part = kPart + (width < kNarrow ? kNarrowPart : 0);
    all = kFirstHalf + kColumn * static_cast<double>(PaddedDim(p.dim_v)) +
          part * static_cast<double>(parts);
    follow = kColumn * static_cast<double>(width) + part;
  }
  double all, follow;
};

// How long `parts` parts of V take: as long as all the work takes all threads; but no shorter than
// the chunks of a part, which follow each other, be it the longest or one that is begun last, when
// threads have had a pair each.
double TimeOf(const kda_plan& plan, const Chunks& chunks, int64_t parts) {
  const core::Problem& p = plan.problem;
  const auto threads = static_cast<double>(plan.execution.threads);
  const auto [chunk, follow] = ChunkTime(p, parts);
  const double all = chunk * static_cast<double>(chunks.total * p.value_heads) / threads;
  const auto last = static_cast<double>(PairsOf(plan) % plan.execution.threads * chunks.shortest);
  const double begun = PairsOf(plan) < plan.execution.threads ? 0 : all - chunk * last / threads;
  return kFirstHalf + std::max({all, follow * static_cast<double>(chunks.longest),
                                begun + follow * static_cast<double>(chunks.shortest)});
}

}  // namespace

int64_t PairsOf(const kda_plan& plan) {
  return std::max<int64_t>(static_cast<int64_t>(plan.live.size()) * plan.problem.value_heads, 1);
}

int64_t WidthOf(const core::Problem& problem, int64_t parts) {
  return PaddedDim(core::CeilDiv(problem.dim_v, parts));
}

int64_t SplitParts(const kda_plan& plan) {
  const core::Problem& p = plan.problem;
  constexpr uint32_t kNeeded = KDA_SWITCH_FUSE | KDA_SWITCH_UNIFIED_LAYOUT;
  const bool suits = p.mode == KDA_PREFILL && (plan.execution.switches & kNeeded) == kNeeded &&
                     plan.execution.threads > 1 && plan.max_chunks > 1 &&
                     PairsOf(plan) <= kMostPairsPerThread * plan.execution.threads;
  if (!suits) return 0;
  const Chunks chunks(plan);
  double limit = kWorthwhile * TimeOfOnePass(plan, chunks);
  int64_t parts = 0;
  for (int64_t n = 1; n <= core::CeilDiv(p.dim_v, kFewestColumns); ++n) {
    if (core::CeilDiv(p.dim_v, WidthOf(p, n)) != n) continue;
    const double time = TimeOf(plan, chunks, n);
    if (time < limit) limit = kMorePartsWorthwhile * time, parts = n;
  }
  return parts;
}

int64_t SplitWorkers(const kda_plan& plan) {
  const Chunks chunks(plan);
  const ChunkTime chunk(plan.problem, plan.column_parts);
  const double all = chunk.all * static_cast<double>(chunks.total * plan.problem.value_heads);
  const double at_least = chunk.follow * static_cast<double>(std::max<int64_t>(chunks.longest, 1));
  return static_cast<int64_t>(std::ceil(all / at_least)) + 1;
}

}  // namespace kda::cpu
