// Comparisons of results with the oracle, and of bits with bits.
#ifndef KDA_TESTS_SUPPORT_COMPARE_H_
#define KDA_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/case.h"
#include "support/oracle.h"
#include "support/run.h"

namespace kda::test {

struct Error {
  double rel_f = 0, max_abs = 0;
  bool finite = true;
};
Error ErrorOf(const std::vector<double>& x, const std::vector<double>& reference);

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
