// The oracle: Kimi Delta Attention as a recurrence in fp64, token by token.
//
//   S   <- diag(exp(G_t)) S
//   S   <- S + beta_t k_t (v_t - S^T k_t)^T
//   o_t  = scale S^T q_t
//
// S [dim_k, dim_v] row-major, q k G [dim_k], v o [dim_v]; G is the natural logarithm of the decay.
// Shares no code with the kernels, so that a fault of theirs cannot hide in it.
#ifndef KDA_REFERENCE_RECURRENCE_H_
#define KDA_REFERENCE_RECURRENCE_H_

#include <cstdint>

#include "kda/kda.h"

namespace kda::reference {

struct Dims {
  int64_t dim_k, dim_v;  // at most 256 each
};

// One token of one head, ready for the recurrence.
struct Token {
  const double* q;  // [dim_k]
  const double* k;  // [dim_k]
  const double* v;  // [dim_v]
  const double* g;  // [dim_k] G, in [-inf, 0]
  double beta;      // activated
};

// Advances `state` by one token and writes its output `o`.
void Step(Dims dims, const Token& token, double scale, double* state, double* o);

struct Gate {
  kda_gate form;
  double lower_bound;  // bounded only
};

// G of a raw gate x with its bias already added (log: x itself). Right at both ends: exp(A_log) or
// softplus(x) alone may overflow or underflow while their product does not.
double LogDecay(const Gate& gate, double x, double A_log);

double Sigmoid(double x);

// x <- x / sqrt(sum x^2 + 1e-6)
void L2Normalize(int64_t size, double* x);

}  // namespace kda::reference

#endif  // KDA_REFERENCE_RECURRENCE_H_
