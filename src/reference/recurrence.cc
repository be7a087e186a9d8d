#include "reference/recurrence.h"

#include <algorithm>
#include <cmath>

namespace kda::reference {
namespace {

constexpr int64_t kMaxDim = 256;

// log(log(1 + exp(x)))
double LogSoftplus(double x) {
  if (x < -40) return x;  // softplus(x) = exp(x) (1 - exp(x) / 2 + ..), and exp(-40) < 2^-57
  if (x < 0) return std::log(std::log1p(std::exp(x)));
  return std::log(x + std::log1p(std::exp(-x)));
}

double SoftplusDecay(double x, double A_log) {
  // Away from the ends the plain product is the more exact: the logarithms cost |A_log| ulps.
  if (std::fabs(A_log) < 600 && x > -600) {
    const double softplus = x < 0 ? std::log1p(std::exp(x)) : x + std::log1p(std::exp(-x));
    return -std::exp(A_log) * softplus;
  }
  return -std::exp(A_log + LogSoftplus(x));
}

double BoundedDecay(double x, double A_log, double lower_bound) {
  // exp(A_log) may be infinite; zero times that is still the middle of the sigmoid.
  const double z = x == 0 ? 0 : std::exp(A_log) * x;
  return lower_bound * Sigmoid(z);
}

}  // namespace

double Sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

double LogDecay(const Gate& gate, double x, double A_log) {
  switch (gate.form) {
    case KDA_GATE_BOUNDED:
      return BoundedDecay(x, A_log, gate.lower_bound);
    case KDA_GATE_SOFTPLUS:
      return SoftplusDecay(x, A_log);
    default:
      return x;
  }
}

void L2Normalize(int64_t size, double* x) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += x[i] * x[i];
  const double norm = std::sqrt(sum + 1e-6);
  for (int64_t i = 0; i < size; ++i) x[i] /= norm;
}

// Every test holds its results against this: AddressSanitizer at each access of its two loops over
// the state would be a third of the time of all tests.
[[gnu::no_sanitize_address]] void Step(Dims dims, const Token& token, double scale, double* state,
                                       double* o) {
  double delta[kMaxDim];
  const int64_t dim_v = dims.dim_v;
  std::fill(delta, delta + dim_v, 0.0);
  std::fill(o, o + dim_v, 0.0);
  for (int64_t c = 0; c < dims.dim_k; ++c) {
    double* row = state + c * dim_v;
    const double decay = std::exp(token.g[c]), k = token.k[c];
    for (int64_t j = 0; j < dim_v; ++j) {
      row[j] *= decay;
      delta[j] += k * row[j];  // S^T k
    }
  }
  for (int64_t j = 0; j < dim_v; ++j) delta[j] = token.beta * (token.v[j] - delta[j]);
  for (int64_t c = 0; c < dims.dim_k; ++c) {
    double* row = state + c * dim_v;
    const double k = token.k[c], q = token.q[c];
    for (int64_t j = 0; j < dim_v; ++j) {
      row[j] += k * delta[j];
      o[j] += q * row[j];
    }
  }
  for (int64_t j = 0; j < dim_v; ++j) o[j] *= scale;
}

}  // namespace kda::reference
