// Stage intra_chunk of the mega kernel for gates without a bound: what the tokens of a chunk mean to each
// other, by halving.
//
// Level w = 1, 2, .., 32 takes the pairs (i, j) whose rows lie in the second and first half of one block
// of 2w rows. With m the last row of the first half, the exponent splits there:
//
//   G_i - G_j = (G_i - G_m) + (G_m - G_j)          both <= 0 for any gate, sums of gates of one sign
//   e_w[r] = 2^(sum of g2 from the half's start to r)    r in a second half
//            2^(sum of g2 from r + 1 to the half's end)  r in a first half                  [64, 128]
//   P_w = [q e_w; k e_w] (k e_w)^T                 [128, 64], of which level w's entries are taken
//
// The diagonal is q k^T. Nothing overflows, a factor that underflows stands for a product that does, and
// no sum looks at a row later than i. Sums are products with 0/1 matrices, as in gate_cumsum.cc.
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

constexpr int kLevels = 6;  // of 64 rows

Value ToBF16(Value x) { return Cast(x, DType::kBF16); }

Value Ones(Value mask) {
  Builder* const b = mask.builder();
  return Select(mask, b->Constant(DType::kF32, 1.0, mask.shape()), 0.0);
}

}  // namespace

void Kernel::PrepareLevels() {
  const Builder::Label label(b, "constants");
  const Shape shape = {kChunk, kDim};
  const Value i = b->Iota(shape, 0), t = b->Iota(shape, 1) & 63u;
  for (int level = 0; level < kLevels; ++level) {
    const Value block = ir::ShiftRight(i, level);
    const Value in_block = block == ir::ShiftRight(t, level);
    const Value second = (block & 1u) == 1;
    level_sums.Set(level, ToBF16(Ones(in_block & ((second & (t <= i)) | (~second & (t > i))))));
  }
  level_sums.Set(kLevels, ToBF16(Ones(t <= i)));     // G
  level_sums.Set(kLevels + 1, ToBF16(Ones(t > i)));  // G_last - G
  // The level of (i, j): where their highest different bit is; 6 on the diagonal, 7 above it.
  const Value l = b->Iota(shape, 1), j = (ir::ShiftRight(l, 6) << 5) + (l & 31u);
  const auto constant = [&](double n) { return b->Constant(DType::kI32, n, shape); };
  Value level_of = constant(kLevels);
  for (int level = 0; level < kLevels; ++level) {
    level_of = Select(ir::ShiftRight(i ^ j, level) == 1, constant(level), level_of);
  }
  Store(level_map, Select(j > i, constant(kLevels + 1), level_of));
}

// The exponentials of one matrix of sums, both heads.
Pair Kernel::LevelDecay(int pair, int matrix) const {
  const Value sums = Dot(level_sums.Get(matrix), gate_hi_lo[static_cast<size_t>(pair)]);
  return {{Exp2(Cols(sums, 0, kDim)), Exp2(Cols(sums, kDim, kDim))}};
}

Pair Kernel::LoadKeys(const Ref& buffer, int pair) const {
  Pair x = LoadPair(buffer, pair);
  if (problem.qk_l2norm) {
    for (Value& head : x.head) {
      head = head * BroadcastTo(Rsqrt(ReduceSum(head * head, 1) + 1e-6), {kChunk, kDim});
    }
  }
  return x;
}

