// Elementwise operations. Each is a struct whose Apply works on the bits of one element; the loops
// over it are vector code. The processor flushes subnormals while a program runs (evaluator.cc), so
// only what looks at bits, and libm, has to do so here.
#include <cmath>

#include "tpu/ir/evaluate_machine.h"
#include "tpu/ir/evaluate_scalar.h"

namespace kda::tpu::ir::evaluate {

namespace {

using Run = Instruction::Run;

// --- f32 ---

struct AddF {
  static uint32_t Apply(uint32_t a, uint32_t b) { return ToBits(ToFloat(a) + ToFloat(b)); }
};
struct SubF {
  static uint32_t Apply(uint32_t a, uint32_t b) { return ToBits(ToFloat(a) - ToFloat(b)); }
};
struct MulF {
  static uint32_t Apply(uint32_t a, uint32_t b) { return ToBits(ToFloat(a) * ToFloat(b)); }
};
struct DivF {
  static uint32_t Apply(uint32_t a, uint32_t b) { return ToBits(ToFloat(a) / ToFloat(b)); }
};
// Of zeros that compare equal, -0 is the lesser (MaxF too).
struct MinF {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    const float x = ToFloat(a), y = ToFloat(b);
    const uint32_t ordered = Pick(x < y, Flush(a), Pick(y < x, Flush(b), Flush(a) | Flush(b)));
    return Pick((x != x) | (y != y), ToBits(x + y), ordered);
  }
};
struct AbsF {
  static uint32_t Apply(uint32_t a) { return a & 0x7fffffffu; }
};
struct RsqrtF {
  static uint32_t Apply(uint32_t a) { return ToBits(1.0f / std::sqrt(ToFloat(a))); }
};
struct ReciprocalF {
  static uint32_t Apply(uint32_t a) { return ToBits(1.0f / ToFloat(a)); }
};
struct ApproximateReciprocalF {
  static uint32_t Apply(uint32_t a) { return RoundToBF16(ToBits(1.0f / ToFloat(RoundToBF16(a)))); }
};
struct Exp2F {
  static uint32_t Apply(uint32_t a) { return Flush(ToBits(std::exp2(ToFloat(Flush(a))))); }
};
struct LogF {
  static uint32_t Apply(uint32_t a) { return Flush(ToBits(std::log(ToFloat(Flush(a))))); }
};
struct TanhF {
  static uint32_t Apply(uint32_t a) { return Flush(ToBits(std::tanh(ToFloat(Flush(a))))); }
};

// The same, to bf16.
template <class F>
struct Rounded {
  static uint32_t Apply(uint32_t a) { return RoundToBF16(F::Apply(a)); }
  static uint32_t Apply(uint32_t a, uint32_t b) { return RoundToBF16(F::Apply(a, b)); }
};

// --- Comparisons ---

template <Comparison kHow>
struct CompareF {
  static uint32_t Apply(uint32_t a, uint32_t b) { return Holds(kHow, ToFloat(a), ToFloat(b)); }
};
template <Comparison kHow>
struct CompareI {
  static uint32_t Apply(uint32_t a, uint32_t b) { return Holds(kHow, Signed(a), Signed(b)); }
};

// --- Conversions that change bits ---

struct FloatOfInt {
  static uint32_t Apply(uint32_t a) { return ToBits(static_cast<float>(Signed(a))); }
};
struct FloatOfBool {
  static uint32_t Apply(uint32_t a) { return Pick(a != 0, 0x3f800000u, 0); }
};
// Towards zero; what is too large becomes the largest, NaN 0.
struct IntOfFloat {
  static uint32_t Apply(uint32_t a) {
    const float x = ToFloat(a);
    if (!(x == x)) return 0;
    if (x >= 2147483648.0f) return 0x7fffffffu;
    if (x <= -2147483648.0f) return 0x80000000u;
    return static_cast<uint32_t>(static_cast<int32_t>(x));
  }
};
struct BF16OfFloat {
  static uint32_t Apply(uint32_t a) { return RoundToBF16(a); }
};

// --- Loops ---

template <class F>
void Unary(Machine&, const Instruction& i) {
  const uint32_t* const a = i.in[0];
  uint32_t* __restrict const out = i.out;
  for (int64_t k = 0; k < i.count; ++k) out[k] = F::Apply(a[k]);
}

template <class F>
void Binary(Machine&, const Instruction& i) {
  const uint32_t *const a = i.in[0], *const b = i.in[1];
  uint32_t* __restrict const out = i.out;
  if (i.splat[1]) {
    const uint32_t y = b[0];
    for (int64_t k = 0; k < i.count; ++k) out[k] = F::Apply(a[k], y);
  } else if (i.splat[0]) {
    const uint32_t x = a[0];
    for (int64_t k = 0; k < i.count; ++k) out[k] = F::Apply(x, b[k]);
  } else {
    for (int64_t k = 0; k < i.count; ++k) out[k] = F::Apply(a[k], b[k]);
  }
}

void Select(Machine&, const Instruction& i) {
  const uint32_t *const mask = i.in[0], *const a = i.in[1], *const b = i.in[2];
  uint32_t* __restrict const out = i.out;
  if (i.splat[0]) {
    const uint32_t* const chosen = mask[0] != 0 ? a : b;
    std::memcpy(out, chosen, static_cast<size_t>(i.count) * sizeof *out);
    return;
  }
  for (int64_t k = 0; k < i.count; ++k) out[k] = Pick(mask[k] != 0, a[k], b[k]);
}

void PackPair(Machine&, const Instruction& i) {
  const uint32_t *const low = i.in[0], *const high = i.in[1];
  uint32_t* __restrict const out = i.out;
  for (int64_t k = 0; k < i.count; ++k) {
    out[k] = (RoundToBF16(low[k]) >> 16) | RoundToBF16(high[k]);
  }
}

void AssumeMultiple(Machine& machine, const Instruction& i) {
  const int64_t factor = machine.At(i.node).ints[0];
  const int64_t value = static_cast<int32_t>(i.in[0][0]);
  if (value % factor != 0) {
    throw Fault(std::to_string(value) + " is no multiple of " + std::to_string(factor));
  }
  i.out[0] = i.in[0][0];
}

// --- Choice of a loop ---

template <class F>
Run FloatUnary(DType dtype) {
  return dtype == DType::kBF16 ? &Unary<Rounded<F>> : &Unary<F>;
}

template <class F, class I>
Run Arithmetic(DType dtype) {
  if (dtype == DType::kBF16) return &Binary<Rounded<F>>;
  return dtype == DType::kF32 ? &Binary<F> : &Binary<I>;
}

template <Comparison kHow>
Run Comparing(DType dtype) {
  return IsFloat(dtype) ? &Binary<CompareF<kHow>> : &Binary<CompareI<kHow>>;
}

Run CompareRun(Comparison how, DType dtype) {
  switch (how) {
    case Comparison::kEq:
      return Comparing<Comparison::kEq>(dtype);
    case Comparison::kNe:  // of integers only, as Mosaic has it
      return &Binary<CompareI<Comparison::kNe>>;
    case Comparison::kLt:
      return Comparing<Comparison::kLt>(dtype);
    case Comparison::kLe:
      return Comparing<Comparison::kLe>(dtype);
    case Comparison::kGt:
      return Comparing<Comparison::kGt>(dtype);
    case Comparison::kGe:
      break;
  }
  return Comparing<Comparison::kGe>(dtype);
}

// Null: the bits stay (Layout shares them).
Run ConvertRun(DType from, DType to) {
  if (from == DType::kF32 && to == DType::kBF16) return &Unary<BF16OfFloat>;
  if (from == DType::kI1 && IsFloat(to)) return &Unary<FloatOfBool>;
  if (from == DType::kI32 && to == DType::kF32) return &Unary<FloatOfInt>;
  if (from == DType::kI32 && to == DType::kBF16) return &Unary<Rounded<FloatOfInt>>;
  if (IsFloat(from) && to == DType::kI32) return &Unary<IntOfFloat>;
  return nullptr;
}

Run IntegerRun(Op op) {
  switch (op) {
    case Op::kRem:
      return &Binary<RemI>;
    case Op::kAnd:
      return &Binary<And>;
    case Op::kOr:
      return &Binary<Or>;
    case Op::kXor:
      return &Binary<Xor>;
    case Op::kShiftLeft:
      return &Binary<ShiftLeftI>;
    case Op::kShiftRight:
      return &Binary<ShiftRightI>;
    default:
      return nullptr;
  }
}

Run FloatRun(const Node& node) {
  const DType dtype = node.type.dtype;
  switch (node.op) {
    case Op::kExp2:
      return FloatUnary<Exp2F>(dtype);
    case Op::kLog:
      return FloatUnary<LogF>(dtype);
    case Op::kTanh:
      return FloatUnary<TanhF>(dtype);
    case Op::kRsqrt:
      return FloatUnary<RsqrtF>(dtype);
    case Op::kAbs:
      return &Unary<AbsF>;
    case Op::kReciprocal:
      return node.ints[0] != 0 ? &Unary<ApproximateReciprocalF> : FloatUnary<ReciprocalF>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace

Run ElementwiseRun(const Program& program, const Node& node, Instruction* instruction) {
  const DType dtype = node.type.dtype;
  for (size_t i = 0; i < node.operands.size() && i < 3; ++i) {
    const Node& operand = program.nodes[static_cast<size_t>(node.operands[i])];
    instruction->splat[i] = operand.op == Op::kConstant || operand.type.shape.empty();
  }
  switch (node.op) {
    case Op::kAdd:
      return Arithmetic<AddF, AddI>(dtype);
    case Op::kSub:
      return Arithmetic<SubF, SubI>(dtype);
    case Op::kMul:
      return Arithmetic<MulF, MulI>(dtype);
    case Op::kDiv:
      return Arithmetic<DivF, DivI>(dtype);
    case Op::kMin:
      return Arithmetic<MinF, MinI>(dtype);
    case Op::kMax:
      return Arithmetic<MaxF, MaxI>(dtype);
    case Op::kCompare:
      return CompareRun(static_cast<Comparison>(node.ints[0]),
                        program.nodes[static_cast<size_t>(node.operands[0])].type.dtype);
    case Op::kSelect:
      return &Select;
    case Op::kConvert:
      return ConvertRun(program.nodes[static_cast<size_t>(node.operands[0])].type.dtype, dtype);
    case Op::kAssumeMultiple:
      return &AssumeMultiple;
    case Op::kPackPair:
      return &PackPair;
    default:
      return IsFloat(dtype) ? FloatRun(node) : IntegerRun(node.op);
  }
}

}  // namespace kda::tpu::ir::evaluate
