// Matrix products: every output is the sum over k, upwards from zero, in fp32; then the
// accumulator. Products of two bf16 are exact in fp32. Precision::kBF16 rounds f32 operands first,
// as the matrix unit's one pass does; Precision::kF32 multiplies and adds in plain fp32, where the
// matrix unit makes six passes over bf16 parts of the operands.
#include <algorithm>

#include "tpu/ir/evaluate_machine.h"

namespace kda::tpu::ir::evaluate {

namespace {

constexpr int64_t kRows = 4, kColumns = 8;  // of the outputs kept in registers
using Four = float __attribute__((vector_size(16)));

Four LoadFour(const uint32_t* from) {
  Four four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

struct Operand {
  const uint32_t* data;  // [depth, columns], or its transpose
  int64_t depth, columns;
  bool transposed, round;  // to bf16
};

// As panels of `width` columns: panel p holds, row after row, columns p * width ..,
// zeros where there are none.
void PackPanels(const Operand& x, int64_t width, std::vector<uint32_t>* to) {
  const int64_t panels = (x.columns + width - 1) / width;
  to->assign(static_cast<size_t>(panels * x.depth * width), 0);
  const int64_t row_stride = x.transposed ? 1 : x.columns;
  const int64_t column_stride = x.transposed ? x.depth : 1;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t have = std::min(x.columns - p * width, width);
    uint32_t* const panel = to->data() + p * x.depth * width;
    for (int64_t r = 0; r < x.depth; ++r) {
      const uint32_t* const row = x.data + r * row_stride + p * width * column_stride;
      for (int64_t c = 0; c < have; ++c) {
        const uint32_t bits = row[c * column_stride];
        panel[r * width + c] = x.round ? RoundToBF16(bits) : bits;
      }
    }
  }
}

// tile [4, 8] = sum over k of a[k][4] b[k][8].
void Tile(const uint32_t* a, const uint32_t* b, int64_t depth, float* tile) {
  Four left[kRows] = {}, right[kRows] = {};
  for (int64_t k = 0; k < depth; ++k, a += kRows, b += kColumns) {
    const Four b0 = LoadFour(b), b1 = LoadFour(b + 4);
    for (int64_t r = 0; r < kRows; ++r) {
      const float x = ToFloat(a[r]);
      const Four all = {x, x, x, x};
      left[r] += all * b0;
      right[r] += all * b1;
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    std::memcpy(tile + r * kColumns, &left[r], sizeof left[r]);
    std::memcpy(tile + r * kColumns + 4, &right[r], sizeof right[r]);
  }
}

void MatMul(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const bool transpose_a = node.ints[0] != 0, transpose_b = node.ints[1] != 0;
  const Type& a = machine.At(node.operands[0]).type;
  const bool round =
      a.dtype == DType::kF32 && static_cast<Precision>(node.ints[2]) == Precision::kBF16;
  const int64_t m = node.type.shape[0], n = node.type.shape[1];
  const int64_t depth = a.shape[transpose_a ? 0 : 1];
  std::vector<uint32_t>*const left = &machine.scratch[0], *const right = &machine.scratch[1];
  PackPanels({i.in[0], depth, m, !transpose_a, round}, kRows, left);
  PackPanels({i.in[1], depth, n, transpose_b, round}, kColumns, right);
  const Node& start = machine.At(node.operands[2]);
  const bool add = start.op != Op::kConstant || start.number != 0;
  float tile[kRows * kColumns];
  for (int64_t row = 0; row < m; row += kRows) {
    for (int64_t column = 0; column < n; column += kColumns) {
      Tile(left->data() + row * depth, right->data() + column * depth, depth, tile);
      for (int64_t r = 0; r < kRows && row + r < m; ++r) {
        for (int64_t c = 0; c < kColumns && column + c < n; ++c) {
          const int64_t at = (row + r) * n + column + c;
          const float sum = tile[r * kColumns + c];
          i.out[at] = ToBits(add ? ToFloat(i.in[2][at]) + sum : sum);
        }
      }
    }
  }
}

}  // namespace

Instruction::Run MatMulRun(const Node& node) { return node.op == Op::kMatMul ? &MatMul : nullptr; }

}  // namespace kda::tpu::ir::evaluate
