// Stage 4, output.
//
//   o = scale ((q e^G) S + Aqk v_new)       [rows, V]
//
// fp64 (Aqk: intra_chunk; v_new: inter_chunk; S: the state before the chunk).
#include "reference/stages.h"

namespace kda::reference {

Matrix Output(const Chunk& chunk, const IntraChunk& intra, const Matrix& v_new,
              const Matrix& state) {
  const int64_t rows = chunk.rows, dim_k = chunk.dims.dim_k, dim_v = chunk.dims.dim_v;
  Matrix o(rows * dim_v, 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < dim_k; ++c) {
      const double q = chunk.q[i * dim_k + c] * DecayOver(chunk, 0, i, c);
      for (int64_t j = 0; j < dim_v; ++j) o[i * dim_v + j] += q * state[c * dim_v + j];
    }
    for (int64_t r = 0; r <= i; ++r) {
      for (int64_t j = 0; j < dim_v; ++j) {
        o[i * dim_v + j] += intra.Aqk[i * rows + r] * v_new[r * dim_v + j];
      }
    }
    for (int64_t j = 0; j < dim_v; ++j) o[i * dim_v + j] *= chunk.scale;
  }
  return o;
}

}  // namespace kda::reference
