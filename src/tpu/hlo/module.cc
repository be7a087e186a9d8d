#include "tpu/hlo/module.h"

#include <algorithm>
#include <utility>

#include "tpu/ir/refuse.h"

namespace kda::tpu::hlo {

namespace {

using ir::Refuse;
using ir::Require;

Module* ModuleOf(Value a) {
  Require(a.valid(), "a value that was never computed");
  return a.module();
}

std::string Both(Value a, Value b) { return ToString(a.type()) + " and " + ToString(b.type()); }

bool IsDimension(Value a, int dimension) {
  return dimension >= 0 && dimension < static_cast<int>(a.shape().size());
}

}  // namespace

std::string ToString(const Type& type) {
  const std::string shape = type.shape.empty() ? "" : ir::ToString(type.shape) + "x";
  return "tensor<" + shape + ir::ToString(type.dtype) + ">";
}

const Type& Value::type() const {
  Require(module_ != nullptr, "a value that was never computed");
  return module_->At(node_).type;
}

// --- Module --------------------------------------------------------------------------------------

Value Module::Emit(Op op, const Type& type, const std::vector<Value>& operands,
                   const std::vector<int64_t>& ints, double number) {
  Node node;
  node.op = op;
  node.type = type;
  node.ints = ints;
  node.number = number;
  for (const Value& v : operands) {
    Require(v.valid() && v.module() == this, "a value of another module");
    node.operands.push_back(v.node());
  }
  nodes_.push_back(std::move(node));
  return {this, static_cast<int>(nodes_.size()) - 1};
}

namespace {

void CheckName(const char* what, bool ok, const std::string& name,
               const std::vector<Port>& others) {
  if (!ok) Refuse("\"" + name + "\" is no name for an " + what);
  for (const Port& p : others) {
    if (p.name == name) Refuse("two " + std::string(what) + "s are called " + name);
  }
}

}  // namespace

Value Module::Input(const std::string& name, const Type& type) {
  CheckName("input", ir::IsName(name), name, inputs_);
  const Value v = Emit(Op::kInput, type, {}, {static_cast<int64_t>(inputs_.size())});
  inputs_.push_back({name, v.node()});
  return v;
}

void Module::Output(const std::string& name, Value value) {
  CheckName("output", !name.empty() && ir::IsName("whole_" + name), name, outputs_);
  Require(value.valid() && value.module() == this, "a value of another module");
  outputs_.push_back({name, value.node()});
}

void Module::Donate(const std::string& input, const std::string& output) {
  for (Port& in : inputs_) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (in.name != input || outputs_[i].name != output) continue;
      if (At(in.node).type != At(outputs_[i].node).type) Refuse("Donate: " + input + " differs");
      in.gives_to = static_cast<int>(i);
      return;
    }
  }
  Refuse("Donate: no input " + input + " or no output " + output);
}

void Module::Partition(int count, const std::map<std::string, int>& split) {
  Require(count > 0, "Partition: no chips");
  for (std::vector<Port>* ports : {&inputs_, &outputs_}) {
    for (Port& p : *ports) {
      const auto it = split.find(p.name);
      p.split = it == split.end() ? -1 : it->second;
      Require(p.split < static_cast<int>(At(p.node).type.shape.size()),
              "Partition: no such dimension");
    }
  }
  partitions = count;
}

Type Module::Whole(const Port& port) const {
  Type type = At(port.node).type;
  if (port.split >= 0) type.shape[static_cast<size_t>(port.split)] *= partitions;
  return type;
}

Value Module::Constant(DType dtype, double number, const Shape& shape) {
  return Emit(Op::kConstant, {dtype, shape}, {}, {}, number);
}

Value Module::Literal(const Type& type, const std::vector<double>& numbers) {
  Require(ir::ElementCount(type.shape) == static_cast<int64_t>(numbers.size()),
          "Literal: one number per element");
  const Value v = Emit(Op::kLiteral, type, {});
  nodes_.back().numbers = numbers;
  return v;
}

Value Module::Iota(const Shape& shape, int dimension) {
  Require(dimension >= 0 && dimension < static_cast<int>(shape.size()), "Iota: no such dimension");
  return Emit(Op::kIota, {DType::kI32, shape}, {}, {dimension});
}

