// Loops and predicated regions, recovered from a program's branches.
#ifndef KDA_TPU_SCHEDULE_BLOCKS_H_
#define KDA_TPU_SCHEDULE_BLOCKS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tpu/schedule/schedule.h"

namespace kda::tpu {

struct Branch {
  int32_t bundle = 0;
  int32_t target = 0;
  bool negated = false;   // taken when the predicate is false
  std::string predicate;  // register; empty: always taken
  std::string label;
  std::string identity;  // the label with its numbers; empty: none
  int64_t line = 0;      // the first of these; 0: none
};

// What each scalar and predicate register is, in the compiler's words: "scmp.ge.s32.totalorder
// %s209_s19, 7". Every value has a register name of its own; so has every place in SMEM that one is
// spilled to, "#allocation48_spill", which is what was stored there: "%s98_s16".
using Definitions = std::unordered_map<std::string, std::string>;

// The spill place that an address names, "[smem:[#allocation48_spill]]"; empty: it names none.
std::string SpillPlace(std::string_view text);

std::vector<Block> FindBlocks(const std::vector<Branch>& branches, const Definitions& definitions,
                              int32_t bundles, int delay_slots);

// Iterations of a loop that ends in `branch`; 0 if they are not constant.
int64_t TripCount(const Branch& branch, const Definitions& definitions);

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_BLOCKS_H_
