// The named problems of the test suite and what the fp64 recurrence makes of them.
#ifndef KDA_TESTS_SUPPORT_GOLDENS_H_
#define KDA_TESTS_SUPPORT_GOLDENS_H_

#include <ostream>
#include <string>
#include <vector>

#include "support/case.h"

namespace kda::test {

Case StdA();
Case StdA0();  // without initial state
Case StdA1();  // without A_log
Case StdA2();  // without dt_bias
Case StdB();   // packed, the first sequence empty
Case StdC();   // softplus, gates from -1e-6 to -1425
Case StdD();   // every gate at the bound, two sequences
Case StdE();   // strongly correlated keys, slow gate
// StdE with the common component `common`, gate G and betas `beta`.
Case CorrelatedKeys(double common, double G, double beta);
Case StdF();
Case StdG();     // two value heads per query head
Case StdH();     // tiny unnormalised q and k, l2norm in the library
Case StdI();     // 4096 tokens of slow decay and nothing else
Case StdJ();     // 4096 tokens, log gate
Case StdK();     // 130 tokens
Case StdK128();  // the first 128 tokens of StdK
Case StdL();     // odd channels wiped, even channels kept

struct Golden {
  std::string name;
  Case (*make)();
  double norm_o, probe_o;  // 0: not given
  double norm_S, probe_S;
  std::vector<double> last_o;   // o[T-1, 0, 0..2]
  std::vector<double> first_S;  // S[0, 0, 0, 0..2]
};
inline void PrintTo(const Golden& golden, std::ostream* os) { *os << golden.name; }
const std::vector<Golden>& Goldens();

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_GOLDENS_H_
