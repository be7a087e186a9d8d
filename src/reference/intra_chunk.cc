// Stage 2, intra_chunk: what the tokens of one chunk mean to each other, solved.
//
//   Aqk[i,j] = sum_c q[i,c] k[j,c] e^(G[i,c] - G[j,c])            j <= i    [rows, rows]
//   L[i,j]   = beta[i] sum_c k[i,c] k[j,c] e^(G[i,c] - G[j,c])    j <  i    [rows, rows]
//   u        = (I + L)^-1 beta v                                            [rows, V]
//   w        = (I + L)^-1 beta k e^G                                        [rows, K]
//   kg[j]    = k[j] e^(G[last] - G[j])                                      [rows, K]
//
// fp64 (G: gate_cumsum; `scale` is applied to the output). The inverse is applied by forward
// substitution, row by row. The kernels of src/cpu solve for v_new at once, of which u and w are
// the parts without and with the state.
#include "reference/stages.h"

namespace kda::reference {
namespace {

void FillPairs(const Chunk& chunk, IntraChunk* out) {
  const int64_t rows = chunk.rows, dim_k = chunk.dims.dim_k;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double qk = 0, kk = 0;
      for (int64_t c = 0; c < dim_k; ++c) {
        const double decayed = chunk.k[j * dim_k + c] * DecayOver(chunk, j + 1, i, c);
        qk += chunk.q[i * dim_k + c] * decayed;
        kk += chunk.k[i * dim_k + c] * decayed;
      }
      out->Aqk[i * rows + j] = qk;
      if (j < i) out->L[i * rows + j] = chunk.beta[i] * kk;
    }
  }
}

// x <- (I + L)^-1 x, x [rows, columns]
void Solve(const Matrix& L, int64_t rows, int64_t columns, Matrix* x) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      for (int64_t c = 0; c < columns; ++c) {
        (*x)[i * columns + c] -= L[i * rows + j] * (*x)[j * columns + c];
      }
    }
  }
}

}  // namespace

IntraChunk ComputeIntraChunk(const Chunk& chunk) {
  const int64_t rows = chunk.rows, dim_k = chunk.dims.dim_k, dim_v = chunk.dims.dim_v;
  IntraChunk out;
  out.Aqk.assign(rows * rows, 0.0);
  out.L.assign(rows * rows, 0.0);
  out.u.resize(rows * dim_v);
  out.w.resize(rows * dim_k);
  out.kg.resize(rows * dim_k);
  FillPairs(chunk, &out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < dim_v; ++c) {
      out.u[i * dim_v + c] = chunk.beta[i] * chunk.v[i * dim_v + c];
    }
    for (int64_t c = 0; c < dim_k; ++c) {
      const double k = chunk.k[i * dim_k + c];
      out.w[i * dim_k + c] = chunk.beta[i] * k * DecayOver(chunk, 0, i, c);
      out.kg[i * dim_k + c] = k * DecayOver(chunk, i + 1, rows - 1, c);
    }
  }
  Solve(out.L, rows, dim_v, &out.u);
  Solve(out.L, rows, dim_k, &out.w);
  return out;
}

}  // namespace kda::reference
