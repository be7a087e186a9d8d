// A kernel program: what the builder makes and what the printer, the
// evaluator and the counter read.
//
// A program is a list of nodes in static single assignment form, held by blocks: the body, which
// runs once per grid step, and one block per window that maps the grid indices to a block index.
#ifndef KDA_TPU_IR_PROGRAM_H_
#define KDA_TPU_IR_PROGRAM_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tpu/ir/types.h"

namespace kda::tpu::ir {

enum class Op : uint8_t {
  // No operands. kArgument: an argument of the kernel, ints = {index}.
  // kGridIndex: ints = {dimension}. kBlockArgument: a loop's index.
  // kConstant: `number`, every element the same. kIota: ints = {dimension}.
  kArgument,
  kGridIndex,
  kBlockArgument,
  kConstant,
  kIota,

  // Elementwise; operands of equal type (the builder has broadcast them). Integers are 32 bits,
  // signed unless said otherwise; floats are f32, or bf16, each operation rounded to it.
  kAdd,
  kSub,
  kMul,
  kDiv,  // integers: towards zero
  kRem,  // integers: sign of the left operand
  kMin,
  kMax,  // floats: a NaN on either side gives a NaN
  kAnd,
  kOr,
  kXor,
  kShiftLeft,
  kShiftRight,  // logical
  kCompare,     // ints = {Comparison}; gives i1
  kSelect,      // operands: i1, a, b
  kExp2,
  kLog,  // natural
  kTanh,
  kRsqrt,
  kAbs,
  kReciprocal,      // ints = {approximate}
  kConvert,         // between i1, i32, f32, bf16; to bf16 rounds to nearest even
  kAssumeMultiple,  // i32 scalar, a multiple of ints[0]: where tiles begin

  // Vectors. kBitcast reads the rows of the second-last dimension in packed pairs: bf16 [2r, c] and
  // [2r + 1, c] are the low and high half of i32 [r, c].
  kBitcast,
  kBroadcast,  // scalar, or dimensions of 1, or fewer leading dimensions
  kShapeCast,  // same elements in row-major order
  kSlice,      // ints = offsets, then sizes
  kConcat,     // ints = {dimension}
  kRotate,     // operands: vector, i32 amount; ints = {dimension}: out[(i + amount) % n] = in[i]
  kTranspose,  // ints = permutation
  kReduceSum,  // ints = {dimension}; the dimension is dropped
  kReduceMax,
  kMatMul,    // operands a, b, accumulator; ints = {transpose a, transpose b, Precision}
  kPackPair,  // two f32 [r, c] -> i32 [r, c]: bf16(a) low, bf16(b) high

  // Memory. Indices are i32 scalars, one per dimension; -1 stands for "constant" in `operands`, its
  // value is in `ints`. `ints` of all of these begin with one constant per dimension.
  kLoad,         // operands: ref, indices; vector of the rank of ref (VMEM) or a scalar (SMEM)
  kStore,        // operands: value, ref, indices
  kStridedLoad,  // .. and ints then holds one stride per dimension
  kStridedStore,
  kRefSlice,    // operands: ref, starts; result: memory of the sizes in `type`
  kRefSqueeze,  // drops the dimensions of 1 marked in ints (1: dropped)
  kRefBitcast,  // as kBitcast
  kRefReshape,  // same elements in row-major order; the last two dimensions of tiles allow it or not

  // Copies. The semaphore counts; a wait for a copy names memory of the same size.
  kEnqueueDma,  // operands: source, destination, semaphore
  kWaitDma,     // operands: semaphore, source, destination

  // Control. kIf: operands: i1; blocks: then[, else]. kFor: operands: lower, upper, step;
  // blocks: body with one argument.
  kIf,
  kFor,
};

enum class Comparison : int64_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe
};  // kNe: of a kernel's integers only

// Of NaN only "not equal" holds.
template <class T>
bool Holds(Comparison how, T a, T b) {
  switch (how) {
    case Comparison::kEq:
      return a == b;
    case Comparison::kNe:
      return a != b;
    case Comparison::kLt:
      return a < b;
    case Comparison::kLe:
      return a <= b;
    case Comparison::kGt:
      return a > b;
    case Comparison::kGe:
      break;
  }
  return a >= b;
}

// Of a matrix product of f32 operands; bf16 operands are multiplied exactly and summed in fp32.
enum class Precision : int64_t {
  kBF16,  // operands rounded to bf16: one pass
  kF32,   // as good as fp32: six passes
};

struct Node {
  Op op;
  Type type;  // of the result; dtype kI32 scalar where there is none
  bool has_result = true;
  std::vector<int> operands;  // node indices; -1: a constant index (see above)
  std::vector<int64_t> ints;
  double number = 0;        // kConstant
  std::vector<int> blocks;  // block indices
  int label = 0;            // in Program::labels: whose work this is
};

struct Block {
  std::vector<int> nodes;
  std::vector<int> arguments;  // nodes of kind kBlockArgument
  int parent = -1;             // the block it stands in; -1: outermost
};

enum class Role : uint8_t { kPrefetch, kInput, kOutput, kScratch };

// A rectangle of an array that the kernel sees as memory of its own: element 0 is at
// block index * block shape. With one shape for all grid steps and no map, the whole array.
struct Window {
  bool present = false;      // absent: the kernel sees the array itself, in HBM
  bool pipelined = true;     // false: fetched when its index changes, not ahead
  int block = -1;            // computes the block index
  std::vector<int> results;  // one node per dimension of the array
};

struct Argument {
  std::string name;
  Role role;
  Type array;   // what the caller passes (space kHbm; kSmem for kPrefetch)
  Type memory;  // what the kernel sees
  Window window;
  int node = -1;
};

struct Program {
  std::string name;
  std::vector<int64_t> grid;
  std::vector<Argument> arguments;  // prefetch, inputs, outputs, scratch, in this order
  std::deque<Node> nodes;           // references to nodes stay good while more are added
  std::vector<Block> blocks;
  int body = -1;
  std::vector<std::string> labels = {""};
  std::vector<std::pair<int, int>>
      aliases;             // (input, output) that share memory, by position in role
  int64_t vmem_limit = 0;  // bytes; 0: the compiler's default
  bool side_effects = false;
  bool bounds_checks = true;  // of copies, on the device: some 15 cycles each

  const Argument& Get(Role role, int position) const;
  int Count(Role role) const;
  int64_t VmemBytes() const;  // scratch and windows (twice where pipelined), tiles padded
};

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_PROGRAM_H_
