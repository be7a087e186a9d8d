#include "tpu/ir/builder.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace kda::tpu::ir {

namespace {

[[noreturn]] void Refuse(const std::string& what) { throw BuildError(what); }

void Require(bool ok, const char* what) {
  if (!ok) Refuse(what);
}

void RequireIndex(const Index& index) {
  if (!index.IsConstant() && index.value().type() != Type{DType::kI32, {}, Space::kValue}) {
    Refuse("an index must be an i32 scalar, not " + ToString(index.value().type()));
  }
}

Shape TileShape(const Type& type) {
  // Tiles in VMEM are 8 x 128 words; bf16 packs two rows into one.
  const int64_t rows = type.dtype == DType::kBF16 ? 16 : 8;
  return {rows, 128};
}

int64_t PaddedBytes(const Type& type) {
  Shape shape = type.shape;
  const Shape tile = TileShape(type);
  const auto pad = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  if (!shape.empty()) shape.back() = pad(shape.back(), tile[1]);
  if (shape.size() > 1) {
    int64_t& rows = shape[shape.size() - 2];
    // Fewer rows than a tile take a smaller one, down to one word row.
    int64_t unit = type.dtype == DType::kBF16 ? 2 : 1;
    while (unit < tile[0] && unit < rows) unit *= 2;
    rows = pad(rows, unit);
  }
  return ElementCount(shape) * BitsOf(type.dtype) / 8;
}

}  // namespace

const Argument& Program::Get(Role role, int position) const {
  for (const Argument& a : arguments) {
    if (a.role == role && position-- == 0) return a;
  }
  Refuse("no such argument");
}

int Program::Count(Role role) const {
  int count = 0;
  for (const Argument& a : arguments) count += a.role == role ? 1 : 0;
  return count;
}

int64_t Program::VmemBytes() const {
  int64_t bytes = 0;
  for (const Argument& a : arguments) {
    if (a.memory.space != Space::kVmem) continue;
    bytes += PaddedBytes(a.memory) * (a.window.present && a.window.pipelined ? 2 : 1);
  }
  return bytes;
}

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
    RequireIndex(index);
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
  RequireIndex(start);
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
    whole = whole && d.size == base.shape[i];
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

// --- Builder ----------------------------------------------------------------------------------------

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
  if (node >= static_cast<int>(block_of_.size())) Refuse("a value of another program");
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

namespace {

// The printer's own names are a letter and digits: %c3, %g0, %i7.
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

}  // namespace

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
  RequireIndex(index);
  return index.IsConstant() ? Constant(DType::kI32, static_cast<double>(index.constant()))
                            : index.value();
}

void Builder::If(Value condition, const std::function<void()>& then,
                 const std::function<void()>& otherwise) {
  Require(condition.type() == (Type{DType::kI1, {}, Space::kValue}), "If: an i1 scalar is needed");
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

// --- Elementwise ------------------------------------------------------------------------------------

namespace {

Builder* BuilderOf(Value a) {
  Require(a.valid(), "a value that was never computed");
  return a.builder();
}

std::string Both(Value a, Value b) { return ToString(a.type()) + " and " + ToString(b.type()); }

// The shape both broadcast to.
Shape Common(const char* what, Value a, Value b) {
  const Shape &x = a.shape(), &y = b.shape();
  if (x.empty()) return y;
  if (y.empty()) return x;
  if (x.size() != y.size()) Refuse(std::string(what) + ": " + Both(a, b));
  Shape shape = x;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != y[i] && x[i] != 1 && y[i] != 1) Refuse(std::string(what) + ": " + Both(a, b));
    shape[i] = std::max(x[i], y[i]);
  }
  return shape;
}

