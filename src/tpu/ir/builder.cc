#include "tpu/ir/builder.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "tpu/ir/refuse.h"

namespace kda::tpu::ir {

const Type& Value::type() const {
  Require(builder_ != nullptr, "a value that was never computed");
  return builder_->TypeOf(node_);
}

Ref::Ref(Builder* builder, int node) : builder_(builder), base_(node) {
  for (int64_t size : builder->TypeOf(node).shape) dimensions_.push_back({0, size, false});
}

DType Ref::dtype() const { return builder_->TypeOf(base_).dtype; }
Space Ref::space() const { return builder_->TypeOf(base_).space; }

Shape Ref::shape() const {
  Shape shape;
  for (const Dimension& d : dimensions_) {
    if (!d.dropped) shape.push_back(d.size);
  }
  return shape;
}

Ref Ref::At(std::initializer_list<Index> indices) const {
  Ref part = *this;
  auto d = part.dimensions_.begin();
  for (const Index& index : indices) {
    while (d != part.dimensions_.end() && d->dropped) ++d;
    Require(d != part.dimensions_.end(), "Ref::At: more indices than dimensions");
    RequireIndex(builder_, index);
    const bool known = index.IsConstant() && d->start.IsConstant();
    if (index.IsConstant() && (index.constant() < 0 || index.constant() >= d->size)) {
      Refuse("Ref::At: index " + std::to_string(index.constant()) + " of " +
             std::to_string(d->size));
    }
    if (known) {
      d->start = d->start.constant() + index.constant();
    } else if (d->start.IsConstant() && d->start.constant() == 0) {
      d->start = index;
    } else {
      d->start = builder_->AsValue(d->start) + builder_->AsValue(index);
    }
    d->size = 1;
    d->dropped = true;
  }
  return part;
}

Ref Ref::Slice(int dimension, Index start, int64_t size) const {
  RequireIndex(builder_, start);
  Ref part = *this;
  for (Dimension& d : part.dimensions_) {
    if (d.dropped || dimension-- != 0) continue;
    if (size < 1 || size > d.size ||
        (start.IsConstant() && (start.constant() < 0 || start.constant() + size > d.size))) {
      Refuse("Ref::Slice: " + std::to_string(size) + " from " +
             std::to_string(start.IsConstant() ? start.constant() : 0) + " of " +
             std::to_string(d.size));
    }
    if (start.IsConstant() && d.start.IsConstant()) {
      d.start = d.start.constant() + start.constant();
    } else if (d.start.IsConstant() && d.start.constant() == 0) {
      d.start = start;
    } else {
      d.start = builder_->AsValue(d.start) + builder_->AsValue(start);
    }
    d.size = size;
    return part;
  }
  Refuse("Ref::Slice: no such dimension");
}

int Ref::Node() const {
  Builder* const b = builder_;
  const Type& base = b->TypeOf(base_);
  Type sliced = base;
  std::vector<int> operands = {base_};
  std::vector<int64_t> starts, drop;
  bool whole = true, dropped = false;
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    const Dimension& d = dimensions_[i];
    // From elsewhere than 0 it may leave the memory, which the evaluator sees only if it is told.
    whole = whole && d.size == base.shape[i] && d.start.IsConstant() && d.start.constant() == 0;
    dropped = dropped || d.dropped;
    sliced.shape[i] = d.size;
    operands.push_back(d.start.node());
    starts.push_back(d.start.constant());
    drop.push_back(d.dropped ? 1 : 0);
  }
  int node = base_;
  if (!whole) node = b->Emit(Op::kRefSlice, sliced, operands, starts).node();
  if (dropped) {
    Type squeezed = sliced;
    squeezed.shape = shape();
    node = b->Emit(Op::kRefSqueeze, squeezed, {node}, drop).node();
  }
  return node;
}

Ref Ref::Words() const {
  Type type = {DType::kI32, shape(), space()};
  if (dtype() == DType::kBF16) {
    Require(type.shape.size() >= 2 && type.shape[type.shape.size() - 2] % 2 == 0,
            "Ref::Words: an even number of rows is needed");
    type.shape[type.shape.size() - 2] /= 2;
  }
  return Ref(builder_, builder_->Emit(Op::kRefBitcast, type, {this->Node()}).node());
}

