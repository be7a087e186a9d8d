// What the drivers (forward_*.cc) share: views of the caller's tensors, scratch, the state's way in
// and out.
#ifndef KDA_CPU_FORWARD_H_
#define KDA_CPU_FORWARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/float_mode.h"
#include "core/plan.h"
#include "cpu/buffers.h"
#include "cpu/chunk.h"
#include "cpu/kernels.h"

namespace kda::cpu {

// What the staged driver may keep at a time: 512 MiB, but at least a head's.
inline constexpr int64_t kMostKeptFloats = int64_t{1} << 27;
// Value heads a fused step can handle.
inline constexpr int kMaxHeadsPerStep = 8;

// The row of kernels.h for a plan.
const Kernels& KernelsFor(const kda_plan& plan);

// Decays of long spans underflow all the time, and a subnormal operand costs over a hundred cycles
// on many machines: the kernels flush.
class FloatMode : public core::FloatMode {
 public:
  FloatMode() : core::FloatMode(core::Subnormals::kFlushToZero) {}
};

// Kernels run on a thread only while one of these lives on it: with the floating-point mode and the
// tile registers they need. ForEach has one around its tasks, so that a driver cannot do without.
class KernelSession {
 public:
  explicit KernelSession(const Kernels& kernels) : leave_(kernels.leave) {
    if (kernels.enter != nullptr) kernels.enter();
  }
  ~KernelSession() {
    if (leave_ != nullptr) leave_();
  }
  KernelSession(const KernelSession&) = delete;
  KernelSession& operator=(const KernelSession&) = delete;

 private:
  const FloatMode mode_;
  void (*leave_)();
};

// One run of a plan: everything a task needs.
struct Run {
  const kda_plan& plan;
  const core::Buffers& buffers;
  const Kernels& kernels;

  bool On(uint32_t bit) const { return (plan.execution.switches & bit) != 0; }
  Solver solver() const { return static_cast<Solver>(plan.execution.solver); }
  auto IntraChunk() const {
    return On(KDA_SWITCH_SAFE_GATE) ? kernels.intra_chunk_products
                                    : kernels.intra_chunk_elementwise;
  }
};

// Rows first .. first + rows - 1 of sequence `s`, value head `head`, in the caller's memory.
HeadChunk ViewOf(const Run& run, const core::Sequence& s, int head, int64_t first, int rows);
// The same with `gate`, the head's: its powers in fp64 are worth keeping from token to token.
GateParams GateOf(const Run& run, int64_t head);
HeadChunk ViewOf(const Run& run, const core::Sequence& s, int head, const GateParams& gate,
                 int64_t first, int rows);

// Of the chunk that begins at token `first`.
Upcoming UpcomingOf(const Run& run, const core::Sequence& s, int head, int64_t first);

int64_t PaddedDim(int64_t dim);  // to kDimAlign
StateShape ShapeOf(const core::Problem& problem, const kda_tensor& state);
bool IsDirect(const core::Problem& problem, const kda_tensor& state);  // usable as ConstState
const char* StateAt(const kda_tensor& tensor, const void* data, int64_t row, int head);
char* StateAt(const kda_tensor& tensor, void* data, int64_t row, int head);

// The state of one (sequence, head) while its tokens pass: read from the caller's memory where it
// can be used as it lies, from a scratch copy where not.
class StateCursor {
 public:
  // `scratch`: StateFloats(problem) floats, holding the state between chunks.
  void Begin(const Run& run, const core::Sequence& sequence, int head, float* scratch);

  ConstState Now() const { return now_; }
  // Where the state after the next chunk goes; `last`: it is the sequence's last.
  State Next(bool last) const;
  void Advanced(State next) { now_ = {next.data, next.ld}; }
  void StoreCheckpoint(int64_t row, ConstState state) const;
  // After the last token: final_state, if it is not there already.
  void Finish() const;

 private:
  const Run* run_ = nullptr;
  const core::Sequence* sequence_ = nullptr;
  int head_ = 0;
  float* scratch_ = nullptr;
  ConstState now_ = {nullptr, 0};
};
int64_t StateFloats(const core::Problem& problem);

// store(row, rows) for each checkpoint of `s` that comes after the first `rows` rows, at most
// `chunk_rows`, of the chunk that begins at token `first`. *checkpoint: the sequence's next, a row
// of plan.checkpoints.
template <class Store>
void ForEachCheckpoint(const kda_plan& plan, const core::Sequence& s, int64_t first, int chunk_rows,
                       int64_t* checkpoint, const Store& store) {
  for (; *checkpoint < s.checkpoint_end; ++*checkpoint) {
    const int64_t rows = plan.checkpoints[static_cast<size_t>(*checkpoint)].token - first;
    if (rows > chunk_rows) return;
    store(*checkpoint, static_cast<int>(rows));
  }
}

// A chunk of one row takes the decode step.
void DecodeRow(const Run& run, const HeadChunk& row, ConstState now, State next);

// One-pass forms: the state after the first `rows` rows of a chunk, with the bits of a sequence
// that ends there.
void AdvanceToCheckpoint(const Run& run, const HeadChunk& chunk, const ChunkBuffers& buffers,
                         int rows, ConstState now, State at);

ChunkDims DimsOf(const core::Problem& problem, int64_t rows);  // rows padded to 16

// unified_layout off: a chunk's inputs copied into dense tiles, and its output back.
int64_t TileFloats(const core::Problem& problem);
HeadChunk Gather(const HeadChunk& chunk, float* tiles);
void Scatter(const HeadChunk& tile, const HeadChunk& chunk);  // o only

// Runs task(i, worker) for i in [0, count) on the plan's threads, where the plan's kernels can be
// called; a `worker`, of plan.workers, is never used by two tasks at once.
template <class Task>
void ForEach(const kda_plan& plan, int64_t count, const Task& task) {
  struct Shared {
    std::atomic<int64_t> next{0};
    int64_t count;
    const Task* task;
    const Kernels* kernels;
  } shared;
  shared.count = count;
  shared.task = &task;
  shared.kernels = &KernelsFor(plan);
  const int32_t workers = count < plan.workers ? static_cast<int32_t>(count) : plan.workers;
  core::Execute(
      plan.execution, workers,
      [](void* argument, int32_t worker) {
        auto* const job = static_cast<Shared*>(argument);
        const KernelSession session(*job->kernels);
        for (int64_t i = job->next++; i < job->count; i = job->next++) (*job->task)(i, worker);
      },
      &shared);
}

// The n-th sequence that is not skipped.
inline const core::Sequence& LiveSequence(const kda_plan& plan, int64_t n) {
  return plan.sequences[static_cast<size_t>(plan.live[static_cast<size_t>(n)])];
}

// The drivers. Each has a workspace size in floats, of which `workspace` points to as many.
int64_t FusedWorkspaceFloats(const kda_plan& plan);  // plan.workers times what one needs
void RunFused(const Run& run, float* workspace);
int64_t SplitWorkspaceFloats(const kda_plan& plan);
void RunSplit(const Run& run, float* workspace);
int64_t StagedWorkspaceFloats(const kda_plan& plan);
void RunStaged(const Run& run, float* workspace);
int64_t DecodeWorkspaceFloats(const kda_plan& plan);
void RunDecode(const Run& run, float* workspace);

}  // namespace kda::cpu

#endif  // KDA_CPU_FORWARD_H_
