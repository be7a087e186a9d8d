// What this machine can run.
#ifndef KDA_CORE_CPU_FEATURES_H_
#define KDA_CORE_CPU_FEATURES_H_

#include "kda/kda.h"

namespace kda::core {

// The environment variable KDA_MAX_ISA: unset or empty: no cap.
struct IsaCap {
  const char* text;  // its value, or nullptr
  bool known;        // false: `text` names no instruction set; `isa` is then no cap
  kda_isa isa;
};
IsaCap ReadIsaCap();

// Of the processor and the operating system, whatever KDA_MAX_ISA says.
kda_isa MachineIsa();

}  // namespace kda::core

#endif  // KDA_CORE_CPU_FEATURES_H_