Ref Ref::Reshape(const Shape& shape) const {
  Require(ElementCount(shape) == ElementCount(this->shape()),
          "Ref::Reshape: element counts differ");
  const Type type = {dtype(), shape, space()};
  return Ref(builder_, builder_->Emit(Op::kRefReshape, type, {this->Node()}).node());
}

// --- Builder -------------------------------------------------------------------------------------

Builder::Builder(const std::string& name) {
  program_.name = name;
  program_.body = AddBlock();
  stack_ = {program_.body};
}

int Builder::AddBlock() {
  Block block;
  block.parent = stack_.empty() ? -1 : stack_.back();
  program_.blocks.push_back(std::move(block));
  return static_cast<int>(program_.blocks.size()) - 1;
}

int Builder::AddNode(Node node) {
  node.label = label_;
  const int index = static_cast<int>(program_.nodes.size());
  // Arguments, grid indices and constants are everywhere; the rest belongs to the open block.
  const bool global = node.op == Op::kArgument || node.op == Op::kConstant;
  block_of_.push_back(global ? -1 : stack_.back());
  if (!global && node.op != Op::kBlockArgument) {
    program_.blocks[static_cast<size_t>(stack_.back())].nodes.push_back(index);
  }
  program_.nodes.push_back(std::move(node));
  return index;
}

void Builder::CheckVisible(int node) const {
  if (node < 0) return;
  Require(node < static_cast<int>(block_of_.size()), "a value of another program");
  const int block = block_of_[static_cast<size_t>(node)];
  if (block >= 0 && std::find(stack_.begin(), stack_.end(), block) == stack_.end()) {
    Refuse("a value is used outside the If, For or index map it was computed in");
  }
}

Value Builder::Emit(Op op, const Type& type, const std::vector<int>& operands,
                    const std::vector<int64_t>& ints, double number) {
  for (int operand : operands) CheckVisible(operand);
  Node node;
  node.op = op;
  node.type = type;
  node.operands = operands;
  node.ints = ints;
  node.number = number;
  return {this, AddNode(std::move(node))};
}

void Builder::EmitEffect(Op op, const std::vector<int>& operands,
                         const std::vector<int64_t>& ints) {
  const Value v = Emit(op, Type{}, operands, ints);
  program_.nodes[static_cast<size_t>(v.node())].has_result = false;
}

void Builder::Grid(const std::vector<int64_t>& bounds) {
  Require(program_.arguments.empty(), "Builder::Grid: before the arguments");
  for (int64_t n : bounds) Require(n > 0, "Builder::Grid: bounds must be positive");
  program_.grid = bounds;
}

bool IsName(const std::string& text) {
  bool plain = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0;
  bool digits = text.size() > 1;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    plain = plain && (std::isalnum(c) != 0 || c == '_');
    digits = digits && (i == 0 || std::isdigit(c) != 0);
  }
  return plain && !digits;
}

