// A program of arrays around kernels: what XLA runs. Built here, printed as StableHLO (printer.h),
// run on the CPU (evaluator.h).
//
//   Module m("kda");
//   Value q = m.Input("q", {DType::kBF16, {1, 8192, 16, 128}});
//   Value by_head = Transpose(q, {0, 2, 1, 3});
//   std::vector<Value> out = m.Call(std::move(program), {cu, by_head});
//   m.Output("o", Transpose(out[0], {0, 2, 1, 3}));
//
// Nodes are in static single assignment form and in the order in which they were written. Every
// operation checks its shapes and dtypes where it is written and throws ir::BuildError.
#ifndef KDA_TPU_HLO_MODULE_H_
#define KDA_TPU_HLO_MODULE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tpu/ir/program.h"
#include "tpu/ir/types.h"

namespace kda::tpu::hlo {

using ir::DType;
using ir::Shape;

struct Type {
  DType dtype = DType::kF32;
  Shape shape;
  bool operator==(const Type& o) const { return dtype == o.dtype && shape == o.shape; }
  bool operator!=(const Type& o) const { return !(*this == o); }
};
std::string ToString(const Type& type);  // tensor<4x8xf32>

enum class Op : uint8_t {
  kInput,     // ints = {index of the input}
  kConstant,  // `number`, every element the same
  kLiteral,   // `numbers`, in row-major order
  kIota,      // ints = {dimension}

  kKernel,  // ints = {index of the kernel}; operands: its prefetch, then its inputs
  kResult,  // of a kernel: ints = {index of the output}

  kTranspose,  // ints = permutation: out dimension i is operand dimension ints[i]
  kReshape,    // row-major order stays
  kBroadcast,  // ints: the result's dimension for each of the operand's
  kSlice,      // ints = starts, then limits
  kPad,        // operands: x, value; ints = low, then high
  kConcat,     // ints = {dimension}
  kGather,   // operands: x, starts [n]; ints = {dimension, size}. Size 0: that dimension becomes n;
             // else the result is [n, x with `size` there]. Starts are clamped.
  kScatter,  // operands: x, rows [n], updates as kGather of size 0 gives them; ints = {dimension,
             // rows differ}. Updates that do not fit are dropped.
  kConvert,

  kAdd,
  kSub,
  kMul,
  kDiv,  // integers: towards zero
  kRem,
  kMin,
  kMax,
  kAnd,
  kOr,
  kCompare,  // ints = {ir::Comparison}
  kSelect,   // operands: i1, a, b
  kNegate,
  kExp,
  kLogistic,

  // Operands: x, the start value. ints = {dimension}, which is dropped by all but kCumSum.
  kReduceSum,
  kCumSum,  // inclusive
};

struct Node {
  Op op;
  Type type;  // of a kernel: of its first output
  std::vector<int> operands;
  std::vector<int64_t> ints;
  double number = 0;
  std::vector<double> numbers;
};

struct Kernel {
  ir::Program program;
};

struct Port {
  std::string name;
  int node = -1;
  int gives_to = -1;  // of an input: the output that takes its memory
  int split = -1;     // dimension that is spread over the partitions; -1: each has the whole
};

class Module;

class Value {
 public:
  Value() = default;
  Value(Module* module, int node) : module_(module), node_(node) {}
  bool valid() const { return node_ >= 0; }
  Module* module() const { return module_; }
  int node() const { return node_; }
  const Type& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }

 private:
  Module* module_ = nullptr;
  int node_ = -1;
};

class Module {
 public:
  explicit Module(std::string name) : name_(std::move(name)) {}
  Module(Module&&) = delete;  // values point at it

