// The evaluator's inside: a program made into lists of instructions on
// buffers that are laid out once.
#ifndef KDA_TPU_IR_EVALUATE_MACHINE_H_
#define KDA_TPU_IR_EVALUATE_MACHINE_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tpu/ir/evaluate_memory.h"
#include "tpu/ir/evaluator.h"
#include "tpu/ir/program.h"

namespace kda::tpu::ir::evaluate {

struct Machine;

// One node. Values are row-major, a 32-bit word per element: f32 bits, i32, i1 as 0 or 1, and bf16
// as the bits of the f32 of the same value.
struct Instruction {
  using Run = void (*)(Machine& machine, const Instruction& instruction);
  Run run = nullptr;  // null: the value is its operand's, there already
  int node = 0;
  int64_t count = 1;  // elements of the result, or of what is stored
  uint32_t* out = nullptr;
  const uint32_t* in[3] = {};  // of the first three operands where they are values
  bool splat[3] = {};          // every element of the operand is the same
};

// Where every value lies. Values whose bits are another value's (casts of shape, whole rows cut
// out) share its place; others share buffers once what was there is no longer needed.
class Layout {
 public:
  explicit Layout(const Program& program);
  // Null where the node has no value.
  uint32_t* At(int node);
  bool Shares(int node) const { return share_of_[static_cast<size_t>(node)] >= 0; }

 private:
  int Root(int node) const;
  void FindShares();
  void FindLastUses();
  void Use(int node, int block, int position);
  int64_t Take(int64_t count);
  void Give(int64_t offset, int64_t count);
  void LayOutConstants();
  void LayOutBlock(int block);

  const Program& program_;
  std::vector<int> share_of_;        // node whose place is shared; -1: a place of its own
  std::vector<int64_t> shift_;       // from that place
  std::vector<int64_t> offset_;      // of a place, in words_; -1: not laid out
  std::vector<int> block_of_;        // -1: there from the start
  std::vector<int> last_use_;        // position in that block
  std::vector<int> owner_position_;  // per block: of the If or For in its parent
  std::map<int64_t, std::vector<int64_t>> free_;
  int64_t end_ = 0;
  std::vector<uint32_t> words_;
};

// Per argument: the array in HBM (or SMEM) and, behind a window, the block the kernel sees.
struct Place {
  int array = -1;
  int window = -1;              // the kernel's memory; equals `array` without a window
  int ahead = -1;               // of pipelined inputs: the block fetched for the next step
  std::vector<int64_t> index;   // of the block in `window`; empty before the first step
  std::vector<int64_t> coming;  // of the block in `ahead`
  View reading, writing;        // of the array by the fetch ahead and by the write back under way
  bool is_reading = false, is_writing = false;
};

struct Machine {
  Machine(const Program& program, const EvaluateOptions& options);

  void Bind(const std::vector<Array>& arguments);
  void Run();
  std::vector<Array> Outputs() const;

  void RunBlock(int block);
  const Node& At(int node) const { return program.nodes[static_cast<size_t>(node)]; }
  uint32_t* Value(int node) { return layout.At(node); }
  int64_t Scalar(int node) { return static_cast<int32_t>(*layout.At(node)); }
  View& ViewOf(int node) { return views[static_cast<size_t>(node)]; }

  const Program& program;
  const EvaluateOptions& options;
  Layout layout;
  Memories memories;
  CopyQueue copies;
  std::vector<View> views;                     // per node that is memory
  std::vector<std::vector<Instruction>> code;  // per block
  std::vector<Place> places;                   // per argument
  std::vector<int64_t> step;                   // of the grid
  const Instruction* current = nullptr;
  std::string doing;                 // in words, where no instruction is under way
  std::vector<uint32_t> scratch[2];  // of matrix products

 private:
  Instruction Translate(int node);
  void BeginStep(const std::vector<int64_t>* next);  // null: it is the last
  void BeginInput(Place* place, const Argument& argument, const std::vector<int64_t>* next);
  void BeginOutput(Place* place, const Argument& argument);
  void WriteBack(Place* place, const Argument& argument);
  void FinishWriteBack(Place* place);
  std::vector<int64_t> BlockIndex(const Argument& argument, const std::vector<int64_t>& at);
  View BlockView(const Place& place, const Argument& argument, const std::vector<int64_t>& index);
  void Fetch(const View& from, int to);
  bool NextStep(std::vector<int64_t>* at) const;
};

// How a node runs; null where the operation is of another kind.
Instruction::Run ElementwiseRun(const Program& program, const Node& node, Instruction* instruction);
Instruction::Run VectorRun(const Program& program, const Node& node);
Instruction::Run MatMulRun(const Node& node);
Instruction::Run AccessRun(const Node& node);  // memory, copies, control

std::string Describe(const Program& program, int node);  // MatMul (inter_chunk:h3), node 812

// --- Bits ---

inline float ToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Without branches, so that loops of it become vector code.
inline uint32_t Pick(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

inline uint32_t Flush(uint32_t bits) {
  return Pick((bits & 0x7f800000u) == 0, bits & 0x80000000u, bits);
}

// An f32 rounded to bf16, to nearest even, both with subnormals flushed.
inline uint32_t RoundToBF16(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  const bool nan = static_cast<int32_t>(bits & 0x7fffffffu) > 0x7f800000;
  return Pick(nan, (bits | 0x00400000u) & 0xffff0000u,
              Pick((bits & 0x7f800000u) == 0, bits & 0x80000000u, rounded));
}

}  // namespace kda::tpu::ir::evaluate

#endif  // KDA_TPU_IR_EVALUATE_MACHINE_H_
