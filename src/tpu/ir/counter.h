// Counts what a kernel program does without computing its vectors.
//
// Run exactly: i32 and i1 scalars that decide control flow or an index map, loads and stores
// of SMEM, If, For. Skipped, and only counted: vectors, VMEM, f32 and bf16 scalars, copies.
// A scalar that comes from there (or from an argument that was not given) is unknown;
// nothing may branch on one.
#ifndef KDA_TPU_IR_COUNTER_H_
#define KDA_TPU_IR_COUNTER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tpu/ir/array.h"
#include "tpu/ir/program.h"

namespace kda::tpu::ir {

struct Work {
  int64_t matmul_flops = 0;  // 2 M N K, whatever the precision
  // Elements of vectors that arithmetic, comparisons, selections and conversions give, and that
  // reductions read; shapes and moves cost nothing here.
  int64_t elementwise = 0;
  int64_t transcendentals = 0;  // of exp2, log, tanh, rsqrt, reciprocal; not in `elementwise`
  // Of each pass (six of Precision::kF32) over each piece of mxu x mxu of the right operand:
  int64_t mxu_rows = 0;     // rows of the left operand streamed
  int64_t mxu_weights = 0;  // rows of the right operand pushed
  int64_t loaded = 0;       // bytes of VMEM
  int64_t stored = 0;
  int64_t copied_in = 0;  // bytes out of HBM by copies of the kernel's own
  int64_t copied_out = 0;

  void Add(const Work& other, int64_t times = 1);
  bool operator==(const Work& other) const;
};

// An If or a For and how often it ran.
struct Branch {
  int node = 0;
  std::string label;
  bool loop = false;
  int64_t reached = 0;
  int64_t taken = 0;      // the then block; of a loop its body
  int64_t otherwise = 0;  // the else block, where there is one
};

// Blocks a window moved: inputs when their index changed, outputs once per stay.
struct WindowTraffic {
  std::string name;
  bool output = false;
  int64_t blocks = 0;
  int64_t bytes = 0;  // what lies in the array
};

struct Counts {
  int64_t steps = 0;
  Work total;
  std::map<std::string, Work> by_label;
  std::vector<Branch> branches;  // in the order of their nodes
  std::vector<WindowTraffic> windows;
  std::vector<int64_t> block_runs;  // per block of the program
  int64_t vmem_bytes = 0;

  int64_t BytesIn() const;  // out of HBM, windows and copies
  int64_t BytesOut() const;
};

inline constexpr int64_t kMostBlockRuns = int64_t{1} << 24;  // some seconds of a CPU

struct CountOptions {
  int64_t mxu = 256;  // its sides; 128 before v6e
  int64_t most_block_runs = kMostBlockRuns;
};

// `arguments`: what is prefetched, then the inputs; only what control flow depends on is needed,
// the rest may be missing or empty. Throws EvaluationError (evaluator.h), and BuildError where
// counting would run more blocks than `most_block_runs`.
Counts Count(const Program& program, const std::vector<Array>& arguments = {},
             const CountOptions& options = {});

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_COUNTER_H_