Value Binary(Op op, const char* what, Value a, Value b, bool integers_only = false) {
  Builder* const builder = BuilderOf(a);
  if (a.dtype() != b.dtype()) Refuse(std::string(what) + ": " + Both(a, b));
  const bool logic = op == Op::kAnd || op == Op::kOr || op == Op::kXor;
  if (integers_only && IsFloat(a.dtype())) Refuse(std::string(what) + " of " + ToString(a.type()));
  if (a.dtype() == DType::kI1 && !logic) Refuse(std::string(what) + " of i1");
  const Shape shape = Common(what, a, b);
  const int left = BroadcastTo(a, shape).node(), right = BroadcastTo(b, shape).node();
  return builder->Emit(op, {a.dtype(), shape, Space::kValue}, {left, right});
}

Value Like(Value a, double number) { return BuilderOf(a)->Constant(a.dtype(), number, a.shape()); }

Value Compare(Comparison comparison, Value a, Value b) {
  if (a.dtype() != b.dtype()) Refuse("comparison: " + Both(a, b));
  const Shape shape = Common("comparison", a, b);
  const int left = BroadcastTo(a, shape).node(), right = BroadcastTo(b, shape).node();
  return a.builder()->Emit(Op::kCompare, {DType::kI1, shape, Space::kValue}, {left, right},
                           {static_cast<int64_t>(comparison)});
}

Value Unary(Op op, const char* what, Value a, const std::vector<int64_t>& ints = {}) {
  Builder* const builder = BuilderOf(a);
  if (!IsFloat(a.dtype())) Refuse(std::string(what) + " of " + ToString(a.type()));
  return builder->Emit(op, a.type(), {a.node()}, ints);
}

Value Shift(Op op, Value a, int bits) {
  if (bits < 0 || bits > 31) Refuse("a shift by " + std::to_string(bits) + " bits");
  return Binary(op, "a shift", a, Like(a, bits), true);
}

}  // namespace

Value operator+(Value a, Value b) { return Binary(Op::kAdd, "+", a, b); }
Value operator-(Value a, Value b) { return Binary(Op::kSub, "-", a, b); }
Value operator*(Value a, Value b) { return Binary(Op::kMul, "*", a, b); }
Value operator/(Value a, Value b) { return Binary(Op::kDiv, "/", a, b); }
Value operator%(Value a, Value b) { return Binary(Op::kRem, "%", a, b, true); }
Value operator&(Value a, Value b) { return Binary(Op::kAnd, "&", a, b, true); }
Value operator|(Value a, Value b) { return Binary(Op::kOr, "|", a, b, true); }
Value operator^(Value a, Value b) { return Binary(Op::kXor, "^", a, b, true); }
Value operator<<(Value a, int bits) { return Shift(Op::kShiftLeft, a, bits); }
Value ShiftRight(Value a, int bits) { return Shift(Op::kShiftRight, a, bits); }
Value operator-(Value a) { return Like(a, 0) - a; }
Value operator~(Value a) { return a ^ Like(a, a.dtype() == DType::kI1 ? 1 : -1); }
Value operator+(Value a, double b) { return a + Like(a, b); }
Value operator-(Value a, double b) { return a - Like(a, b); }
Value operator*(Value a, double b) { return a * Like(a, b); }
Value operator/(Value a, double b) { return a / Like(a, b); }
Value operator%(Value a, int64_t b) { return a % Like(a, static_cast<double>(b)); }
Value operator&(Value a, uint32_t b) {
  return a & Like(a, static_cast<double>(static_cast<int32_t>(b)));
}
Value operator+(double a, Value b) { return Like(b, a) + b; }
Value operator-(double a, Value b) { return Like(b, a) - b; }
Value operator*(double a, Value b) { return Like(b, a) * b; }
Value Min(Value a, Value b) { return Binary(Op::kMin, "Min", a, b); }
Value Max(Value a, Value b) { return Binary(Op::kMax, "Max", a, b); }
Value Min(Value a, double b) { return Min(a, Like(a, b)); }
Value Max(Value a, double b) { return Max(a, Like(a, b)); }
Value operator==(Value a, Value b) { return Compare(Comparison::kEq, a, b); }
// Mosaic has no "unordered or not equal" of floats.
Value operator!=(Value a, Value b) {
  return IsFloat(a.dtype()) ? ~(a == b) : Compare(Comparison::kNe, a, b);
}
Value operator<(Value a, Value b) { return Compare(Comparison::kLt, a, b); }
Value operator<=(Value a, Value b) { return Compare(Comparison::kLe, a, b); }
Value operator>(Value a, Value b) { return Compare(Comparison::kGt, a, b); }
Value operator>=(Value a, Value b) { return Compare(Comparison::kGe, a, b); }
Value operator==(Value a, int64_t b) { return a == Like(a, static_cast<double>(b)); }
Value operator!=(Value a, int64_t b) { return a != Like(a, static_cast<double>(b)); }
Value operator<(Value a, int64_t b) { return a < Like(a, static_cast<double>(b)); }
Value operator<=(Value a, int64_t b) { return a <= Like(a, static_cast<double>(b)); }
Value operator>(Value a, int64_t b) { return a > Like(a, static_cast<double>(b)); }
Value operator>=(Value a, int64_t b) { return a >= Like(a, static_cast<double>(b)); }