  // Names are letters, digits and _, those of inputs with the exceptions of ir::IsName. No two
  // inputs, no two outputs and no two kernels share one.
  Value Input(const std::string& name, const Type& type);
  void Output(const std::string& name, Value value);
  // The output takes the input's memory, as kernels that work in place want it: else XLA copies.
  void Donate(const std::string& input, const std::string& output);
  // Nodes are what one of `partitions` chips computes, ports its parts: of each port that `split`
  // names, one of as many equal parts along that dimension; of the others the whole.
  void Partition(int count, const std::map<std::string, int>& split);
  Value Constant(DType dtype, double number, const Shape& shape = {});
  Value Literal(const Type& type, const std::vector<double>& numbers);
  Value Iota(const Shape& shape, int dimension);  // i32

  // Runs a kernel on its prefetch and inputs, in the order of its arguments; gives its outputs.
  std::vector<Value> Call(ir::Program program, const std::vector<Value>& operands);

  Value Emit(Op op, const Type& type, const std::vector<Value>& operands,
             const std::vector<int64_t>& ints = {}, double number = 0);

  const std::string& name() const { return name_; }
  const std::deque<Node>& nodes() const { return nodes_; }
  const Node& At(int node) const { return nodes_[static_cast<size_t>(node)]; }
  const std::vector<Kernel>& kernels() const { return kernels_; }
  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  int partitions = 1;  // chips one run is spread over
  // What a port is outside: its node's type, with all parts where it is split.
  Type Whole(const Port& port) const;
  // Keeps what kernels see through windows in HBM. Left to itself, XLA moves some of it to VMEM, as
  // far as that has room: then a kernel's code, and what its time is made of, vary with the program
  // around it (and libtpu 0.0.52 loses the labels of the kernel's branches).
  bool pin_windows = false;

 private:
  std::string name_;
  std::deque<Node> nodes_;  // types are handed out by reference
  std::vector<Kernel> kernels_;
  std::vector<Port> inputs_, outputs_;
};

// Shapes must agree, or one operand is a scalar or a C++ number.
Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator%(Value a, Value b);
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator*(Value a, double b);
Value operator/(Value a, double b);
Value operator-(Value a);
Value operator&(Value a, Value b);  // i1
Value operator|(Value a, Value b);
Value Min(Value a, Value b);
Value Max(Value a, Value b);
Value Min(Value a, double b);
Value Max(Value a, double b);
Value operator==(Value a, Value b);
Value operator!=(Value a, Value b);
Value operator<(Value a, Value b);
Value operator<=(Value a, Value b);
Value operator>(Value a, Value b);
Value operator>=(Value a, Value b);
Value operator==(Value a, double b);
Value operator<(Value a, double b);
Value operator>(Value a, double b);
Value operator>=(Value a, double b);
Value Select(Value mask, Value a, Value b);
Value Select(Value mask, Value a, double b);
Value Exp(Value a);
Value Logistic(Value a);
Value Cast(Value a, DType dtype);

Value Transpose(Value a, const std::vector<int64_t>& permutation);
Value Reshape(Value a, const Shape& shape);
// Dimension i of `a` becomes dimension dims[i] of the result, whose size is a's or a's is 1.
Value Broadcast(Value a, const Shape& shape, const std::vector<int64_t>& dims);
Value Slice(Value a, int dimension, int64_t start, int64_t size);
Value Pad(Value a, int dimension, int64_t low, int64_t high, double value);
Value Concat(const std::vector<Value>& parts, int dimension);
// Rows `indices` [n] of a dimension, which becomes n.
Value GatherRows(Value a, Value indices, int dimension);
// Slices of `size` from `starts` [n] on: [n, a's shape with `size` in that dimension].
Value GatherSlices(Value a, Value starts, int dimension, int64_t size);
// `a` with those replaced by `updates`, of the shape GatherRows gives.
// `distinct`: no two are the same.
Value ScatterRows(Value a, Value indices, Value updates, int dimension, bool distinct);
Value ReduceSum(Value a, int dimension);
Value CumSum(Value a, int dimension);  // inclusive

}  // namespace kda::tpu::hlo

#endif  // KDA_TPU_HLO_MODULE_H_
