// One fp64 oracle per stage of the chunked form, for tests of the kernels' stages. Per head and
// chunk of `rows` tokens; everything in fp64, matrices row-major. The equations are those of
// docs/algorithm.md; each file opens with its own. g is the log-decay of a token (natural
// logarithm), G its cumulative sum within the chunk, row i included:
//
//   G[i]     = g[0] + .. + g[i]                                                     [rows, K]
//   Aqk[i,j] = sum_c q[i,c] k[j,c] e^(G[i,c] - G[j,c])            j <= i, else 0    [rows, rows]
//   L[i,j]   = beta[i] sum_c k[i,c] k[j,c] e^(G[i,c] - G[j,c])    j <  i, else 0    [rows, rows]
//   u        = (I + L)^-1 beta v                                                    [rows, V]
//   w        = (I + L)^-1 beta k e^G                                                [rows, K]
//   v_new    = u - w S                                                              [rows, V]
//   o        = scale ((q e^G) S + Aqk v_new)                                        [rows, V]
//   S       <- e^G[last] S + kg^T v_new,   kg[j] = k[j] e^(G[last] - G[j])          [K, V]
//
// G[i] - G[j] is formed as the sum of the gates of rows j + 1 .. i: a gate of -inf, whose prefix
// sums differ by NaN, then means what it says.
#ifndef KDA_REFERENCE_STAGES_H_
#define KDA_REFERENCE_STAGES_H_

#include <cstdint>
#include <vector>

#include "reference/recurrence.h"

namespace kda::reference {

using Matrix = std::vector<double>;

// A chunk ready for the recurrence: l2norm, beta and gate activations done.
struct Chunk {
  Dims dims = {0, 0};
  int64_t rows = 0;
  double scale = 1;
  Matrix q, k;  // [rows, dim_k]
  Matrix v;     // [rows, dim_v]
  Matrix g;     // [rows, dim_k] log-decay of each token
  Matrix beta;  // [rows]
};

// G [rows, dim_k]: inclusive prefix sum of g.
Matrix GateCumsum(const Chunk& chunk);

struct IntraChunk {
  Matrix Aqk, L;  // [rows, rows]
  Matrix u;       // [rows, dim_v]
  Matrix w, kg;   // [rows, dim_k]
};
IntraChunk ComputeIntraChunk(const Chunk& chunk);

struct InterChunk {
  Matrix v_new;  // [rows, dim_v]
  Matrix state;  // [dim_k, dim_v] after the chunk
};
InterChunk ComputeInterChunk(const Chunk& chunk, const IntraChunk& intra, const Matrix& state);

// o [rows, dim_v]; `state` is the one before the chunk.
Matrix Output(const Chunk& chunk, const IntraChunk& intra, const Matrix& v_new,
              const Matrix& state);

// e^(sum of g[first .. last, channel]); 1 for an empty range.
double DecayOver(const Chunk& chunk, int64_t first, int64_t last, int64_t channel);

}  // namespace kda::reference

#endif  // KDA_REFERENCE_STAGES_H_
