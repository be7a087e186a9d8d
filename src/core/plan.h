// The immutable result of validation: everything a backend needs to know, in one place, checked.
#ifndef KDA_CORE_PLAN_H_
#define KDA_CORE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kda/kda.h"

namespace kda::core {

// BT, tokens per chunk: 128 and 256 lose, since the solve grows with BT^2.
inline constexpr int kChunk = 64;
inline constexpr int kMaxDim = 256;

// One sequence of the batch.
struct Sequence {
  int64_t batch = 0;          // row of dimension B
  int64_t first = 0;          // first token along T
  int64_t length = 0;         // tokens
  int64_t initial_slot = -1;  // row of initial_state; -1: starts from zeros
  int64_t final_slot = -1;    // row of final_state; -1: not written
  bool skip = false;          // negative slot: rows of o become zero, nothing else happens
  int64_t row_base = 0;       // 16-row-padded tokens of the sequences before this one (CPU backend)
  int64_t live_base = 0;      // sequences before this one that are not skipped: place in Plan::live
  int64_t chunk_base = 0;     // chunks of the sequences before this one (skipped ones have none)
  int64_t checkpoint_begin = 0;  // its range in Plan::checkpoints
  int64_t checkpoint_end = 0;
};

// One row of `checkpoints`.
struct Checkpoint {
  int64_t sequence = 0;
  int64_t token = 0;    // state after this many tokens of the sequence
  bool written = true;  // false: beyond the sequence's length, or the sequence is skipped
};

// One chunk that exists.
struct ChunkRef {
  int32_t sequence = 0;
  int32_t index = 0;  // within its sequence
};

// The problem with every default filled in and every stride explicit.
struct Problem {
  int64_t batch = 0, tokens = 0, heads = 0, value_heads = 0, dim_k = 0, dim_v = 0;
  kda_mode mode = KDA_PREFILL;
  kda_gate gate = KDA_GATE_LOG;
  kda_state_order state_order = KDA_STATE_KV;
  bool beta_logits = false;
  bool qk_l2norm = false;
  double scale = 0;
  double lower_bound = 0;
  kda_tensor q, k, v, g, beta, A_log, dt_bias, o;  // rank 0: absent. dt_bias is always [HV, K]
  kda_tensor initial_state, final_state, checkpoints;
};

// How the caller's threads are used.
struct Execution {
  kda_backend backend = KDA_BACKEND_CPU;
  kda_isa isa = KDA_ISA_AUTO;  // never AUTO in a plan
  kda_solver solver = KDA_SOLVER_BLOCK;
  int32_t threads = 1;
  uint32_t switches = 0;           // in effect
  uint32_t switches_fallback = 0;  // asked for, not possible
  kda_executor executor = {nullptr, nullptr};
};

// What kda_run was given, checked against the plan.
struct Buffers {
  const void *q, *k, *v, *g, *beta, *A_log, *dt_bias, *initial_state;
  void *o, *final_state, *checkpoints;
  char* workspace;
};

}  // namespace kda::core

// The C ABI's opaque plan. Built by core/plan.cc, read-only afterwards (but for the lock).
struct kda_plan {
  kda::core::Problem problem;
  kda::core::Execution execution;
  std::vector<kda::core::Sequence> sequences;
  std::vector<int64_t> live;                // sequences that are not skipped
  std::vector<kda::core::ChunkRef> chunks;  // the flat list of chunks that exist
  std::vector<kda::core::Checkpoint> checkpoints;
  int64_t max_chunks = 0;       // of one sequence
  int64_t sequence_tokens = 0;  // tokens in sequences that are not skipped
  int64_t zero_from = 0;        // rows of o along T from here on belong to no sequence (B = 1)
  bool bf16_products = false;   // inputs are bf16 and the kernels multiply them as such
  int32_t heads_per_step = 1;   // CPU: value heads per step: head_block
  int32_t column_parts = 0;     // CPU: parts of V that go apart; 0: whole heads do
  int32_t workers = 1;          // tasks at a time: the threads that find something to do
  size_t workspace_size = 0;
  std::string description;

  // The plan's own workspace; one run at a time holds the lock.
  std::unique_ptr<char[]> workspace_storage;
  char* workspace = nullptr;  // aligned
  mutable std::mutex workspace_lock;
};

namespace kda::core {

// A backend: `multiplies_bf16` says whether products take bf16 operands, with the instruction set,
// switches and solver that the plan has; `prepare` fills what is the backend's in the plan
// (CPU:), its workers and workspace_size, gives up switches that would do nothing (adding the
// reason to *notes, which end up in the description) and may throw std::bad_alloc; `run`
// neither throws nor allocates.
struct Backend {
  bool (*multiplies_bf16)(const kda_plan& plan);
  void (*prepare)(kda_plan* plan, std::string* notes);
  kda_status (*run)(const kda_plan& plan, const Buffers& buffers, kda_error* error);
};
const Backend& CpuBackend();        // src/cpu/
const Backend& ReferenceBackend();  // src/reference/
const Backend& BackendOf(const kda_plan& plan);

inline constexpr size_t kWorkspaceAlignment = 64;  // bytes: a cache line, a vector

// Fills *error (where not null) and returns `code`.
kda_status Fail(kda_error* error, kda_status code, const char* argument, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

// core/thread_pool.cc: runs task(argument, i) for i in [0, count) on the calling thread and up to
// count - 1 threads of the process-wide pool. Never allocates (EnsureThreads does that, when a plan
// is made). Finishes on the calling thread alone when the pool has no free thread, or after fork().
void EnsureThreads(int32_t threads);
void ParallelRun(int32_t count, kda_task task, void* argument);
// The plan's executor or, without one, ParallelRun.
void Execute(const Execution& execution, int32_t count, kda_task task, void* argument);

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace kda::core

#endif  // KDA_CORE_PLAN_H_
