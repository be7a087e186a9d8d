#include "core/switches.h"

#include "kda/kda.h"

namespace kda::core {
namespace {

constexpr Switch kSwitches[] = {
    {{KDA_SWITCH_SAFE_GATE, "safe_gate", "intra_chunk", "",
      "on: 16-row strips of matrix products; off: the decay tensor, element by element", 0},
     0},
    {{KDA_SWITCH_FUSE, "fuse", "all", "",
      "on: one pass over a chunk while it is in cache; off: four stages through memory", 0},
     0},
    {{KDA_SWITCH_UNIFIED_LAYOUT, "unified_layout", "all", "",
      "on: tokens are read and written where they lie; off: gathered and scattered per chunk", 1},
     0},
    {{KDA_SWITCH_FLAT_GRID, "flat_grid", "all", "",
      "on: only the chunks that exist; off: as many steps a sequence as the longest has", 1},
     0},
    {{KDA_SWITCH_HEAD_BLOCK, "head_block", "all", "fuse,safe_gate",
      "on: several heads in one step, stage by stage; off: one head a step", 1},
     KDA_SWITCH_FUSE | KDA_SWITCH_SAFE_GATE},
};
constexpr int32_t kSwitchCount = sizeof kSwitches / sizeof kSwitches[0];

// The ladder adds the switches in the order of the table.
constexpr Rung kRungs[] = {
    {"original", 0},
    {"port", KDA_SWITCH_SAFE_GATE},
    {"fuse", KDA_SWITCH_SAFE_GATE | KDA_SWITCH_FUSE},
    {"unified_layout", KDA_SWITCH_SAFE_GATE | KDA_SWITCH_FUSE | KDA_SWITCH_UNIFIED_LAYOUT},
    {"flat_grid", KDA_SWITCHES_ALL & ~KDA_SWITCH_HEAD_BLOCK},
    {"optimized", KDA_SWITCHES_ALL},
};
constexpr int32_t kRungCount = sizeof kRungs / sizeof kRungs[0];

constexpr uint32_t AllBits() {
  uint32_t bits = 0;
  for (const Switch& row : kSwitches) bits |= row.info.bit;
  return bits;
}
static_assert(AllBits() == KDA_SWITCHES_ALL, "the table has a row for every switch of kda.h");

}  // namespace

uint32_t ResolveSwitches(uint32_t asked, std::string* reasons) {
  uint32_t on = asked;
  for (const Switch& row : kSwitches) {
    const uint32_t missing = row.needs & ~on;
    if ((on & row.info.bit) == 0 || missing == 0) continue;
    on &= ~row.info.bit;
    *reasons += std::string("; ") + row.info.name + " off: needs " + SwitchNames(missing);
  }
  return on;
}

std::string SwitchNames(uint32_t switches) {
  std::string names;
  for (const Switch& row : kSwitches) {
    if ((switches & row.info.bit) == 0) continue;
    if (!names.empty()) names += ',';
    names += row.info.name;
  }
  return names.empty() ? "none" : names;
}

}  // namespace kda::core

extern "C" const kda_switch_info* kda_switch(int32_t index) {
  using kda::core::kSwitches;
  return index >= 0 && index < kda::core::kSwitchCount ? &kSwitches[index].info : nullptr;
}

extern "C" int32_t kda_rung(int32_t index, const char** name, uint32_t* switches_on) {
  using kda::core::kRungCount;
  using kda::core::kRungs;
  if (index < 0 || index >= kRungCount) return 0;
  if (name != nullptr) *name = kRungs[index].name;
  if (switches_on != nullptr) *switches_on = kRungs[index].switches_on;
  return 1;
}
