// Comparisons of results with the oracle, and of bits with bits.
#ifndef KDA_TESTS_SUPPORT_COMPARE_H_
#define KDA_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/oracle.h"
#include "support/run.h"

namespace kda::test {

struct Error {
  double rel_f = 0, max_abs = 0;
  bool finite = true;
};
// Of another size than the reference: the test fails, and the error is infinite.
Error ErrorOf(const std::vector<double>& x, const std::vector<double>& reference);

// --- By parts: one head of one sequence ---

// Rows of `width` elements at `first + i * step` for i in [0, count).
struct Share {
  std::string name;
  int64_t first, count, step, width;
};
// Of o [B, T, HV, V]: every head of every live sequence.
std::vector<Share> OutputParts(const Case& c);
// Of states [rows, HV, K, V]: every head of every row that was `written`.
std::vector<Share> StateParts(const Case& c, const std::vector<bool>& written);

struct PartErrors {
  Error whole;        // of all parts together
  double part = 0;    // relF of the worst part; one below the average counts as one of average size
  std::string worst;  // its name
  double max_rel = 0;  // max |x - ref| / max |ref|
};
// What is in no part is not looked at. Sizes as ErrorOf.
PartErrors ErrorsOf(const std::vector<double>& x, const std::vector<double>& reference,
                    const std::vector<Share>& parts);
// Every part, and with them the whole, within `limit`, and finite.
::testing::AssertionResult Near(const std::vector<double>& x, const std::vector<double>& reference,
                                const std::vector<Share>& parts, double limit);
// `o` zero in rows that belong to no live sequence.
::testing::AssertionResult ZeroElsewhere(const Case& c, const std::vector<double>& o);

// o, final_state and checkpoints within the limits of tolerance.h, finite, and zero where no live
// sequence is.
::testing::AssertionResult Matches(const Case& c, const Result& result, const Oracle& oracle);

// o, final_state and checkpoints equal bit for bit.
::testing::AssertionResult SameBits(const Result& a, const Result& b);
::testing::AssertionResult SameBits(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b);

double Norm(const std::vector<double>& x);
// One number that moves if any element is wrong or misplaced.
double Probe(const std::vector<double>& x);

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_COMPARE_H_
