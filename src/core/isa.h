// The instruction sets: one row each, from which choosing, forcing, the command line, the tests and
// the documents are made.
#ifndef KDA_CORE_ISA_H_
#define KDA_CORE_ISA_H_

#include <cstdint>
#include <string>

#include "core/cpu_features.h"
#include "kda/kda.h"

namespace kda::cpu {
struct Kernels;
}

namespace kda::core {

struct Isa {
  kda_isa_info info;
  uint64_t needs;               // cpu_features.h: without all of these it is not available
  uint64_t auto_needs;          // without all of these it is only taken when forced
  const cpu::Kernels* kernels;  // nullptr: of another architecture than this library
  // For problems whose products may take bf16 operands (docs/numerics.md); nullptr: the same.
  const cpu::Kernels* bf16_kernels;
};

// Of each architecture the one that needs nothing first, then in the order in which AUTO prefers
// them: the last that can be had.
struct IsaTable {
  const Isa* rows;
  int32_t count;

  const Isa* begin() const { return rows; }
  const Isa* end() const { return rows + count; }
  const Isa* Find(int32_t id) const;         // nullptr: no row
  const Isa* Named(const char* name) const;  // of this architecture; nullptr: no row
  const Isa& First() const;                  // of this architecture: needs nothing
};
const IsaTable& Isas();  // cpu/isa_table.cc

// What can be chosen from a table.
struct IsaChoice {
  IsaTable table;
  uint64_t features;                      // of the machine
  const Isa* cap;                         // KDA_MAX_ISA: nothing after this row; nullptr: no cap
  bool (*ask_for_tiles)() = AskForTiles;  // a test has answers of its own

  bool MachineHas(const Isa& isa) const;  // whatever the cap
  bool Available(const Isa& isa) const;
  const Isa& Best() const;    // what AUTO takes
  std::string Names() const;  // of the available ones: "baseline, avx2"
};

// The environment variable KDA_MAX_ISA; unset or empty: no cap.
struct IsaCap {
  const char* text;  // its value, or nullptr
  const Isa* isa;    // nullptr: no cap
  bool known;        // false: `text` names no instruction set of this architecture
};
IsaCap ReadIsaCap();

// Of this machine and KDA_MAX_ISA as it is now.
IsaChoice IsasHere();
bool IsaAvailable(int32_t id);

}  // namespace kda::core

#endif  // KDA_CORE_ISA_H_
