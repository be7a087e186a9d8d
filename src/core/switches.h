// The switches of the optimisation ladder: one row each, from which the options, the command line,
// the tests and the docs are made.
#ifndef KDA_CORE_SWITCHES_H_
#define KDA_CORE_SWITCHES_H_

#include <cstdint>
#include <string>

#include "kda/kda.h"

namespace kda::core {

struct Switch {
  kda_switch_info info;
  uint32_t needs;  // info.needs as bits
};

// The cumulative rungs, slowest first.
struct Rung {
  const char* name;
  uint32_t switches_on;
};

// Drops from `asked` every switch whose needs are not met. Each one dropped adds a reason to
// *reasons, e.g. "; head_block off: needs fuse".
uint32_t ResolveSwitches(uint32_t asked, std::string* reasons);

// "safe_gate,fuse", or "none".
std::string SwitchNames(uint32_t switches);

}  // namespace kda::core

#endif  // KDA_CORE_SWITCHES_H_
