// Operations on whole vectors: shapes, places, reductions.
#include <algorithm>

#include "tpu/ir/evaluate_machine.h"
#include "tpu/ir/evaluate_scalar.h"

namespace kda::tpu::ir::evaluate {

namespace {

const Shape& ShapeOf(Machine& machine, const Instruction& i, size_t operand) {
  return machine.At(machine.At(i.node).operands[operand]).type.shape;
}

void Copy(uint32_t* to, const uint32_t* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof *to);
}

// A shape as [outer, n, inner] around one dimension.
struct Around {
  int64_t outer = 1, n = 1, inner = 1;
  Around(const Shape& shape, int64_t dimension) {
    for (size_t i = 0; i < shape.size(); ++i) {
      const auto d = static_cast<size_t>(dimension);
      (i < d ? outer : i == d ? n : inner) *= shape[i];
    }
  }
};

void Iota(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const Around a(node.type.shape, node.ints[0]);
  for (int64_t k = 0; k < i.count; ++k) {
    i.out[k] = static_cast<uint32_t>(k / a.inner % a.n);
  }
}

// Copies elements [index . strides] of `from` to `to` in row-major order of `shape`.
void Gather(const uint32_t* from, const Shape& shape, const std::vector<int64_t>& strides,
            uint32_t* to) {
  if (shape.empty()) {
    *to = *from;
    return;
  }
  const size_t last = shape.size() - 1;
  const int64_t columns = shape[last], stride = strides[last];
  std::vector<int64_t> index(shape.size(), 0);
  const int64_t count = ElementCount(shape);
  for (int64_t at = 0; at < count; at += columns) {
    const uint32_t* row = from;
    for (size_t d = 0; d < last; ++d) row += index[d] * strides[d];
    if (stride == 1) {
      Copy(to + at, row, columns);
    } else if (stride == 0) {
      std::fill(to + at, to + at + columns, *row);
    } else {
      for (int64_t k = 0; k < columns; ++k) to[at + k] = row[k * stride];
    }
    for (size_t d = last; d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
  }
}

std::vector<int64_t> StridesOf(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

void Broadcast(Machine& machine, const Instruction& i) {
  const Shape &to = machine.At(i.node).type.shape, &from = ShapeOf(machine, i, 0);
  const std::vector<int64_t> dense = StridesOf(from);
  std::vector<int64_t> strides(to.size(), 0);
  const size_t lead = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) strides[lead + d] = from[d] == 1 ? 0 : dense[d];
  Gather(i.in[0], to, strides, i.out);
}

void Transpose(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const std::vector<int64_t> dense = StridesOf(ShapeOf(machine, i, 0));
  std::vector<int64_t> strides;
  for (int64_t p : node.ints) strides.push_back(dense[static_cast<size_t>(p)]);
  Gather(i.in[0], node.type.shape, strides, i.out);
}

void Slice(Machine& machine, const Instruction& i) {
  const std::vector<int64_t> strides = StridesOf(ShapeOf(machine, i, 0));
  const Node& node = machine.At(i.node);
  const uint32_t* from = i.in[0];
  for (size_t d = 0; d < strides.size(); ++d) from += node.ints[d] * strides[d];
  Gather(from, node.type.shape, strides, i.out);
}

void Concat(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const Around whole(node.type.shape, node.ints[0]);
  int64_t before = 0;
  for (int operand : node.operands) {
    const Around part(machine.At(operand).type.shape, node.ints[0]);
    const int64_t run = part.n * part.inner;
    const uint32_t* const from = machine.Value(operand);
    for (int64_t o = 0; o < part.outer; ++o) {
      Copy(i.out + o * whole.n * whole.inner + before, from + o * run, run);
    }
    before += run;
  }
}

void Rotate(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const Around a(node.type.shape, node.ints[0]);
  const int64_t amount = (machine.Scalar(node.operands[1]) % a.n + a.n) % a.n;
  const int64_t all = a.n * a.inner, down = amount * a.inner;
  for (int64_t o = 0; o < a.outer; ++o) {
    const uint32_t* const from = i.in[0] + o * all;
    uint32_t* const to = i.out + o * all;
    Copy(to + down, from, all - down);
    Copy(to, from + all - down, down);
  }
}

// bf16 [.., 2r, c] from i32 [.., r, c], and back.
void BitcastToBF16(Machine& machine, const Instruction& i) {
  const int64_t columns = ShapeOf(machine, i, 0).back();
  const int64_t rows = i.count / columns / 2;
  for (int64_t r = 0; r < rows; ++r) {
    const uint32_t* const words = i.in[0] + r * columns;
    uint32_t* const out = i.out + 2 * r * columns;
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = words[c] << 16;
      out[columns + c] = words[c] & 0xffff0000u;
    }
  }
}

void BitcastFromBF16(Machine& machine, const Instruction& i) {
  const int64_t columns = ShapeOf(machine, i, 0).back();
  const int64_t rows = i.count / columns;
  for (int64_t r = 0; r < rows; ++r) {
    const uint32_t* const pair = i.in[0] + 2 * r * columns;
    uint32_t* const out = i.out + r * columns;
    for (int64_t c = 0; c < columns; ++c) out[c] = (pair[c] >> 16) | pair[columns + c];
  }
}

// --- Reductions: up in index, of bf16 in fp32 and then rounded ---

struct Sum {
  static constexpr uint32_t kStart = 0;
  static uint32_t Apply(uint32_t a, uint32_t b) { return ToBits(ToFloat(a) + ToFloat(b)); }
};
struct Maximum : MaxF {
  static constexpr uint32_t kStart = 0xff800000u;  // -inf
};

template <class F>
void Reduce(Machine& machine, const Instruction& i) {
  const Around a(ShapeOf(machine, i, 0), machine.At(i.node).ints[0]);
  for (int64_t o = 0; o < a.outer; ++o) {
    uint32_t* __restrict const out = i.out + o * a.inner;
    const uint32_t* const from = i.in[0] + o * a.n * a.inner;
    if (a.inner == 1) {
      uint32_t total = F::kStart;
      for (int64_t k = 0; k < a.n; ++k) total = F::Apply(total, from[k]);
      out[0] = total;
      continue;
    }
    std::fill(out, out + a.inner, F::kStart);
    for (int64_t k = 0; k < a.n; ++k) {
      const uint32_t* const row = from + k * a.inner;
      for (int64_t c = 0; c < a.inner; ++c) out[c] = F::Apply(out[c], row[c]);
    }
  }
  if (machine.At(i.node).type.dtype != DType::kBF16) return;
  for (int64_t k = 0; k < i.count; ++k) i.out[k] = RoundToBF16(i.out[k]);
}

}  // namespace

Instruction::Run VectorRun(const Program& program, const Node& node) {
  switch (node.op) {
    case Op::kIota:
      return &Iota;
    case Op::kBitcast: {
      const DType from = program.nodes[static_cast<size_t>(node.operands[0])].type.dtype;
      return from == DType::kBF16 ? &BitcastFromBF16 : &BitcastToBF16;
    }
    case Op::kBroadcast:
      return &Broadcast;
    case Op::kSlice:
      return &Slice;
    case Op::kConcat:
      return &Concat;
    case Op::kRotate:
      return &Rotate;
    case Op::kTranspose:
      return &Transpose;
    case Op::kReduceSum:
      return &Reduce<Sum>;
    case Op::kReduceMax:
      return &Reduce<Maximum>;
    default:
      return nullptr;
  }
}

}  // namespace kda::tpu::ir::evaluate