std::vector<Value> Module::Call(ir::Program program, const std::vector<Value>& operands) {
  for (const Kernel& kernel : kernels_) {
    if (kernel.program.name == program.name) Refuse("two kernels are called " + program.name);
  }
  size_t next = 0;
  std::vector<Type> results;
  for (const ir::Argument& a : program.arguments) {
    const Type type = {a.array.dtype, a.array.shape};
    if (a.role == ir::Role::kOutput) results.push_back(type);
    if (a.role != ir::Role::kPrefetch && a.role != ir::Role::kInput) continue;
    if (next >= operands.size() || operands[next].type() != type) {
      Refuse("kernel " + program.name + ": argument " + a.name + " is " + ToString(type) +
             ", given " +
             (next < operands.size() ? ToString(operands[next].type()) : std::string("nothing")));
    }
    ++next;
  }
  Require(next == operands.size(), "Module::Call: more operands than the kernel has inputs");
  Require(!results.empty(), "Module::Call: a kernel without outputs");
  const Value call =
      Emit(Op::kKernel, results[0], operands, {static_cast<int64_t>(kernels_.size())});
  kernels_.push_back({std::move(program)});
  std::vector<Value> outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    outputs.push_back(Emit(Op::kResult, results[i], {call}, {static_cast<int64_t>(i)}));
  }
  return outputs;
}

// --- Elementwise ---------------------------------------------------------------------------------

namespace {

Value Like(Value a, double number) { return ModuleOf(a)->Constant(a.dtype(), number); }

Value Spread(Value a, const Shape& shape) {
  return a.shape() == shape ? a : Broadcast(a, shape, {});
}

void Match(const char* what, Value* a, Value* b) {
  ModuleOf(*a);
  ModuleOf(*b);
  if (a->dtype() != b->dtype()) Refuse(std::string(what) + ": " + Both(*a, *b));
  const Shape shape = a->shape().empty() ? b->shape() : a->shape();
  for (Value* v : {a, b}) {
    if (!v->shape().empty() && v->shape() != shape) Refuse(std::string(what) + ": " + Both(*a, *b));
    *v = Spread(*v, shape);
  }
}

Value Binary(Op op, const char* what, Value a, Value b) {
  Match(what, &a, &b);
  const bool logic = op == Op::kAnd || op == Op::kOr;
  if ((a.dtype() == DType::kI1) != logic) Refuse(std::string(what) + " of " + ToString(a.type()));
  return a.module()->Emit(op, a.type(), {a, b});
}

Value Compare(ir::Comparison comparison, Value a, Value b) {
  Match("comparison", &a, &b);
  return a.module()->Emit(Op::kCompare, {DType::kI1, a.shape()}, {a, b},
                          {static_cast<int64_t>(comparison)});
}

Value Unary(Op op, const char* what, Value a) {
  Module* const module = ModuleOf(a);
  if (!ir::IsFloat(a.dtype()) && op != Op::kNegate)
    Refuse(std::string(what) + " of " + ToString(a.type()));
  return module->Emit(op, a.type(), {a});
}

}  // namespace

Value operator+(Value a, Value b) { return Binary(Op::kAdd, "+", a, b); }
Value operator-(Value a, Value b) { return Binary(Op::kSub, "-", a, b); }
Value operator*(Value a, Value b) { return Binary(Op::kMul, "*", a, b); }
Value operator/(Value a, Value b) { return Binary(Op::kDiv, "/", a, b); }
Value operator%(Value a, Value b) { return Binary(Op::kRem, "%", a, b); }
Value operator+(Value a, double b) { return a + Like(a, b); }
Value operator-(Value a, double b) { return a - Like(a, b); }
Value operator*(Value a, double b) { return a * Like(a, b); }
Value operator/(Value a, double b) { return a / Like(a, b); }
Value operator-(Value a) { return Unary(Op::kNegate, "-", a); }
Value operator&(Value a, Value b) { return Binary(Op::kAnd, "&", a, b); }
Value operator|(Value a, Value b) { return Binary(Op::kOr, "|", a, b); }
Value Min(Value a, Value b) { return Binary(Op::kMin, "Min", a, b); }
Value Max(Value a, Value b) { return Binary(Op::kMax, "Max", a, b); }
Value Min(Value a, double b) { return Min(a, Like(a, b)); }
Value Max(Value a, double b) { return Max(a, Like(a, b)); }
Value operator==(Value a, Value b) { return Compare(ir::Comparison::kEq, a, b); }
Value operator!=(Value a, Value b) { return Compare(ir::Comparison::kNe, a, b); }
Value operator<(Value a, Value b) { return Compare(ir::Comparison::kLt, a, b); }
Value operator<=(Value a, Value b) { return Compare(ir::Comparison::kLe, a, b); }
Value operator>(Value a, Value b) { return Compare(ir::Comparison::kGt, a, b); }
Value operator>=(Value a, Value b) { return Compare(ir::Comparison::kGe, a, b); }
Value operator==(Value a, double b) { return a == Like(a, b); }
Value operator<(Value a, double b) { return a < Like(a, b); }
Value operator>(Value a, double b) { return a > Like(a, b); }
Value operator>=(Value a, double b) { return a >= Like(a, b); }