Ref Builder::AddArgument(Argument argument, const IndexMap* map) {
  if (!IsName(argument.name)) Refuse("\"" + argument.name + "\" is no name for an argument");
  if (map != nullptr && program_.grid.empty()) {
    Refuse("argument " + argument.name + ": a window needs a grid");
  }
  for (const Argument& a : program_.arguments) {
    if (a.name == argument.name) Refuse("two arguments are called " + argument.name);
    if (a.role > argument.role) {
      Refuse("argument " + argument.name + ": declare prefetch, inputs, outputs, scratch in turn");
    }
  }
  for (int64_t size : argument.memory.shape) {
    if (size <= 0) Refuse("argument " + argument.name + ": sizes must be positive");
  }
  if (map != nullptr) {
    const Shape &array = argument.array.shape, &block = argument.memory.shape;
    if (array.size() != block.size()) {
      Refuse("argument " + argument.name + ": window of rank " + std::to_string(block.size()) +
             " on an array of rank " + std::to_string(array.size()));
    }
    for (size_t i = 0; i < array.size(); ++i) {
      if (block[i] > array[i]) {
        Refuse("argument " + argument.name + ": window " + ToString(block) + " exceeds array " +
               ToString(array));
      }
    }
    argument.window.block = AddBlock();
    program_.blocks[static_cast<size_t>(argument.window.block)].parent = -1;
    const std::vector<int> saved = stack_;
    stack_ = {argument.window.block};
    std::vector<Value> grid;
    for (size_t i = 0; i < program_.grid.size(); ++i)
      grid.push_back(GridIndex(static_cast<int>(i)));
    for (const Value& v : (*map)(grid)) {
      RequireOf(this, v.builder());
      Require(v.type() == (Type{DType::kI32, {}, Space::kValue}), "index maps give i32 scalars");
      CheckVisible(v.node());
      argument.window.results.push_back(v.node());
    }
    if (argument.window.results.size() != array.size()) {
      Refuse("argument " + argument.name + ": its index map gives " +
             std::to_string(argument.window.results.size()) + " indices for rank " +
             std::to_string(array.size()));
    }
    stack_ = saved;
    for (int node : program_.blocks[static_cast<size_t>(argument.window.block)].nodes) {
      for (int operand : program_.nodes[static_cast<size_t>(node)].operands) {
        if (operand < 0) continue;
        const Node& used = program_.nodes[static_cast<size_t>(operand)];
        if (used.op == Op::kArgument &&
            program_.arguments[static_cast<size_t>(used.ints[0])].role != Role::kPrefetch) {
          Refuse("argument " + argument.name + ": index maps read prefetched scalars only");
        }
      }
    }
    argument.window.present = true;
  }
  Node node;
  node.op = Op::kArgument;
  node.type = argument.memory;
  node.ints = {static_cast<int64_t>(program_.arguments.size())};
  argument.node = AddNode(std::move(node));
  program_.arguments.push_back(argument);
  return Ref(this, argument.node);
}

Ref Builder::Prefetch(const std::string& name, DType dtype, const Shape& shape) {
  const Type type = {dtype, shape, Space::kSmem};
  return AddArgument({name, Role::kPrefetch, type, type, {}, -1}, nullptr);
}

Ref Builder::Input(const std::string& name, DType dtype, const Shape& array) {
  const Type type = {dtype, array, Space::kHbm};
  return AddArgument({name, Role::kInput, type, type, {}, -1}, nullptr);
}

Ref Builder::Input(const std::string& name, DType dtype, const Shape& array, const Shape& block,
                   const IndexMap& map, bool pipelined) {
  Argument a = {name, Role::kInput, {dtype, array, Space::kHbm}, {dtype, block, Space::kVmem}, {},
                -1};
  a.window.pipelined = pipelined;
  return AddArgument(std::move(a), &map);
}

Ref Builder::InputSmem(const std::string& name, DType dtype, const Shape& array) {
  const IndexMap zero = [this, &array](const std::vector<Value>&) {
    return std::vector<Value>(array.size(), Constant(DType::kI32, 0));
  };
  Argument a = {name, Role::kInput, {dtype, array, Space::kHbm}, {dtype, array, Space::kSmem}, {},
                -1};
  a.window.pipelined = false;
  return AddArgument(std::move(a), &zero);
}

Ref Builder::InputVmem(const std::string& name, DType dtype, const Shape& array) {
  return Input(
      name, dtype, array, array,
      [this, &array](const std::vector<Value>&) {
        return std::vector<Value>(array.size(), Constant(DType::kI32, 0));
      },
      false);
}

Ref Builder::Output(const std::string& name, DType dtype, const Shape& array) {
  const Type type = {dtype, array, Space::kHbm};
  return AddArgument({name, Role::kOutput, type, type, {}, -1}, nullptr);
}

Ref Builder::Output(const std::string& name, DType dtype, const Shape& array, const Shape& block,
                    const IndexMap& map) {
  return AddArgument(
      {name, Role::kOutput, {dtype, array, Space::kHbm}, {dtype, block, Space::kVmem}, {}, -1},
      &map);
}

Ref Builder::Scratch(const std::string& name, DType dtype, const Shape& shape) {
  const Type type = {dtype, shape, Space::kVmem};
  return AddArgument({name, Role::kScratch, type, type, {}, -1}, nullptr);
}

Ref Builder::ScratchSmem(const std::string& name, DType dtype, const Shape& shape) {
  const Type type = {dtype, shape, Space::kSmem};
  return AddArgument({name, Role::kScratch, type, type, {}, -1}, nullptr);
}

