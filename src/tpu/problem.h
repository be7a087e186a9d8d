// What a TPU program is built for. Shapes are those of include/kda/kda.h with K = V = 128 and B = 1
// (batches are packed); what varies from call to call (cu_seqlens, slots)
// is an input of the program.
#ifndef KDA_TPU_PROBLEM_H_
#define KDA_TPU_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kda/kda.h"
#include "tpu/ir/program.h"

namespace kda::tpu {

inline constexpr int64_t kChunk = 64;  // BT
inline constexpr int64_t kDim = 128;   // K = V

struct TpuProblem {
  int64_t tokens = 0;     // T of the arrays
  int64_t heads = 0;      // H = HV
  int64_t sequences = 0;  // N
  // [N], at most T in all. The program takes any cu_seqlens that inputs.h does; these say how often
  // its parts run, which is what predictions weigh.
  std::vector<int64_t> lengths;

  kda_gate gate = KDA_GATE_BOUNDED;
  double lower_bound = -5;
  bool has_a_log = true;  // absent: 0, also of the softplus gate, for which kda.h wants it
  bool has_dt_bias = true;
  bool qk_l2norm = false;
  bool beta_logits = false;
  // Sums that all but cancel, of keys that are alike with slow gates, in one
  // more pass (docs/tpu_mega.md).
  bool precise = false;
  double scale = 0.08838834764831845;  // K^-0.5
  ir::DType gate_dtype = ir::DType::kBF16;
  ir::DType beta_dtype = ir::DType::kBF16;

  bool initial_state = true;  // absent: zeros
  bool final_state = true;    // absent: not written
  int64_t slots = 0;  // rows of a state pool addressed by slot indices; 0: [N, H, K, V], in turn
  int64_t checkpoint_every = 0;  // tokens; 0: none

  int64_t vmem_bytes = int64_t{128} << 20;  // of a chip (Target::vmem_bytes); the default is v6e's
};

// What a kernel takes beyond what all do.
struct KernelTakes {
  const char* kernel = "";  // its name in messages
  int64_t head_multiple = 1;
  bool one_token = false;  // of every sequence: T = N
  bool fp32_gate = false;
  bool slots = false;
  bool checkpoints = false;
  bool precise = false;
};

// Sizes, row numbers and offsets are i32 on the chip; beta's columns are
// padded to a multiple of 128.
inline constexpr int64_t kMostTokens = (int64_t{1} << 31) - 128;
inline constexpr int64_t kMostHeads = 65536;                 // as kda.h's: problem_test
inline constexpr int64_t kMostVmemBytes = int64_t{1} << 40;  // of a chip, far beyond any

// The one place where a problem is checked, before a kernel is built for it. Throws ir::BuildError,
// one line with the argument, its value and what is allowed.
void CheckProblem(const TpuProblem& problem, const KernelTakes& takes);

// What it throws. Whoever has other names for the arguments, as a command has
// options, says the same in those.
class Refusal : public ir::BuildError {
 public:
  Refusal(const std::string& kernel_name, const std::string& argument_name,
          const std::string& value_text, const std::string& allowed_text);
  const std::string kernel, argument, value, allowed;
};

// Of that kind, for a kernel's own arguments.
[[noreturn]] void Refuse(const std::string& kernel, const std::string& argument,
                         const std::string& value, const std::string& allowed);
std::string Text(double value);  // of a refusal
void RefuseOutside(const char* kernel, const char* argument, int64_t value, int64_t least,
                   int64_t most);

// VMEM that a kernel may ask for, of a chip's: the rest is left to XLA and to
// what the compiler spills.
inline int64_t VmemForKernel(const TpuProblem& p) { return p.vmem_bytes / 32 * 25; }
// Refuses a kernel whose windows and scratch take more than its limit, whatever the argument.
void CheckVmem(const char* kernel, const ir::Program& program);

inline int64_t ChunksOf(int64_t length) { return (length + kChunk - 1) / kChunk; }

}  // namespace kda::tpu

#endif  // KDA_TPU_PROBLEM_H_