Value Select(Value mask, Value a, Value b) {
  if (mask.dtype() != DType::kI1 || a.dtype() != b.dtype()) {
    Refuse("Select: " + ToString(mask.type()) + " of " + Both(a, b));
  }
  Shape shape = Common("Select", a, b);
  if (!mask.shape().empty()) {
    if (shape.empty()) shape = mask.shape();
    if (mask.shape() != shape) {
      Refuse("Select: " + ToString(mask.type()) + " of " + Both(a, b));
    }
  }
  return mask.builder()->Emit(
      Op::kSelect, {a.dtype(), shape, Space::kValue},
      {mask.node(), BroadcastTo(a, shape).node(), BroadcastTo(b, shape).node()});
}

Value Select(Value mask, Value a, double b) { return Select(mask, a, Like(a, b)); }
Value Exp2(Value a) { return Unary(Op::kExp2, "Exp2", a); }
Value Log(Value a) { return Unary(Op::kLog, "Log", a); }
Value Tanh(Value a) { return Unary(Op::kTanh, "Tanh", a); }
Value Rsqrt(Value a) { return Unary(Op::kRsqrt, "Rsqrt", a); }
Value Abs(Value a) { return Unary(Op::kAbs, "Abs", a); }
Value Reciprocal(Value a, bool approximate) {
  return Unary(Op::kReciprocal, "Reciprocal", a, {approximate ? 1 : 0});
}

Value Cast(Value a, DType dtype) {
  if (a.dtype() == dtype) return a;
  Require(dtype != DType::kI1 && dtype != DType::kDmaSemaphore, "Cast: to f32, bf16 or i32 only");
  return BuilderOf(a)->Emit(Op::kConvert, {dtype, a.shape(), Space::kValue}, {a.node()});
}

Value AssumeMultiple(Value a, int64_t factor) {
  if (a.type() != Type{DType::kI32, {}, Space::kValue} || factor < 1) {
    Refuse("AssumeMultiple: " + ToString(a.type()));
  }
  return BuilderOf(a)->Emit(Op::kAssumeMultiple, a.type(), {a.node()}, {factor});
}

// --- Vectors ----------------------------------------------------------------------------------------

Value Bits(Value a, DType dtype) {
  if (a.dtype() == dtype) return a;
  Shape shape = a.shape();
  Require(BitsOf(a.dtype()) >= 16 && BitsOf(dtype) >= 16, "Bits: of f32, i32 and bf16 only");
  if (BitsOf(a.dtype()) != BitsOf(dtype)) {
    Require(shape.size() >= 2, "Bits: between 16 and 32 bits, a matrix is needed");
    int64_t& rows = shape[shape.size() - 2];
    if (dtype == DType::kBF16) {
      rows *= 2;
    } else {
      Require(rows % 2 == 0, "Bits: an even number of rows is needed");
      rows /= 2;
    }
  }
  return BuilderOf(a)->Emit(Op::kBitcast, {dtype, shape, Space::kValue}, {a.node()});
}

