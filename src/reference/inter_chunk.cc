// Stage 3, inter_chunk: what the tokens really write, and the state after the chunk.
//
//   v_new = u - w S = (I + L)^-1 beta (v - (k e^G) S)       [rows, V]
//   S    <- e^G[last] S + kg^T v_new                        [K, V]
//
// fp64 (u, w, kg: intra_chunk).
#include "reference/stages.h"

namespace kda::reference {

InterChunk ComputeInterChunk(const Chunk& chunk, const IntraChunk& intra, const Matrix& state) {
  const int64_t rows = chunk.rows, dim_k = chunk.dims.dim_k, dim_v = chunk.dims.dim_v;
  InterChunk out = {intra.u, state};
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < dim_k; ++c) {
      for (int64_t j = 0; j < dim_v; ++j) {
        out.v_new[i * dim_v + j] -= intra.w[i * dim_k + c] * state[c * dim_v + j];
      }
    }
  }
  for (int64_t c = 0; c < dim_k; ++c) {
    const double decay = DecayOver(chunk, 0, rows - 1, c);
    for (int64_t j = 0; j < dim_v; ++j) {
      double sum = decay * state[c * dim_v + j];
      for (int64_t i = 0; i < rows; ++i) {
        sum += intra.kg[i * dim_k + c] * out.v_new[i * dim_v + j];
      }
      out.state[c * dim_v + j] = sum;
    }
  }
  return out;
}

}  // namespace kda::reference
