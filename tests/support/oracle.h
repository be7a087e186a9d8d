// A case in fp64, by the recurrence.
#ifndef KDA_TESTS_SUPPORT_ORACLE_H_
#define KDA_TESTS_SUPPORT_ORACLE_H_

#include <vector>

#include "support/case.h"

namespace kda::test {

struct Oracle {
  std::vector<double> o;            // [B, T, HV, V]; zeros where no live sequence is
  std::vector<double> S;            // [states, HV, K, V]
  std::vector<bool> S_written;      // per row of S
  std::vector<double> checkpoints;  // [C, HV, K, V]
  std::vector<bool> checkpoint_written;
};

Oracle Solve(const Case& c);

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_ORACLE_H_
