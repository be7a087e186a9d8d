//   G[i,c] = sum_{r <= i} g2[r,c]
#include <cmath>

#include "reference/stages.h"

namespace kda::reference {

Matrix GateCumsum(const Chunk& chunk) {
  const int64_t dim_k = chunk.dims.dim_k;
  Matrix G(chunk.g2);
  for (int64_t i = 1; i < chunk.rows; ++i) {
    for (int64_t c = 0; c < dim_k; ++c) G[i * dim_k + c] += G[(i - 1) * dim_k + c];
  }
  return G;
}

double DecayOver(const Chunk& chunk, int64_t first, int64_t last, int64_t channel) {
  double sum = 0;
  for (int64_t r = first; r <= last; ++r) sum += chunk.g2[r * chunk.dims.dim_k + channel];
  return std::exp2(sum);
}

}  // namespace kda::reference
