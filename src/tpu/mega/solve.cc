// The solve of the mega kernel: T = (I - Ln)^-1, Ln strictly lower triangular, [64, 64] per head.
//
// In, per pair of heads: Ln [64, 128] bf16 (`l_both`): rows 0..31 both heads' diagonal blocks as a
// quad (see below), rows 32..63 in their first 64 lanes the blocks below these, [h0 | h1]. Out: T
// [64, 128] bf16 (`t_done`), lanes [h0 c0 | h1 c0 | h0 c1 | h1 c1].
//
// By block doubling: T <- T + T (Ln o M_w) T for w = 1, 2, .., 32, where M_w picks the off-diagonal
// blocks of level w. T is block diagonal with blocks of w rows before a level and of 2w
// after it. No power of Ln is ever formed: with correlated keys powers grow to 1e13 and
// more while T stays small.
//
// The first five levels work on the 32 x 32 diagonal blocks of a pair of heads as one quad
// [32, 128], lanes [h0 c0 | h1 c0 | h0 c1 | h1 c1]; one product of [64, 64] with [64, 128]
// multiplies all four. bf16 operands, fp32 sums, T kept in bf16.
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

Value HalfTurn(Value x) { return Rotate(x, 64, 1); }

// Two [n, 128] word matrices as bf16, their first 64 lanes one above the other.
Value Stack(Value a, Value b) {
  return Concat({Cols(Bits(a, DType::kBF16), 0, 64), Cols(Bits(b, DType::kBF16), 0, 64)}, 0);
}

}  // namespace

// A quad as the right side of a product: [h0 blocks; h1 blocks], zeros elsewhere.
Value Kernel::Weights(Value words) const {
  const int64_t rows = words.shape()[0];
  return Concat({Bits(words & Rows(lanes_h0, 0, rows), DType::kBF16),
                 Bits(words & Rows(lanes_h1, 0, rows), DType::kBF16)},
                0);
}

// The quad that a product gives: c0 blocks from its upper half, c1 blocks from its lower half.
Value Kernel::Quad(Value x) const {
  const int64_t rows = x.shape()[0] / 2;
  return Cast(Select(Rows(low_lanes, 0, rows), Rows(x, 0, rows), Rows(x, rows, rows)),
              DType::kBF16);
}

std::vector<Stage> Kernel::Solve() {
  const auto labelled = [this](const std::function<void(int)>& body) -> Stage {
    return [this, body](int pair) {
      const Builder::Label label(b, "solve", 2 * pair);
      body(pair);
    };
  };
  const auto mask = [this](int level) { return level_masks.Words(level); };
  std::vector<Stage> stages;
  // Level 1 is free: T = I + Ln o M_1.
  stages.push_back(labelled([this, mask](int p) {
    const Value words = l_both.Words(p), quad = Rows(words, 0, 16);
    l_diag.SetWords(p, 0, 32, quad);
    l_diag.SetWords(p, 32, 32, HalfTurn(quad));
    l_off.SetWords(p, Rows(words, 16, 16));
    l_read[static_cast<size_t>(p)] = true;
    const Value t = mask(5) | (quad & mask(0));
    t_work.SetWords(p, 0, 32, t);
    t_work.SetWords(p, 32, 32, HalfTurn(t));
  }));
  for (int level = 1; level < 4; ++level) {
    stages.push_back(labelled([this, mask, level](int p) {
      const Value m = mask(level);
      product.Set(p, Quad(Dot(Stack(l_diag.Words(p, 0, 32) & m, l_diag.Words(p, 32, 32) & m),
                              Weights(t_work.Words(p, 0, 32)))));
    }));
    stages.push_back(labelled([this](int p) {
      const Value t = t_work.Words(p, 0, 32);
      const Value change = Quad(Dot(Stack(t, t_work.Words(p, 32, 32)), Weights(product.Words(p))));
      const Value next = Bits(Bits(t, DType::kBF16) + change, DType::kI32);
      t_work.SetWords(p, 0, 32, next);
      t_work.SetWords(p, 32, 32, HalfTurn(next));
    }));
  }
  // Level 16: only rows 16..31 of a block change, only columns 0..15 of Ln matter.
  stages.push_back(labelled([this, mask](int p) {
    const Value m = Rows(mask(4), 8, 8);
    product.Set(p, 0, 16,
                Quad(Dot(Stack(l_diag.Words(p, 16, 16) & m, l_diag.Words(p, 48, 16) & m),
                         Weights(t_work.Words(p, 0, 32)))));
  }));
  stages.push_back(labelled([this](int p) {
    const Value y = product.Words(p, 0, 16), t = t_work.Words(p, 16, 16);
    const Value zero = b->Constant(DType::kBF16, 0, {16, kDim});
    const Value w = Concat({zero, Bits(y & Rows(lanes_h0, 0, 8), DType::kBF16), zero,
                            Bits(y & Rows(lanes_h1, 0, 8), DType::kBF16)},
                           0);
    const Value change = Quad(Dot(Stack(t, t_work.Words(p, 48, 16)), w));
    const Value next = Bits(Bits(t, DType::kBF16) + change, DType::kI32);
    t_work.SetWords(p, 16, 16, next);
    t_work.SetWords(p, 48, 16, HalfTurn(next));
  }));
  // Level 32: the lower left block of T, T11 L10 T00.
  stages.push_back(labelled([this](int p) {
    product.Set(
        p, Cast(Dot(Cols(l_off.Get(p), 0, 64), Weights(t_work.Words(p, 0, 32))), DType::kBF16));
  }));
  stages.push_back(labelled([this](int p) {
    const Value y = product.Words(p), t = t_work.Words(p, 0, 32);
    const Value w = Concat({Bits(y & lanes_h0 & lanes_low, DType::kBF16),
                            Bits(y & lanes_h1 & lanes_low, DType::kBF16)},
                           0);
    const Value x = Cast(Dot(Cols(t_work.Get(p, 32, 32), 0, 64), w), DType::kBF16);
    Require(t_read[static_cast<size_t>(p)], "t_done is overwritten before stage C has read it");
    t_done.SetWords(p, 0, 32, t & lanes_low);
    t_done.SetWords(p, 32, 32, Bits(x, DType::kI32) | (t & lanes_high));
  }));
  return stages;
}

}  // namespace kda::tpu::mega
