// Stage intra_chunk of the mega kernel for gates without a bound: what the tokens of a chunk mean
// to each other, by halving.
//
// Level w = 1, 2, .., 32 takes the pairs (i, j) whose rows lie in the second and first half of one
// block of 2w rows. With m the last row of the first half, the exponent splits there:
//
//   G_i - G_j = (G_i - G_m) + (G_m - G_j)          both <= 0 for any gate, sums of gates of one sign
//   e_w[r] = 2^(sum of g2 from the half's start to r)    r in a second half
//            2^(sum of g2 from r + 1 to the half's end)  r in a first half                  [64, 128]
//   P_w = [q e_w; k e_w] (k e_w)^T                 [128, 64], of which level w's entries are taken
//
// The diagonal is q k^T. Nothing overflows, a factor that underflows stands for a
// product that does, and no sum looks at a row later than i. Sums are products with 0/1
// matrices, as in gate_cumsum.cc.
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

constexpr int kLevels = 6;  // of 64 rows
constexpr int kFine = 3;    // of those, the ones within a register of 8 rows

}  // namespace

void Kernel::PrepareLevels() {
  const Builder::Label label(b, "constants");
  const Shape shape = {kChunk, kDim};
  const Value i = b->Iota(shape, 0), t = b->Iota(shape, 1) & 63u;
  for (int level = 0; level < kFine; ++level) {
    const Value block = ir::ShiftRight(i, level);
    const Value in_block = block == ir::ShiftRight(t, level);
    const Value second = (block & 1u) == 1;
    level_sums.Set(level, ToBF16(Ones(in_block & ((second & (t <= i)) | (~second & (t > i))))));
  }
  level_sums.Set(kFine, ToBF16(Ones(t <= i)));  // G
  // The level of (i, j): where their highest different bit is; 6 on the diagonal, 7 above it.
  const Value l = b->Iota(shape, 1), j = (ir::ShiftRight(l, 6) << 5) + (l & 31u);
  const auto constant = [&](double n) { return b->Constant(DType::kI32, n, shape); };
  Value level_of = constant(kLevels);
  for (int level = 0; level < kLevels; ++level) {
    level_of = Select(ir::ShiftRight(i ^ j, level) == 1, constant(level), level_of);
  }
  Store(level_map, Select(j > i, constant(kLevels + 1), level_of));
}

// G of both heads, [64, 256]; or the exponents of a fine level.
Value Kernel::LevelSums(int item, int matrix) const {
  return Dot(level_sums.Get(matrix), gate_hi_lo[static_cast<size_t>(item)]);
}

namespace {

// The exponents of a level of whole registers, as differences of G: G is good to 2^-24 of the
// chunk's whole sum, and where that is large the decays across it are 0.
Value CoarseExponents(Value g, int level) {
  const int64_t half = int64_t{1} << level, width = g.shape()[1];
  std::vector<Value> parts;
  for (int64_t start = 0; start < kChunk; start += 2 * half) {
    const Value middle = BroadcastTo(Rows(g, start + half - 1, 1), {half, width});
    parts.push_back(middle - Rows(g, start, half));
    parts.push_back(Rows(g, start + half, half) - middle);
  }
  return Concat(parts, 0);
}

}  // namespace

// Every level reads q and k again. Where they are to be normalised that is done once, and kept.
void Kernel::NormaliseRows(int item) {
  if (!problem.qk_l2norm) return;
  const Pair rows[] = {LoadKeys(q_in, item), LoadKeys(k_in, item)};
  for (int x = 0; x < 2; ++x) {
    for (int e = 0; e < 2; ++e) Store(unit_rows.At(4 * item + 2 * x + e), rows[x].head[e]);
  }
}

Pair Kernel::Queries(int item) const {
  if (!problem.qk_l2norm) return LoadPair(q_in, item);
  return {{Load(unit_rows.At(4 * item)), Load(unit_rows.At(4 * item + 1))}};
}

Pair Kernel::Keys(int item) const {
  if (!problem.qk_l2norm) return LoadPair(k_in, item);
  return {{Load(unit_rows.At(4 * item + 2)), Load(unit_rows.At(4 * item + 3))}};
}

// The operands of one level, and what its product gives.
void Kernel::LevelOperands(int item, int level) {
  const Builder::Label label(b, "intra_chunk", 2 * item);
  const auto p = static_cast<size_t>(item);
  const Pair qq = Queries(item), kk = Keys(item);
  Value decay_of;  // [64, 256]
  if (level < kFine) decay_of = Exp2(LevelSums(item, level));
  if (level >= kFine && level < kLevels) decay_of = Exp2(CoarseExponents(prefix[p], level));
  for (int h = 0; h < 2; ++h) {
    Value q_of = qq.head[h], k_of = kk.head[h];
    if (level < kLevels) {
      const Value e = Cols(decay_of, h * kDim, kDim);
      q_of = q_of * e;
      k_of = k_of * e;
    }
    q_up[p].head[h] = ToBF16(q_of);
    k_up[p].head[h] = ToBF16(k_of);
  }
}

