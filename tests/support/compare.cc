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

// How a tensor is stored, and the root mean square of its reference.
struct Storage {
  int32_t products;
  kda_dtype dtype, kept;
  double rms;
};

double Rms(const std::vector<double>& x) {
  return x.empty() ? 0 : Norm(x) / std::sqrt(static_cast<double>(x.size()));
}

// Squares of one part, or of several, added up.
struct Sums {
  double error = 0, norm = 0, count = 0;
  void Add(double x, double reference) {
    error += (x - reference) * (x - reference);
    norm += reference * reference;
    count += 1;
  }
  void Add(const Sums& s) {
    error += s.error;
    norm += s.norm;
    count += s.count;
  }
};

template <class Visit>
void ForEach(const Share& part, Visit visit) {
  for (int64_t i = 0; i < part.count; ++i) {
    for (int64_t j = 0; j < part.width; ++j) {
      visit(static_cast<size_t>(part.first + i * part.step + j));
    }
  }
}

// `norm` of a part below the average, which is `rms` an element, is that of one of average size:
// the part may be what is left of larger numbers.
double NormOf(const Sums& sums, double rms) {
  return std::max(std::sqrt(sums.norm), rms * std::sqrt(sums.count));
}

double RelF(double error, double norm) { return norm > 0 ? error / norm : error; }

AssertionResult CloseIn(const std::vector<double>& x, const std::vector<double>& ref,
                        const Share& part, const Storage& storage) {
  Sums sums;
  size_t strange = x.size();
  ForEach(part, [&](size_t at) {
    if (!std::isfinite(x[at])) strange = std::min(strange, at);
    sums.Add(x[at], ref[at]);
  });
  if (strange < x.size()) {
    return AssertionFailure() << part.name << ": element " << strange << " is " << x[strange]
                              << ", not " << ref[strange];
  }
  const double error = std::sqrt(sums.error), norm = NormOf(sums, storage.rms);
  const double allowed =
      AllowedError(storage.products, storage.dtype, storage.kept, norm, sums.count);
  // The first test also refuses NaN.
  if (error <= allowed) return AssertionSuccess();
  return AssertionFailure() << part.name << ": relF " << RelF(error, norm) << " > "
                            << RelF(allowed, norm) << " (norm " << norm << ")";
}

AssertionResult AllClose(const std::vector<double>& x, const std::vector<double>& ref,
                         const std::vector<Share>& parts, const Storage& storage) {
  if (x.size() != ref.size()) return AssertionFailure() << "size " << x.size();
  for (const Share& part : parts) {
    const AssertionResult close = CloseIn(x, ref, part, storage);
    if (!close) return close;
  }
  return AssertionSuccess();
}

AssertionResult StatesMatch(const Case& c, int32_t products, const std::vector<double>& x,
                            const std::vector<double>& ref, const std::vector<bool>& written,
                            kda_dtype dtype) {
  return AllClose(x, ref, StateParts(c, written), {products, dtype, c.KeptDtype(), Rms(ref)});
}

AssertionResult OutputMatches(const Case& c, int32_t products, const std::vector<double>& x,
                              const std::vector<double>& ref) {
  const AssertionResult close =
      AllClose(x, ref, OutputParts(c), {products, c.dtypes.o, c.KeptDtype(), Rms(ref)});
  return close ? ZeroElsewhere(c, x) : close;
}

bool Live(const Case& c, int64_t n) {
  return c.slots.empty() || c.slots[static_cast<size_t>(n)] >= 0;
}

// Said where it happens: whoever compares errors with a limit sees only an infinite one.
bool SameSize(const std::vector<double>& x, const std::vector<double>& reference) {
  EXPECT_EQ(x.size(), reference.size());
  return x.size() == reference.size();
}

}  // namespace

std::vector<Share> OutputParts(const Case& c) {
  std::vector<Share> parts;
  for (int64_t n = 0; n < c.Sequences(); ++n) {
    for (int64_t head = 0; Live(c, n) && head < c.HV; ++head) {
      parts.push_back({"sequence " + std::to_string(n) + " head " + std::to_string(head),
                       (c.First(n) * c.HV + head) * c.V, c.Length(n), c.HV * c.V, c.V});
    }
  }
  return parts;
}

std::vector<Share> StateParts(const Case& c, const std::vector<bool>& written) {
  std::vector<Share> parts;
  const int64_t size = c.K * c.V;
  for (size_t row = 0; row < written.size(); ++row) {
    for (int64_t head = 0; written[row] && head < c.HV; ++head) {
      parts.push_back({"row " + std::to_string(row) + " head " + std::to_string(head),
                       (static_cast<int64_t>(row) * c.HV + head) * size, 1, size, size});
    }
  }
  return parts;
}

AssertionResult ZeroElsewhere(const Case& c, const std::vector<double>& o) {
  std::vector<bool> live(static_cast<size_t>(c.B * c.T));
  for (int64_t n = 0; n < c.Sequences(); ++n) {
    if (Live(c, n)) std::fill_n(live.begin() + c.First(n), c.Length(n), true);
  }
  const auto row = static_cast<size_t>(c.HV * c.V);
  for (size_t i = 0; i < o.size(); ++i) {
    if ((i / row < live.size() && live[i / row]) || o[i] == 0) continue;
    return AssertionFailure() << "row " << i / row << " of o belongs to no sequence but holds "
                              << o[i];
  }
  return AssertionSuccess();
}

Error ErrorOf(const std::vector<double>& x, const std::vector<double>& reference) {
  Error error;
  if (!SameSize(x, reference)) {
    error.rel_f = error.max_abs = kInf;
    return error;
  }
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

PartErrors ErrorsOf(const std::vector<double>& x, const std::vector<double>& reference,
                    const std::vector<Share>& parts) {
  PartErrors errors;
  if (!SameSize(x, reference)) {
    errors.whole.rel_f = errors.whole.max_abs = errors.part = errors.max_rel = kInf;
    return errors;
  }
  Sums all;
  std::vector<Sums> sums(parts.size());
  double largest = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    ForEach(parts[i], [&](size_t at) {
      errors.whole.finite = errors.whole.finite && std::isfinite(x[at]);
      errors.whole.max_abs = std::max(errors.whole.max_abs, std::fabs(x[at] - reference[at]));
      largest = std::max(largest, std::fabs(reference[at]));
      sums[i].Add(x[at], reference[at]);
    });
    all.Add(sums[i]);
  }
  errors.whole.rel_f = RelF(std::sqrt(all.error), std::sqrt(all.norm));
  errors.max_rel = RelF(errors.whole.max_abs, largest);
  const double rms = std::sqrt(all.norm / std::max(all.count, 1.0));
  for (size_t i = 0; i < parts.size(); ++i) {
    const double part = RelF(std::sqrt(sums[i].error), NormOf(sums[i], rms));
    if (part <= errors.part) continue;  // NaN is not finite
    errors.part = part;
    errors.worst = parts[i].name;
  }
  return errors;
}

AssertionResult Near(const std::vector<double>& x, const std::vector<double>& reference,
                     const std::vector<Share>& parts, double limit) {
  const PartErrors e = ErrorsOf(x, reference, parts);
  if (!e.whole.finite) return AssertionFailure() << "not finite";
  if (e.part <= limit && e.whole.rel_f <= limit) return AssertionSuccess();
  return AssertionFailure() << "relF " << e.part << " of " << e.worst << ", " << e.whole.rel_f
                            << " of the whole, largest absolute error " << e.whole.max_abs
                            << "; limit " << limit;
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
  const AssertionResult rows =
      StatesMatch(c, products, result.checkpoints.values, oracle.checkpoints,
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
