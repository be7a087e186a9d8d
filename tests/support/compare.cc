#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "support/generator.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

// Rows of `width` elements at `first + i * step` for i in [0, count): one head of o or of a state.
struct Region {
  int64_t first, count, step, width;
};

// How a tensor is stored, and the root mean square of its reference.
struct Storage {
  int32_t products;
  kda_dtype dtype, kept;
  double rms;
};

double Rms(const std::vector<double>& x) {
  return x.empty() ? 0 : Norm(x) / std::sqrt(static_cast<double>(x.size()));
}

AssertionResult CloseIn(const std::vector<double>& x, const std::vector<double>& ref,
                        const Region& region, const Storage& storage) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < region.count; ++i) {
    for (int64_t j = 0; j < region.width; ++j) {
      const size_t at = static_cast<size_t>(region.first + i * region.step + j);
      if (!std::isfinite(x[at])) {
        return AssertionFailure() << "element " << at << " is " << x[at] << ", not " << ref[at];
      }
      error += (x[at] - ref[at]) * (x[at] - ref[at]);
      norm += ref[at] * ref[at];
    }
  }
  const double count = static_cast<double>(region.count * region.width);
  error = std::sqrt(error);
  norm = std::max(std::sqrt(norm), storage.rms * std::sqrt(count));
  const double allowed = AllowedError(storage.products, storage.dtype, storage.kept, norm, count);
  // The first test also refuses NaN.
  if (error <= allowed) return AssertionSuccess();
  return AssertionFailure() << "relF " << (norm > 0 ? error / norm : error) << " > "
                            << (norm > 0 ? allowed / norm : allowed) << " (norm " << norm << ")";
}

AssertionResult StatesMatch(const Case& c, int32_t products, const std::vector<double>& x,
                            const std::vector<double>& ref, const std::vector<bool>& written,
                            kda_dtype dtype) {
  const int64_t size = c.K * c.V;
  if (x.size() != ref.size()) return AssertionFailure() << "size " << x.size();
  const Storage storage = {products, dtype, c.KeptDtype(), Rms(ref)};
  for (size_t row = 0; row < written.size(); ++row) {
    if (!written[row]) continue;
    for (int64_t head = 0; head < c.HV; ++head) {
      const Region region = {(static_cast<int64_t>(row) * c.HV + head) * size, 1, size, size};
      const AssertionResult close = CloseIn(x, ref, region, storage);
      if (!close)
        return AssertionFailure() << "row " << row << " head " << head << ": " << close.message();
    }
  }
  return AssertionSuccess();
}

AssertionResult OutputMatches(const Case& c, int32_t products, const std::vector<double>& x,
                              const std::vector<double>& ref) {
  if (x.size() != ref.size()) return AssertionFailure() << "size " << x.size();
  const Storage storage = {products, c.dtypes.o, c.KeptDtype(), Rms(ref)};
  std::vector<bool> live(static_cast<size_t>(c.B * c.T));
  for (int64_t n = 0; n < c.Sequences(); ++n) {
    if (!c.slots.empty() && c.slots[static_cast<size_t>(n)] < 0) continue;
    const int64_t length = c.Length(n), step = c.HV * c.V;
    std::fill_n(live.begin() + c.First(n), length, true);
    for (int64_t head = 0; head < c.HV; ++head) {
      const Region region = {(c.First(n) * c.HV + head) * c.V, length, step, c.V};
      const AssertionResult close = CloseIn(x, ref, region, storage);
      if (!close)
        return AssertionFailure() << "sequence " << n << " head " << head << ": "
                                  << close.message();
    }
  }
  for (int64_t t = 0; t < c.B * c.T; ++t) {
    if (live[static_cast<size_t>(t)]) continue;
    for (int64_t i = t * c.HV * c.V; i < (t + 1) * c.HV * c.V; ++i) {
      if (!(x[static_cast<size_t>(i)] == 0)) {
        return AssertionFailure() << "row " << t << " of o belongs to no sequence but holds "
                                  << x[static_cast<size_t>(i)];
      }
    }
  }
  return AssertionSuccess();
}

}  // namespace

Error ErrorOf(const std::vector<double>& x, const std::vector<double>& reference) {
  Error error;
  double sum = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::fabs(x[i] - reference[i]);
    error.finite = error.finite && std::isfinite(x[i]);
    error.max_abs = std::max(error.max_abs, difference);
    sum += difference * difference;
    norm += reference[i] * reference[i];
  }
  error.rel_f = norm > 0 ? std::sqrt(sum / norm) : std::sqrt(sum);
  return error;
}

AssertionResult Matches(const Case& c, const Result& result, const Oracle& oracle) {
  if (!result.status.ok()) return AssertionFailure() << result.status.message();
  const int32_t products = result.info.products;
  const AssertionResult o = OutputMatches(c, products, result.o.values, oracle.o);
  if (!o) return AssertionFailure() << "o: " << o.message() << " [" << result.description << "]";
  if (c.want_state) {
    const AssertionResult S =
        StatesMatch(c, products, result.S.values, oracle.S, oracle.S_written, c.dtypes.final);
    if (!S) {
      return AssertionFailure() << "final_state: " << S.message() << " [" << result.description
                                << "]";
    }
  }
  const AssertionResult rows = StatesMatch(c, products, result.checkpoints.values, oracle.checkpoints,
                                           oracle.checkpoint_written, c.dtypes.checkpoints);
  if (!rows) return AssertionFailure() << "checkpoints: " << rows.message();
  return AssertionSuccess();
}

AssertionResult SameBits(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  if (a.size() != b.size()) return AssertionFailure() << "sizes " << a.size() << ", " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) {
      char text[40];
      std::snprintf(text, sizeof text, "0x%08x and 0x%08x", a[i], b[i]);
      return AssertionFailure() << "element " << i << " of " << a.size() << ": " << text;
    }
  }
  return AssertionSuccess();
}

AssertionResult SameBits(const Result& a, const Result& b) {
  const AssertionResult o = SameBits(a.o.bits, b.o.bits);
  if (!o) return AssertionFailure() << "o: " << o.message();
  const AssertionResult S = SameBits(a.S.bits, b.S.bits);
  if (!S) return AssertionFailure() << "final_state: " << S.message();
  const AssertionResult rows = SameBits(a.checkpoints.bits, b.checkpoints.bits);
  if (!rows) return AssertionFailure() << "checkpoints: " << rows.message();
  return AssertionSuccess();
}

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return std::sqrt(sum);
}

double Probe(const std::vector<double>& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * (2 * Uniform(99, kTagProbe, i) - 1);
  return sum;
}

}  // namespace kda::test
