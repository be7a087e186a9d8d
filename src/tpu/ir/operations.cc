// The operations a kernel program is written with: each checks its operands and adds one node.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tpu/ir/refuse.h"

namespace kda::tpu::ir {

// --- Elementwise ---------------------------------------------------------------------------------

namespace {

Builder* BuilderOf(Value a) {
  Require(a.valid(), "a value that was never computed");
  return a.builder();
}

std::string Both(Value a, Value b) { return ToString(a.type()) + " and " + ToString(b.type()); }

// The shape both broadcast to.
Shape Common(const char* what, Value a, Value b) {
  RequireOf(a.builder(), b.builder());
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
  RequireOf(mask.builder(), a.builder());
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

// --- Vectors -------------------------------------------------------------------------------------

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
    RequireOf(parts[0].builder(), v.builder());
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
  RequireOf(builder, b.builder());
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
  RequireOf(low.builder(), high.builder());
  return BuilderOf(low)->Emit(Op::kPackPair, {DType::kI32, low.shape(), Space::kValue},
                              {low.node(), high.node()});
}

Value Dot(Value a, Value b, Precision precision) { return Product(a, b, false, false, precision); }
Value DotNT(Value a, Value b, Precision precision) { return Product(a, b, false, true, precision); }
Value DotTN(Value a, Value b, Precision precision) { return Product(a, b, true, false, precision); }

// --- Memory --------------------------------------------------------------------------------------

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
  RequireOf(builder, value.builder());
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
  RequireOf(ref.builder(), value.builder());
  if (value.dtype() != ref.dtype() || value.shape()[1] != ref.shape()[1]) {
    Refuse("StoreStrided: " + ToString(value.type()));
  }
  const int base = ref.Node();
  ref.builder()->EmitEffect(Op::kStridedStore, {value.node(), base, -1, -1}, {start, 0, stride, 1});
}

namespace {

std::vector<int> CopyOperands(const char* what, const Ref& source, const Ref& destination,
                              const Ref& semaphore, bool wait) {
  for (const Ref* ref : {&destination, &semaphore}) RequireOf(source.builder(), ref->builder());
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
