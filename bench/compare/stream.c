// The bound of decode: x *= c over a buffer, in place. See Stream in sides.py.
#include <stdint.h>

void scale(float* x, int64_t n, float c, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) x[i] *= c;
}
