// Stage 1, gate_cumsum: the cumulative gate of a chunk.
//
//   G[i] = g[0] + .. + g[i]      g: log-decay of a token      [rows, K]
//
// fp64. A decay e^(G[i] - G[j]) is formed from the gates between (DecayOver), not from G:
// -inf - -inf is no number.
#include <cmath>

#include "reference/stages.h"

namespace kda::reference {

Matrix GateCumsum(const Chunk& chunk) {
  const int64_t dim_k = chunk.dims.dim_k;
  Matrix G(chunk.g);
  for (int64_t i = 1; i < chunk.rows; ++i) {
    for (int64_t c = 0; c < dim_k; ++c) G[i * dim_k + c] += G[(i - 1) * dim_k + c];
  }
  return G;
}

double DecayOver(const Chunk& chunk, int64_t first, int64_t last, int64_t channel) {
  double sum = 0;
  for (int64_t r = first; r <= last; ++r) sum += chunk.g[r * chunk.dims.dim_k + channel];
  return std::exp(sum);
}

}  // namespace kda::reference
