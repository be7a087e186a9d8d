// Stage 2: what a chunk does within itself.
//
//   Aqk[i,j] = scale sum_c q[i,c] k[j,c] 2^(G[i,c] - G[j,c])      j <= i
//   L[i,j]   = beta[i] sum_c k[i,c] k[j,c] 2^(G[i,c] - G[j,c])    j < i
//   [u | w | T] = (I + L)^-1 [beta v | beta k 2^G | I]
//   kg[j] = k[j] 2^(G[last] - G[j])
//
// In, for h heads side by side: q, k, v, G [h, 64, 128], beta [h, 64, 1], all f32. Out, per head:
// u, w [64, 128], Aqk, T [64, 64], f32, and kg [h, 64, 128] f32. Matrix products round their
// operands to bf16 and sum in fp32; the rest is fp32 on the vector unit. Heads are written stage by
// stage: the products of one stage do not wait for each other.
//
// Two ways to Aqk and L:
// - element by element, any gate: the decay of every pair of rows, its exponent clamped;
// - strips (a bounded gate, 8 |lower_bound| / ln 2 < 126): 16 rows at a time, with m = G at the
//   strip's 9th row, from products of q 2^(G - m), k 2^(G - m) and k 2^(m - G). m is a later row for
//   half of the strip: the last bit of a row may depend on gates after it.
#ifndef KDA_TPU_LADDER_INTRA_CHUNK_H_
#define KDA_TPU_LADDER_INTRA_CHUNK_H_

#include <vector>

#include "kda/kda.h"
#include "tpu/ir/builder.h"

namespace kda::tpu {

inline constexpr int64_t kStrip = 16;  // rows of a strip, and of a block of the substitution

struct IntraInput {
  ir::Value q, k, v, G, beta;
};

struct IntraOptions {
  bool strips = true;
  // Substitution: in blocks of 16 rows, row by row within them. Block: T <- T - T (L o M_w) T with
  // w = 1, 2, .. 32, stable. Neumann64: (I - L)(I + L^2) .. (I + L^32) on the right-hand side, as
  // published; wrong on correlated keys with slow gates.
  kda_solver solver = KDA_SOLVER_BLOCK;
  double scale = 1;
  bool inverse = false;  // T is asked for
};

struct IntraOutput {
  std::vector<ir::Value> u, w, Aqk, T;
  ir::Value kg;
};

IntraOutput IntraChunk(const IntraInput& in, const IntraOptions& options);

// Whether the strips' exponents stay in range.
bool StripsFit(double lower_bound);

// Head i of [h, rows, columns] as a matrix.
ir::Value HeadOf(ir::Value x, int64_t i);

}  // namespace kda::tpu

#endif  // KDA_TPU_LADDER_INTRA_CHUNK_H_