std::vector<Stage> Kernel::IntraChunkUnbounded() {
  std::vector<Stage> stages;
  // One level: operands, then the product and what is taken of it.
  for (int level = kLevels; level >= 0; --level) {
    stages.push_back([this, level](int pair) {
      const Builder::Label label(b, "intra_chunk", 2 * pair);
      const auto p = static_cast<size_t>(pair);
      const Pair qq = LoadKeys(q_in, pair), kk = LoadKeys(k_in, pair);
      Pair e;
      if (level < kLevels) e = LevelDecay(pair, level);
      for (int h = 0; h < 2; ++h) {
        q_up[p].head[h] = ToBF16(level < kLevels ? qq.head[h] * e.head[h] : qq.head[h]);
        k_up[p].head[h] = ToBF16(level < kLevels ? kk.head[h] * e.head[h] : kk.head[h]);
      }
    });
    stages.push_back([this, level](int pair) {
      const Builder::Label label(b, "intra_chunk", 2 * pair);
      const auto p = static_cast<size_t>(pair);
      const Value zero = b->Constant(DType::kBF16, 0, {kBlock, kDim});
      const auto& k0 = k_up[p].head[0];
      const auto& k1 = k_up[p].head[1];
      const Value right =
          Concat({Concat({Rows(k0, 0, 32), zero}, 1), Concat({zero, Rows(k1, 0, 32)}, 1),
                  Concat({Rows(k0, 32, 32), zero}, 1), Concat({zero, Rows(k1, 32, 32)}, 1)},
                 0);
      const Value q = Concat({q_up[p].head[0], q_up[p].head[1]}, 1);
      if (level == kLevels) {  // only q has a diagonal
        x0[p] = Select(Load(level_map) == level, DotNT(q, right), 0.0);
        x1[p] = b->Constant(DType::kF32, 0, {kChunk, kDim});
        return;
      }
      const Value k = Concat({k0, k1}, 1);
      const Value product = DotNT(Concat({q, k}, 0), right);  // [128, 128]
      const Value mine = Load(level_map) == level;
      x0[p] = Select(mine, Rows(product, 0, kChunk), x0[p]);
      x1[p] = Select(mine, Rows(product, kChunk, kChunk), x1[p]);
    });
  }
  // For inter_chunk and output: qk = [scale q 2^G; k 2^G], kg = k 2^(G_last - G), 2^G_last.
  stages.push_back([this](int pair) {
    const Builder::Label label(b, "intra_chunk", 2 * pair);
    const auto p = static_cast<size_t>(pair);
    const Pair qq = LoadKeys(q_in, pair), kk = LoadKeys(k_in, pair);
    const Pair up = LevelDecay(pair, kLevels), down = LevelDecay(pair, kLevels + 1);
    Require(qk_read[p], "qk_next is overwritten before stage C has copied it");
    std::vector<Value> keys[2];
    for (int h = 0; h < 2; ++h) {
      qk_next.Set(
          2 * pair + h,
          ToBF16(Concat({qq.head[h] * up.head[h] * problem.scale, kk.head[h] * up.head[h]}, 0)));
      const Value kd = ToBF16(kk.head[h] * down.head[h]);
      keys[0].push_back(Rows(kd, 0, kBlock));
      keys[1].push_back(Rows(kd, kBlock, kBlock));
      Store(decay_new.Rows(2 * pair + h, 1), Rows(up.head[h], kChunk - 1, 1));
    }
    kg_next.Set(pair, Concat({keys[0][0], keys[0][1], keys[1][0], keys[1][1]}, 0));
    Store(beta_next.Rows(pair, 1), BetaRow(pair));
  });
  stages.push_back([this](int pair) {
    const Builder::Label label(b, "intra_chunk", 2 * pair);
    const auto p = static_cast<size_t>(pair);
    const Value beta_row = BetaRow(pair), minus = -beta_row;
    aqk_next.Set(pair, ToBF16(x0[p] * (beta_row * problem.scale)));
    Require(l_read[p], "l_both is overwritten before stage B has copied it");
    // The diagonal blocks as a quad, then the block below them in the first 64 lanes.
    l_both.Set(pair,
               ToBF16(Concat(
                   {Select(low_lanes, Rows(x1[p], 0, kBlock), Rows(x1[p], kBlock, kBlock)) * minus,
                    Rows(x1[p], kBlock, kBlock) * minus},
                   0)));
  });
  return stages;
}

}  // namespace kda::tpu::mega
