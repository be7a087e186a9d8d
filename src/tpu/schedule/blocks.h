// Loops and predicated regions, recovered from a program's branches.
#ifndef KDA_TPU_SCHEDULE_BLOCKS_H_
#define KDA_TPU_SCHEDULE_BLOCKS_H_

#include <cstdint>
#include <string>
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
};

// What each scalar and predicate register is, in the compiler's words: "scmp.ge.s32.totalorder
// %s209_s19, 7". Every value has a register name of its own.
using Definitions = std::unordered_map<std::string, std::string>;

std::vector<Block> FindBlocks(const std::vector<Branch>& branches, const Definitions& definitions,
                              int32_t bundles, int delay_slots);

// Iterations of a loop that ends in `branch`; 0 if they are not constant.
int64_t TripCount(const Branch& branch, const Definitions& definitions);

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_BLOCKS_H_
