// The compiler's static schedule of a program: which operations run in which order, and for each
// the code, one bundle of instructions per cycle, with the loops and predicated regions around it.
//
// A kernel's own labels reach the schedule: an operation of its text that ends in
// `loc("intra_chunk:h3":12:1)` gives its instructions the label `intra_chunk:h3`; on an scf.for or
// scf.if the label is the loop's or the region's. The numbers tell apart what shares a label, so
// every loop and if wants its own (its line in the text, for instance). Operations without a
// location get the label "-:LINE" from their place in the text.
#ifndef KDA_TPU_SCHEDULE_SCHEDULE_H_
#define KDA_TPU_SCHEDULE_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kda::tpu {

// The units of a TensorCore, as the compiler counts their use. Fills and spills are the loads and
// stores among kVload and kVstore that move registers to VMEM and back.
enum class Unit {
  kMatmul,
  kMatpush,
  kXlu,
  kValu,
  kVpop,
  kEup,
  kVload,
  kFill,
  kVstore,
  kSpill,
  kSalu,
  kCount
};
inline constexpr int kUnits = static_cast<int>(Unit::kCount);
const char* UnitName(Unit unit);
using UnitUse = std::array<uint8_t, kUnits>;

enum class Action : uint8_t {
  kMatmul,
  kMatpush,  // and the preparation of one
  kMatpop,
  kXlu,
  kEup,
  kLoad,
  kStore,
  kValu,
  kDma,
  kScalar
};

struct Instruction {
  int32_t bundle;
  int32_t label;  // index into Program::labels, -1: none
  Action action;
  int8_t mxu;  // of matrix instructions, -1: none
};

enum class BlockKind : uint8_t {
  kLoop,
  kRegion,  // a forward branch skips it
  kElse,    // skipped when the region `other` runs
  kGuard    // around the loop `other`, skipped when the loop does not run at all
};

// Bundles first..last, in full: a branch's delay slots belong to what is in front of it. Every
// block comes after the one around it.
struct Block {
  BlockKind kind;
  int32_t first, last;
  int32_t parent = -1;
  int32_t other = -1;
  int64_t trips = 0;  // of a loop; 0: not known from the code
  std::string label;  // empty: the compiler's own, such as the loop over the grid
  int64_t line = 0;   // the first number of its location; 0: none
};

struct Program {
  std::string name;
  int32_t bundles = 0;  // cycles of one pass through the code
  UnitUse capacity{};
  std::vector<UnitUse> use;  // per bundle; empty: the file is missing
  std::vector<Instruction> instructions;
  std::vector<Block> blocks;
  std::vector<std::string> labels;
  int32_t grid_loop = -1;  // the block that is a kernel's loop over its grid
};

enum class OperationKind {
  kKernel,
  kFusion,
  kCopy,
  kGather,
  kScatter,
  kTransfer,  // an asynchronous copy between HBM and VMEM
  kOther
};
const char* OperationKindName(OperationKind kind);

struct Operation {
  std::string name;    // as in the compiler's HLO
  std::string kernel;  // of a kernel: its name in our program, without the compiler's ".2"
  std::string opcode;
  OperationKind kind = OperationKind::kOther;
  double times = 1;        // more than 1 in the body of a while loop
  int64_t hbm_bytes = 0;   // read and written each time, tile padding included
  int64_t vmem_bytes = 0;  // scratch, windows, spilled registers
  int64_t rows = 0;        // gathered or scattered
  int32_t program = -1;    // index into Schedule::programs, -1: it has no code of its own
  // Of a gather on the SparseCore: the operation before which the TensorCore waits for it; -1:
  // none, it runs on the TensorCore.
  int32_t awaited = -1;
};

struct Schedule {
  std::vector<Operation> operations;  // in the order in which they run
  std::vector<Program> programs;
  double while_iterations = 0;
  std::vector<std::string> notes;  // what could not be read and was left out
};

// Reads CompileResult::dumps. `delay_slots` is the target's. Damaged files yield notes; false, with
// one line, only if there is no schedule at all.
bool ReadSchedule(const std::string& folder, int delay_slots, Schedule* schedule,
                  std::string* error);

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_SCHEDULE_H_
