// Reads the compiler's scheduled HLO, as text: its computations and what their operations move.
#ifndef KDA_TPU_SCHEDULE_HLO_H_
#define KDA_TPU_SCHEDULE_HLO_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kda::tpu {

struct HloOp {
  std::string name;
  std::string result;  // its shape, or shapes in parentheses
  std::string opcode;
  std::string arguments;              // as written, without the parentheses
  std::vector<std::string> operands;  // names
  std::string attributes;             // the rest of the line, without kernels' bodies
};

struct HloComputation {
  std::vector<HloOp> ops;
  std::map<std::string, size_t> index;  // name -> position
  const HloOp* Find(const std::string& name) const;
  const HloOp* Root() const { return ops.empty() ? nullptr : &ops.back(); }
};

struct HloModule {
  std::map<std::string, HloComputation> computations;
  std::string entry;
  const HloComputation* Find(const std::string& name) const;
};

HloModule ParseHlo(const std::string& text);  // any text; what is not in order is left out

// "body" of "..., condition=%c, body=%b, ..." -> "b"; "" if it is not there.
std::string Attribute(const HloOp& op, const std::string& key);

// Bytes that the arrays of `shape` take in HBM, tile padding included; none for those elsewhere.
int64_t HbmBytes(const std::string& shape);
int64_t Elements(const std::string& shape);  // of the first array in it

// What an operation of `computation` reads from HBM and writes to it: slices count as such,
// in-place updates as what they change.
int64_t OperationBytes(const HloModule& module, const HloComputation& computation, const HloOp& op);

// The gathers and scatters in `op` and in what it calls, which move their rows one by one.
struct RowMoves {
  std::string opcode;  // "gather" or "scatter"; empty: there are none
  int64_t rows = 0;
  int64_t bytes = 0;  // read and written, as if all were in HBM
};
RowMoves FindRowMoves(const HloModule& module, const HloComputation& computation, const HloOp& op);

// Iterations of a while operation; 0 if they are not constant.
int64_t WhileTrips(const HloModule& module, const HloComputation& computation, const HloOp& op);

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_HLO_H_