Value BroadcastTo(Value a, const Shape& shape) {
  const Shape& from = a.shape();
  if (from == shape) return a;
  Builder* const builder = BuilderOf(a);
  bool fits = from.size() <= shape.size();
  for (size_t i = 0; fits && i < from.size(); ++i) {
    const int64_t n = from[from.size() - 1 - i], to = shape[shape.size() - 1 - i];
    fits = n == to || n == 1;
  }
  if (!fits) Refuse("broadcast of " + ToString(a.type()) + " to " + ToString(shape));
  return builder->Emit(Op::kBroadcast, {a.dtype(), shape, Space::kValue}, {a.node()});
}

Value Reshape(Value a, const Shape& shape) {
  if (ElementCount(a.shape()) != ElementCount(shape)) {
    Refuse("Reshape of " + ToString(a.type()) + " to " + ToString(shape));
  }
  if (a.shape() == shape) return a;
  Require(!a.shape().empty() && !shape.empty(), "Reshape: of vectors to vectors only");
  return BuilderOf(a)->Emit(Op::kShapeCast, {a.dtype(), shape, Space::kValue}, {a.node()});
}

Value Slice(Value a, int dimension, int64_t start, int64_t size) {
  Shape shape = a.shape();
  const auto d = static_cast<size_t>(dimension);
  if (d >= shape.size() || start < 0 || size < 1 || start + size > shape[d]) {
    Refuse("Slice: [" + std::to_string(start) + ", " + std::to_string(start + size) +
           ") of dimension " + std::to_string(dimension) + " of " + ToString(a.type()));
  }
  if (size == shape[d]) return a;
  std::vector<int64_t> ints(shape.size(), 0);
  ints[d] = start;
  shape[d] = size;
  ints.insert(ints.end(), shape.begin(), shape.end());
  return BuilderOf(a)->Emit(Op::kSlice, {a.dtype(), shape, Space::kValue}, {a.node()}, ints);
}

Value Rows(Value a, int64_t start, int64_t size) { return Slice(a, 0, start, size); }
Value Cols(Value a, int64_t start, int64_t size) {
  return Slice(a, static_cast<int>(a.shape().size()) - 1, start, size);
}

Value Concat(const std::vector<Value>& parts, int dimension) {
  Require(!parts.empty(), "Concat of nothing");
  if (parts.size() == 1) return parts[0];
  const auto d = static_cast<size_t>(dimension);
  Shape shape = parts[0].shape();
  Require(d < shape.size(), "Concat: no such dimension");
  std::vector<int> operands;
  int64_t total = 0;
  for (const Value& v : parts) {
    Shape other = v.shape();
    if (other.size() != shape.size() || v.dtype() != parts[0].dtype()) {
      Refuse("Concat: " + Both(parts[0], v));
    }
    total += other[d];
    other[d] = shape[d];
    if (other != shape) Refuse("Concat: " + Both(parts[0], v));
    operands.push_back(v.node());
  }
  shape[d] = total;
  return BuilderOf(parts[0])->Emit(Op::kConcat, {parts[0].dtype(), shape, Space::kValue}, operands,
                                   {dimension});
}

Value Rotate(Value a, Index amount, int dimension) {
  Require(dimension >= 0 && dimension < static_cast<int>(a.shape().size()),
          "Rotate: no such dimension");
  Builder* const builder = BuilderOf(a);
  const Value by = builder->AsValue(amount);
  return builder->Emit(Op::kRotate, a.type(), {a.node(), by.node()}, {dimension});
}

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
  return BuilderOf(a)->Emit(Op::kTranspose, {a.dtype(), shape, Space::kValue}, {a.node()},
                            permutation);
}

