// The instruction sets whose kernels this build has, and why one cannot be forced here.
#ifndef KDA_TESTS_SUPPORT_ISAS_H_
#define KDA_TESTS_SUPPORT_ISAS_H_

#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "core/isa.h"

namespace kda::test {

// Whatever this machine can run.
inline std::vector<kda_isa> IsasOfBuild() {
  std::vector<kda_isa> isas;
  for (const core::Isa& row : core::Isas()) {
    if (row.kernels != nullptr) isas.push_back(static_cast<kda_isa>(row.info.isa));
  }
  return isas;
}

// Why no kernel of `isa` that needs no tile registers can be run here; empty: one can.
inline std::string WhyNotWithoutTiles(kda_isa isa) {
  if (core::IsaAvailable(isa)) return "";
  return std::string("this machine (or KDA_MAX_ISA) has no ") + kda_isa_name(isa);
}

// Why not every plan can be made, or every kernel run, with `isa` here; empty: all can. Asks the
// system for the tile registers.
inline std::string WhyNot(kda_isa isa) {
  std::string why_not = WhyNotWithoutTiles(isa);
  if (!why_not.empty()) return why_not;
  if ((core::Isas().Find(isa)->needs & core::kAmxTile) != 0 && !core::AskForTiles()) {
    return "the system refuses this process the tile registers";
  }
  return "";
}

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_ISAS_H_