Value Select(Value mask, Value a, Value b) {
  Match("Select", &a, &b);
  if (ModuleOf(mask)->At(mask.node()).type.dtype != DType::kI1) Refuse("Select: i1 is needed");
  if (a.shape().empty()) {
    a = Spread(a, mask.shape());
    b = Spread(b, mask.shape());
  }
  if (mask.shape() != a.shape()) Refuse("Select: " + ToString(mask.type()) + " of " + Both(a, b));
  return a.module()->Emit(Op::kSelect, a.type(), {mask, a, b});
}

Value Select(Value mask, Value a, double b) { return Select(mask, a, Like(a, b)); }
Value Exp(Value a) { return Unary(Op::kExp, "Exp", a); }
Value Logistic(Value a) { return Unary(Op::kLogistic, "Logistic", a); }

Value Cast(Value a, DType dtype) {
  if (a.dtype() == dtype) return a;
  Require(dtype != DType::kI1 && dtype != DType::kDmaSemaphore, "Cast: to f32, bf16 or i32 only");
  return ModuleOf(a)->Emit(Op::kConvert, {dtype, a.shape()}, {a});
}

// --- Shapes --------------------------------------------------------------------------------------

Value Transpose(Value a, const std::vector<int64_t>& permutation) {
  Require(permutation.size() == a.shape().size(), "Transpose: one entry per dimension");
  Shape shape;
  std::vector<bool> seen(permutation.size(), false);
  for (int64_t p : permutation) {
    Require(p >= 0 && p < static_cast<int64_t>(seen.size()) && !seen[static_cast<size_t>(p)],
            "Transpose: not a permutation");
    seen[static_cast<size_t>(p)] = true;
    shape.push_back(a.shape()[static_cast<size_t>(p)]);
  }
  return a.module()->Emit(Op::kTranspose, {a.dtype(), shape}, {a}, permutation);
}

Value Reshape(Value a, const Shape& shape) {
  if (a.shape() == shape) return a;
  if (ir::ElementCount(a.shape()) != ir::ElementCount(shape)) {
    Refuse("Reshape of " + ToString(a.type()) + " to " + ir::ToString(shape));
  }
  return a.module()->Emit(Op::kReshape, {a.dtype(), shape}, {a});
}

Value Broadcast(Value a, const Shape& shape, const std::vector<int64_t>& dims) {
  bool fits = dims.size() == a.shape().size();
  for (size_t i = 0; fits && i < dims.size(); ++i) {
    fits = dims[i] >= 0 && dims[i] < static_cast<int64_t>(shape.size()) &&
           (i == 0 || dims[i] > dims[i - 1]) &&
           (a.shape()[i] == 1 || a.shape()[i] == shape[static_cast<size_t>(dims[i])]);
  }
  if (!fits) Refuse("Broadcast of " + ToString(a.type()) + " to " + ir::ToString(shape));
  return a.module()->Emit(Op::kBroadcast, {a.dtype(), shape}, {a}, dims);
}

Value Slice(Value a, int dimension, int64_t start, int64_t size) {
  if (!IsDimension(a, dimension) || start < 0 || size < 1 ||
      start + size > a.shape()[static_cast<size_t>(dimension)]) {
    Refuse("Slice: [" + std::to_string(start) + ", " + std::to_string(start + size) +
           ") of dimension " + std::to_string(dimension) + " of " + ToString(a.type()));
  }
  Shape shape = a.shape();
  if (shape[static_cast<size_t>(dimension)] == size) return a;
  std::vector<int64_t> ints(shape.size(), 0);
  ints[static_cast<size_t>(dimension)] = start;
  ints.insert(ints.end(), shape.begin(), shape.end());
  ints[shape.size() + static_cast<size_t>(dimension)] = start + size;
  shape[static_cast<size_t>(dimension)] = size;
  return a.module()->Emit(Op::kSlice, {a.dtype(), shape}, {a}, ints);
}