Value Transpose(Value a) { return Transpose(a, {1, 0}); }

namespace {

Value Reduce(Op op, const char* what, Value a, int dimension) {
  Shape shape = a.shape();
  const auto d = static_cast<size_t>(dimension);
  if (d >= shape.size() || !IsFloat(a.dtype()))
    Refuse(std::string(what) + ": " + ToString(a.type()));
  Shape kept = shape;
  kept[d] = 1;
  shape.erase(shape.begin() + dimension);
  const Value sum =
      BuilderOf(a)->Emit(op, {a.dtype(), shape, Space::kValue}, {a.node()}, {dimension});
  return shape.empty() ? BroadcastTo(sum, kept) : Reshape(sum, kept);
}

Value Product(Value a, Value b, bool transpose_a, bool transpose_b, Precision precision) {
  const Shape &x = a.shape(), &y = b.shape();
  if (x.size() != 2 || y.size() != 2 || a.dtype() != b.dtype() || !IsFloat(a.dtype()) ||
      x[transpose_a ? 0 : 1] != y[transpose_b ? 1 : 0]) {
    Refuse("Dot: " + Both(a, b));
  }
  const Shape shape = {x[transpose_a ? 1 : 0], y[transpose_b ? 0 : 1]};
  Builder* const builder = BuilderOf(a);
  const Value zero = builder->Constant(DType::kF32, 0, shape);
  return builder->Emit(Op::kMatMul, {DType::kF32, shape, Space::kValue},
                       {a.node(), b.node(), zero.node()},
                       {transpose_a ? 1 : 0, transpose_b ? 1 : 0, static_cast<int64_t>(precision)});
}

}  // namespace

Value ReduceSum(Value a, int dimension) {
  return Reduce(Op::kReduceSum, "ReduceSum", a, dimension);
}
Value ReduceMax(Value a, int dimension) {
  return Reduce(Op::kReduceMax, "ReduceMax", a, dimension);
}

Value PackPair(Value low, Value high) {
  if (low.type() != high.type() || low.dtype() != DType::kF32) {
    Refuse("PackPair: " + Both(low, high));
  }
  return BuilderOf(low)->Emit(Op::kPackPair, {DType::kI32, low.shape(), Space::kValue},
                              {low.node(), high.node()});
}

Value Dot(Value a, Value b, Precision precision) { return Product(a, b, false, false, precision); }
Value DotNT(Value a, Value b, Precision precision) { return Product(a, b, false, true, precision); }
Value DotTN(Value a, Value b, Precision precision) { return Product(a, b, true, false, precision); }

// --- Memory -----------------------------------------------------------------------------------------

namespace {

void RequireOnChip(const char* what, const Ref& ref) {
  if (ref.space() != Space::kVmem && ref.space() != Space::kSmem) {
    Refuse(std::string(what) + ": of VMEM and SMEM only");
  }
}

}  // namespace

Value Load(const Ref& ref) {
  RequireOnChip("Load", ref);
  Builder* const builder = ref.builder();
  const bool scalar = ref.space() == Space::kSmem;
  if (scalar && ElementCount(ref.shape()) != 1) Refuse("Load: SMEM holds scalars");
  Type type = {ref.dtype(), {}, Space::kValue};
  std::vector<int> operands = {ref.base_};
  std::vector<int64_t> starts;
  for (const Ref::Dimension& d : ref.dimensions_) {
    if (!scalar) type.shape.push_back(d.size);
    operands.push_back(d.start.node());
    starts.push_back(d.start.constant());
  }
  const Value loaded = builder->Emit(Op::kLoad, type, operands, starts);
  return scalar ? loaded : Reshape(loaded, ref.shape());
}

