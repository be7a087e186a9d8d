// Whether heads are split over threads (forward_split.cc), into how many parts and for how many
// workers: by a model of the times.
#ifndef KDA_CPU_SPLIT_MODEL_H_
#define KDA_CPU_SPLIT_MODEL_H_

#include <cstdint>

#include "core/plan.h"

namespace kda::cpu {

int64_t PairsOf(const kda_plan& plan);  // (sequence, head)s; at least 1
// Columns of V of a part: whole 16s, the last part the shortest.
int64_t WidthOf(const core::Problem& problem, int64_t parts);

// Parts of V; 0: they would save little, or cannot be.
int64_t SplitParts(const kda_plan& plan);
// As many as find something to do in plan.column_parts parts.
int64_t SplitWorkers(const kda_plan& plan);

// Time for a cache line that another core has written from which its cache is
// far (forward_split.cc): 40 to 50 ns where cores share an L3 cache, 190 where
// not (Zen 5). Tests set it.
extern double far_nanoseconds;

}  // namespace kda::cpu

#endif  // KDA_CPU_SPLIT_MODEL_H_
