// Stage intra_chunk of the mega kernel (bounded gates): what the tokens of a
// chunk mean to each other.
//
//   q~_i = q_i 2^D_i    k~_i = k_i 2^D_i    k^_j = k_j 2^-D_j                       bf16
//   Aqk[i, j] = scale beta_j q~_i . k^_j    j <= i                  fp32 sums, kept as two bf16 halves
//   Ln[i, j]  = -beta_j k~_i . k^_j         j <  i
//
// within a block of 32 rows; for rows of the second block and columns of the first, k^_j = k_j
// 2^(m1 - G_j) instead (its own exponent: a product of two exponentials would underflow). beta
// stands with the column, along the lanes. For stages inter_chunk and output:
//
//   qk = [scale q 2^G; k 2^G]   [128, 128] bf16 per head   kg = k 2^(G_last - G)   [128, 128] fp32 per pair
//
// both from the fp32 products with 2^(+-D), rounded once (slow gates, 1024
// tokens: o 5.3e-3 to 4.6e-3).

#include <cmath>

#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

// q~ and k~ are kept 2^6 larger: at the end of a block of strong gates they are 2^-116
// of their size, where small elements would flush to zero. At its start they are 2^108,
// and have as much room above.
constexpr double kLift = 6, kLower = 1.0 / 64;

// Whether `scale` may stand with the decays of a whole row: at their smallest, 2^-116 with gates at
// the bound, a small one times them is below 2^-126 and flushes to zero, and with it what q reads
// of the state at the beginning of the chunk.
bool ScaleWithDecays(const TpuProblem& p) {
  const double binades = static_cast<double>(kBlock) / 2 * -p.lower_bound / std::log(2.0);
  return std::log2(std::fabs(p.scale) * kLower) - binades >= -126;
}

}  // namespace

std::vector<Stage> Kernel::IntraChunk() {
  const auto decay_rows = [this](int item) {
    const Builder::Label label(b, "intra_chunk", 2 * item);
    const auto p = static_cast<size_t>(item);
    const Pair qq = LoadKeys(q_in, item), kk = LoadKeys(k_in, item);
    for (int e = 0; e < 2; ++e) {
      const Value qe = qq.head[e], ke = kk.head[e];
      const Value sums = Cols(prefix[p], e * kDim, kDim);
      const Value d = Rows(sums, 0, kChunk);
      const Value up = Exp2(d + kLift), down = Exp2(-d);
      const Value cross = Exp2(Rows(sums, 69, 1) - Rows(d, 0, kBlock));
      exponents[p].head[e] = Exp2(Rows(sums, 64, 8));
      const Value q_of = qe * up, k_of = ke * up, kd_of = ke * down;
      q_up[p].head[e] = ToBF16(q_of);
      k_up[p].head[e] = ToBF16(k_of);
      k_down[p].head[e] = ToBF16(kd_of);
      // Rows of a block times 2^(the sum from its middle to where these operands count from).
      const auto moved = [&](Value x, int64_t row, double by) {
        const auto block = [&](int64_t r) {
          const Value f = Rows(exponents[p].head[e], row + r, 1);
          return Rows(x, r * kBlock, kBlock) * BroadcastTo(by == 1 ? f : f * by, {kBlock, kDim});
        };
        return Concat({block(0), block(1)}, 0);
      };
      const double scale = problem.scale * kLower;
      q_start[p].head[e] =
          ToBF16(ScaleWithDecays(problem) ? moved(q_of, 0, scale) : moved(q_of, 0, 1) * scale);
      k_start[p].head[e] = ToBF16(moved(k_of, 0, kLower));
      k_end[p].head[e] = moved(kd_of, 2, 1);
      k_cross[p].head[e] = ToBF16(Rows(ke, 0, kBlock) * cross);
    }
  };

  const auto products = [this](int item) {
    const Builder::Label label(b, "intra_chunk", 2 * item);
    const auto p = static_cast<size_t>(item);
    const auto queries_and_keys = [&](int64_t from) {  // [64, 256], both heads side by side
      const auto side = [&](int e) {
        return Concat({Rows(q_up[p].head[e], from, kBlock), Rows(k_up[p].head[e], from, kBlock)},
                      0);
      };
      return Concat({side(0), side(1)}, 1);
    };
    const auto keys = [&](const Pair& of, int64_t from) {  // [64, 256]
      return BlockDiagonal(Rows(of.head[0], from, kBlock), Rows(of.head[1], from, kBlock));
    };
    x0[p] = DotNT(queries_and_keys(0), keys(k_down[p], 0));  // [64, 64]: q, then k rows
    x1[p] = DotNT(queries_and_keys(kBlock),
                  Concat({keys(k_cross[p], 0), keys(k_down[p], kBlock)}, 0));  // [64, 128]
    Require(qk_read[p], "qk_next is overwritten before stage C has copied it");
    std::vector<Value> keys_to_end;
    for (int64_t block = 0; block < 2; ++block) {
      for (int e = 0; e < 2; ++e) {
        keys_to_end.push_back(Rows(k_end[p].head[e], block * kBlock, kBlock));
      }
    }
    Store(kg_next.At(item), Concat(keys_to_end, 0));
    for (int e = 0; e < 2; ++e) {
      qk_next.Set(2 * item + e, Concat({q_start[p].head[e], k_start[p].head[e]}, 0));
      Store(decay_new.Rows(2 * item + e, 1), Rows(exponents[p].head[e], 4, 1));
    }
    Store(beta_next.Rows(item, 1), BetaRow(item));
  };

  const auto finish = [this](int item) {
    const Builder::Label label(b, "intra_chunk", 2 * item);
    const auto p = static_cast<size_t>(item);
    const Value beta_row = BetaRow(item);
    const auto widen = [&](Value x) {
      return Concat({x, b->Constant(DType::kF32, 0, {kBlock, kDim / 2})}, 1);
    };
    const Value scores = Concat({widen(Rows(x0[p], 0, kBlock)), Rows(x1[p], 0, kBlock)}, 0);
    const Halves aqk_of =
        InHalves(Select(causal, scores * (beta_row * (problem.scale * kLower)), 0.0));
    aqk_next.Set(item, aqk_of.high);
    aqk_low_next.Set(item, aqk_of.low);
    const Value k0 = widen(Rows(x0[p], kBlock, kBlock)), k1 = Rows(x1[p], kBlock, kBlock);
    const Value minus = beta_row * -kLower;
    if (problem.precise) {
      KeepLn(item,
             Concat({Select(strictly_lower, k0, 0.0), Select(low_lanes | strictly_lower, k1, 0.0)},
                    0) *
                 minus);
    }
    Require(l_read[p], "l_both is overwritten before stage B has copied it");
    l_both.Set(
        item,
        ToBF16(Concat({Select(strictly_lower, Select(low_lanes, k0, k1) * minus, 0.0), k1 * minus},
                      0)));
  };
  return {decay_rows, products, finish};
}

}  // namespace kda::tpu::mega