Value Pad(Value a, int dimension, int64_t low, int64_t high, double value) {
  Require(IsDimension(a, dimension) && low >= 0 && high >= 0, "Pad: no such dimension");
  if (low == 0 && high == 0) return a;
  Shape shape = a.shape();
  std::vector<int64_t> ints(2 * shape.size(), 0);
  ints[static_cast<size_t>(dimension)] = low;
  ints[shape.size() + static_cast<size_t>(dimension)] = high;
  shape[static_cast<size_t>(dimension)] += low + high;
  return a.module()->Emit(Op::kPad, {a.dtype(), shape}, {a, Like(a, value)}, ints);
}

Value Concat(const std::vector<Value>& parts, int dimension) {
  Require(!parts.empty() && IsDimension(parts[0], dimension), "Concat: no such dimension");
  if (parts.size() == 1) return parts[0];
  const auto d = static_cast<size_t>(dimension);
  Shape shape = parts[0].shape();
  int64_t total = 0;
  for (const Value& v : parts) {
    Shape other = v.shape();
    if (other.size() != shape.size() || v.dtype() != parts[0].dtype()) {
      Refuse("Concat: " + Both(parts[0], v));
    }
    total += other[d];
    other[d] = shape[d];
    if (other != shape) Refuse("Concat: " + Both(parts[0], v));
  }
  shape[d] = total;
  return parts[0].module()->Emit(Op::kConcat, {parts[0].dtype(), shape}, parts, {dimension});
}

// --- Gathers, scatters, sums ---------------------------------------------------------------------

namespace {

Type Gathered(const char* what, Value a, Value starts, int dimension, int64_t size) {
  if (!IsDimension(a, dimension) || starts.dtype() != DType::kI32 || starts.shape().size() != 1 ||
      size > a.shape()[static_cast<size_t>(dimension)]) {
    Refuse(std::string(what) + ": dimension " + std::to_string(dimension) + " of " +
           Both(a, starts));
  }
  Type type = a.type();
  type.shape[static_cast<size_t>(dimension)] = size == 0 ? starts.shape()[0] : size;
  if (size != 0) type.shape.insert(type.shape.begin(), starts.shape()[0]);
  return type;
}

Value Reduce(Op op, const char* what, Value a, int dimension) {
  if (!IsDimension(a, dimension) || a.dtype() == DType::kI1) {
    Refuse(std::string(what) + ": dimension " + std::to_string(dimension) + " of " +
           ToString(a.type()));
  }
  Type type = a.type();
  if (op != Op::kCumSum) type.shape.erase(type.shape.begin() + dimension);
  return a.module()->Emit(op, type, {a, Like(a, 0)}, {dimension});
}

}  // namespace

Value GatherRows(Value a, Value indices, int dimension) {
  const Type type = Gathered("GatherRows", a, indices, dimension, 0);
  return a.module()->Emit(Op::kGather, type, {a, indices}, {dimension, 0});
}

Value GatherSlices(Value a, Value starts, int dimension, int64_t size) {
  Require(size >= 1, "GatherSlices: a size is needed");
  const Type type = Gathered("GatherSlices", a, starts, dimension, size);
  return a.module()->Emit(Op::kGather, type, {a, starts}, {dimension, size});
}

Value ScatterRows(Value a, Value indices, Value updates, int dimension, bool distinct) {
  if (updates.type() != Gathered("ScatterRows", a, indices, dimension, 0)) {
    Refuse("ScatterRows: " + Both(a, updates));
  }
  return a.module()->Emit(Op::kScatter, a.type(), {a, indices, updates},
                          {dimension, distinct ? 1 : 0});
}

Value ReduceSum(Value a, int dimension) {
  return Reduce(Op::kReduceSum, "ReduceSum", a, dimension);
}
Value CumSum(Value a, int dimension) { return Reduce(Op::kCumSum, "CumSum", a, dimension); }

}  // namespace kda::tpu::hlo