void Store(const Ref& ref, Value value) {
  RequireOnChip("Store", ref);
  Builder* const builder = ref.builder();
  const bool scalar = ref.space() == Space::kSmem;
  if (value.dtype() != ref.dtype() ||
      (scalar ? !value.shape().empty() : value.shape() != ref.shape())) {
    Refuse("Store: " + ToString(value.type()) + " into " + ToString(ref.dtype()) + " " +
           ToString(ref.shape()));
  }
  Shape full;
  std::vector<int64_t> starts;
  std::vector<int> indices;
  for (const Ref::Dimension& d : ref.dimensions_) {
    full.push_back(d.size);
    indices.push_back(d.start.node());
    starts.push_back(d.start.constant());
  }
  if (!scalar) value = Reshape(value, full);
  std::vector<int> operands = {value.node(), ref.base_};
  operands.insert(operands.end(), indices.begin(), indices.end());
  builder->EmitEffect(Op::kStore, operands, starts);
}

void Store(const Ref& ref, double value) {
  const Shape shape = ref.space() == Space::kSmem ? Shape{} : ref.shape();
  Store(ref, ref.builder()->Constant(ref.dtype(), value, shape));
}

namespace {

void CheckStrided(const Ref& ref, int64_t start, int64_t count, int64_t stride) {
  const Shape shape = ref.shape();
  if (ref.space() != Space::kVmem || shape.size() != 2 || BitsOf(ref.dtype()) != 32 || start < 0 ||
      stride < 1 || count < 1 || start + (count - 1) * stride >= shape[0]) {
    Refuse("strided access: " + std::to_string(count) + " rows from " + std::to_string(start) +
           " by " + std::to_string(stride) + " of " + ToString(ref.dtype()) + " " +
           ToString(shape));
  }
}

}  // namespace

Value LoadStrided(const Ref& ref, int64_t start, int64_t count, int64_t stride) {
  CheckStrided(ref, start, count, stride);
  const int base = ref.Node();
  const Type type = {ref.dtype(), {count, ref.shape()[1]}, Space::kValue};
  return ref.builder()->Emit(Op::kStridedLoad, type, {base, -1, -1}, {start, 0, stride, 1});
}

void StoreStrided(const Ref& ref, int64_t start, int64_t stride, Value value) {
  Require(value.shape().size() == 2, "StoreStrided: a matrix is needed");
  CheckStrided(ref, start, value.shape()[0], stride);
  if (value.dtype() != ref.dtype() || value.shape()[1] != ref.shape()[1]) {
    Refuse("StoreStrided: " + ToString(value.type()));
  }
  const int base = ref.Node();
  ref.builder()->EmitEffect(Op::kStridedStore, {value.node(), base, -1, -1}, {start, 0, stride, 1});
}

namespace {

std::vector<int> CopyOperands(const char* what, const Ref& source, const Ref& destination,
                              const Ref& semaphore, bool wait) {
  if (source.shape() != destination.shape() || source.dtype() != destination.dtype()) {
    Refuse(std::string(what) + ": " + ToString(source.dtype()) + " " + ToString(source.shape()) +
           " to " + ToString(destination.dtype()) + " " + ToString(destination.shape()));
  }
  if (semaphore.dtype() != DType::kDmaSemaphore || ElementCount(semaphore.shape()) != 1) {
    Refuse(std::string(what) + ": one semaphore is needed");
  }
  const Ref one = semaphore.shape().empty() ? semaphore : semaphore.At(0);
  if (wait) return {one.Node(), source.Node(), destination.Node()};
  return {source.Node(), destination.Node(), one.Node()};
}

}  // namespace

void StartCopy(const Ref& source, const Ref& destination, const Ref& semaphore) {
  source.builder()->EmitEffect(Op::kEnqueueDma,
                               CopyOperands("StartCopy", source, destination, semaphore, false));
}

void WaitCopy(const Ref& source, const Ref& destination, const Ref& semaphore) {
  source.builder()->EmitEffect(Op::kWaitDma,
                               CopyOperands("WaitCopy", source, destination, semaphore, true));
}

}  // namespace kda::tpu::ir
