// The instruction sets whose kernels this build has, whatever this machine can run.
#ifndef KDA_TESTS_SUPPORT_ISAS_H_
#define KDA_TESTS_SUPPORT_ISAS_H_

#include <vector>

#include "core/isa.h"

namespace kda::test {

inline std::vector<kda_isa> IsasOfBuild() {
  std::vector<kda_isa> isas;
  for (const core::Isa& row : core::Isas()) {
    if (row.kernels != nullptr) isas.push_back(static_cast<kda_isa>(row.info.isa));
  }
  return isas;
}

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_ISAS_H_