Ref Builder::Semaphores(const std::string& name, int64_t count) {
  const Type type = {DType::kDmaSemaphore, {count}, Space::kSemaphore};
  return AddArgument({name, Role::kScratch, type, type, {}, -1}, nullptr);
}

void Builder::Alias(const std::string& input, const std::string& output) {
  int in = -1, out = -1, inputs = 0, outputs = 0;
  const Argument *from = nullptr, *to = nullptr;
  for (const Argument& a : program_.arguments) {
    if (a.role == Role::kInput || a.role == Role::kPrefetch) {
      if (a.name == input) in = inputs, from = &a;
      ++inputs;
    } else if (a.role == Role::kOutput) {
      if (a.name == output) out = outputs, to = &a;
      ++outputs;
    }
  }
  Require(in >= 0 && out >= 0, "Builder::Alias: no such arguments");
  Require(from->array == to->array, "Builder::Alias: the arrays differ in type");
  program_.aliases.emplace_back(in, out);
}

Builder::Label::Label(Builder* builder, const std::string& stage, int head)
    : builder_(builder), before_(builder->label_) {
  const std::string name = head < 0 ? stage : stage + ":h" + std::to_string(head);
  std::vector<std::string>& labels = builder->program_.labels;
  const auto at = std::find(labels.begin(), labels.end(), name);
  builder->label_ = static_cast<int>(at - labels.begin());
  if (at == labels.end()) labels.push_back(name);
}

Builder::Label::~Label() { builder_->label_ = before_; }

Value Builder::GridIndex(int dimension) {
  Require(dimension >= 0 && dimension < static_cast<int>(program_.grid.size()),
          "Builder::GridIndex: no such dimension");
  return Emit(Op::kGridIndex, {DType::kI32, {}, Space::kValue}, {}, {dimension});
}

Value Builder::Constant(DType dtype, double number, const Shape& shape) {
  if (dtype == DType::kI32 &&
      !(number >= -0x1p31 && number < 0x1p31 && number == std::trunc(number))) {
    Refuse("Constant: " + std::to_string(number) + " is no i32");
  }
  return Emit(Op::kConstant, {dtype, shape, Space::kValue}, {}, {}, number);
}

Value Builder::Iota(const Shape& shape, int dimension) {
  Require(dimension >= 0 && dimension < static_cast<int>(shape.size()), "Iota: no such dimension");
  return Emit(Op::kIota, {DType::kI32, shape, Space::kValue}, {}, {dimension});
}

Value Builder::AsValue(Index index) {
  RequireIndex(this, index);
  return index.IsConstant() ? Constant(DType::kI32, static_cast<double>(index.constant()))
                            : index.value();
}

void Builder::If(Value condition, const std::function<void()>& then,
                 const std::function<void()>& otherwise) {
  Require(condition.type() == (Type{DType::kI1, {}, Space::kValue}), "If: an i1 scalar is needed");
  RequireOf(this, condition.builder());
  EmitEffect(Op::kIf, {condition.node()});
  const size_t node = program_.nodes.size() - 1;
  for (const std::function<void()>* part : {&then, &otherwise}) {
    if (!*part) continue;
    const int block = AddBlock();
    program_.nodes[node].blocks.push_back(block);
    stack_.push_back(block);
    (*part)();
    stack_.pop_back();
  }
}

void Builder::For(Index lower, Index upper, const std::function<void(Value)>& body) {
  const int from = AsValue(lower).node(), to = AsValue(upper).node();
  const int step = Constant(DType::kI32, 1).node();
  EmitEffect(Op::kFor, {from, to, step});
  const size_t node = program_.nodes.size() - 1;
  const int block = AddBlock();
  program_.nodes[node].blocks.push_back(block);
  stack_.push_back(block);
  Node argument;
  argument.op = Op::kBlockArgument;
  argument.type = {DType::kI32, {}, Space::kValue};
  const int index = AddNode(std::move(argument));
  program_.blocks[static_cast<size_t>(block)].arguments = {index};
  body(Value(this, index));
  stack_.pop_back();
}

Program Builder::Take() {
  Require(stack_.size() == 1, "Builder::Take: inside a block");
  return std::move(program_);
}

}  // namespace kda::tpu::ir