void Kernel::LevelProduct(int item, int level) {
  const Builder::Label label(b, "intra_chunk", 2 * item);
  const auto p = static_cast<size_t>(item);
  const auto block = [&](int64_t from) {  // keys of one block, [64, 256]
    return BlockDiagonal(Rows(k_up[p].head[0], from, kBlock), Rows(k_up[p].head[1], from, kBlock));
  };
  const auto left = [&](const Pair& x, int64_t from, int64_t rows) {
    return Concat({Rows(x.head[0], from, rows), Rows(x.head[1], from, rows)}, 1);
  };
  if (level == kLevels - 1) {  // the second block's rows, the first block's columns: all of them
    const Value product =
        DotNT(Concat({left(q_up[p], kBlock, kBlock), left(k_up[p], kBlock, kBlock)}, 0), block(0));
    const Value half = b->Constant(DType::kF32, 0, {kBlock, kDim / 2});
    const Value none = b->Constant(DType::kF32, 0, {kBlock, kDim});
    x0[p] = Concat({none, Concat({Rows(product, 0, kBlock), half}, 1)}, 0);
    x1[p] = Concat({none, Concat({Rows(product, kBlock, kBlock), half}, 1)}, 0);
    return;
  }
  const Value mine = Load(level_map) == level;
  const Value right = Concat({block(0), block(kBlock)}, 0);
  if (level == kLevels) {  // only q has a diagonal
    x0[p] = Select(mine, DotNT(left(q_up[p], 0, kChunk), right), x0[p]);
    return;
  }
  const Value product =
      DotNT(Concat({left(q_up[p], 0, kChunk), left(k_up[p], 0, kChunk)}, 0), right);  // [128, 128]
  x0[p] = Select(mine, Rows(product, 0, kChunk), x0[p]);
  x1[p] = Select(mine, Rows(product, kChunk, kChunk), x1[p]);
}

// For inter_chunk and output: qk = [scale q 2^G; k 2^G], kg = k 2^(G_last - G), 2^G_last.
void Kernel::UnboundedEnds(int item) {
  const Builder::Label label(b, "intra_chunk", 2 * item);
  const auto p = static_cast<size_t>(item);
  const Pair qq = Queries(item), kk = Keys(item);
  Require(qk_read[p], "qk_next is overwritten before stage C has copied it");
  std::vector<Value> keys[2];
  for (int h = 0; h < 2; ++h) {
    const Value g = Cols(prefix[p], h * kDim, kDim), last = Rows(g, kChunk - 1, 1);
    const Value up = Exp2(g), down = Exp2(BroadcastTo(last, {kChunk, kDim}) - g);
    qk_next.Set(2 * item + h,
                ToBF16(Concat({qq.head[h] * up * problem.scale, kk.head[h] * up}, 0)));
    const Value kd = kk.head[h] * down;
    keys[0].push_back(Rows(kd, 0, kBlock));
    keys[1].push_back(Rows(kd, kBlock, kBlock));
    Store(decay_new.Rows(2 * item + h, 1), Rows(up, kChunk - 1, 1));
  }
  Store(kg_next.At(item), Concat({keys[0][0], keys[0][1], keys[1][0], keys[1][1]}, 0));
  Store(beta_next.Rows(item, 1), BetaRow(item));
}

std::vector<Stage> Kernel::IntraChunkUnbounded() {
  std::vector<Stage> stages;
  stages.push_back([this](int item) {
    const Builder::Label label(b, "intra_chunk", 2 * item);
    NormaliseRows(item);
    prefix[static_cast<size_t>(item)] = LevelSums(item, kFine);
  });
  const auto add_level = [&](int level) {
    stages.push_back([this, level](int item) { LevelOperands(item, level); });
    stages.push_back([this, level](int item) { LevelProduct(item, level); });
  };
  for (int level = kLevels - 1; level >= kFine; --level) add_level(level);
  stages.push_back([this](int item) { UnboundedEnds(item); });
  for (int level = kFine - 1; level >= 0; --level) add_level(level);
  add_level(kLevels);
  stages.push_back([this](int item) {
    const Builder::Label label(b, "intra_chunk", 2 * item);
    const auto p = static_cast<size_t>(item);
    const Value beta_row = BetaRow(item), minus = -beta_row;
    const Halves aqk_of = InHalves(x0[p] * (beta_row * problem.scale));
    aqk_next.Set(item, aqk_of.high);
    aqk_low_next.Set(item, aqk_of.low);
    if (problem.precise) KeepLn(item, x1[p] * minus);
    Require(l_read[p], "l_both is overwritten before stage B has copied it");
    // The diagonal blocks as a quad, then the block below them in the first 64 lanes.
    const Value upper = Rows(x1[p], 0, kBlock), lower = Rows(x1[p], kBlock, kBlock);
    l_both.Set(item, ToBF16(Concat({Select(low_lanes, upper, lower) * minus, lower * minus}, 0)));
  });
  return stages;
}

}  // namespace kda::tpu::mega
