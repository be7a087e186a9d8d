#include "tpu/ir/counter_work.h"

namespace kda::tpu::ir {

namespace {

constexpr int64_t kPassesOfF32 = 6;

Work MatMulWork(const Program& program, const Node& node, int64_t mxu) {
  const Type& a = program.nodes[static_cast<size_t>(node.operands[0])].type;
  const int64_t m = node.type.shape[0], n = node.type.shape[1];
  const int64_t k = a.shape[node.ints[0] != 0 ? 0 : 1];
  const bool full =
      a.dtype == DType::kF32 && static_cast<Precision>(node.ints[2]) == Precision::kF32;
  const int64_t passes = full ? kPassesOfF32 : 1;
  const auto pieces = [mxu](int64_t size) { return (size + mxu - 1) / mxu; };
  Work work;
  work.matmul_flops = 2 * m * n * k;
  work.mxu_rows = passes * m * pieces(k) * pieces(n);
  work.mxu_weights = passes * k * pieces(n);
  return work;
}

Work CopyWork(const Program& program, const Node& node) {
  const Type& from = program.nodes[static_cast<size_t>(node.operands[0])].type;
  const Type& to = program.nodes[static_cast<size_t>(node.operands[1])].type;
  const int64_t bytes = ElementCount(from.shape) * BitsOf(from.dtype) / 8;
  Work work;
  if (from.space == Space::kHbm) work.copied_in = bytes;
  if (to.space == Space::kHbm) work.copied_out = bytes;
  return work;
}

int64_t BytesOf(const Type& type) { return ElementCount(type.shape) * BitsOf(type.dtype) / 8; }

}  // namespace

Work WorkOf(const Program& program, const Node& node, const CountOptions& options) {
  Work work;
  const int64_t elements = node.type.shape.empty() ? 0 : ElementCount(node.type.shape);
  switch (node.op) {
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kRem:
    case Op::kMin:
    case Op::kMax:
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
    case Op::kShiftLeft:
    case Op::kShiftRight:
    case Op::kCompare:
    case Op::kSelect:
    case Op::kAbs:
    case Op::kConvert:
    case Op::kPackPair:
      work.elementwise = elements;
      break;
    case Op::kExp2:
    case Op::kLog:
    case Op::kTanh:
    case Op::kRsqrt:
    case Op::kReciprocal:
      work.transcendentals = elements;
      break;
    case Op::kReduceSum:
    case Op::kReduceMax:
      work.elementwise =
          ElementCount(program.nodes[static_cast<size_t>(node.operands[0])].type.shape);
      break;
    case Op::kMatMul:
      return MatMulWork(program, node, options.mxu);
    case Op::kLoad:
    case Op::kStridedLoad:
      if (elements > 0) work.loaded = BytesOf(node.type);
      break;
    case Op::kStore:
    case Op::kStridedStore: {
      const Type& type = program.nodes[static_cast<size_t>(node.operands[0])].type;
      if (!type.shape.empty()) work.stored = BytesOf(type);
      break;
    }
    case Op::kEnqueueDma:
      return CopyWork(program, node);
    default:
      break;
  }
  return work;
}

}  // namespace kda::tpu::ir
