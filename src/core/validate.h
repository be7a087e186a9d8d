// From what the caller gave to a checked problem. Every function returns KDA_OK or fills *error.
#ifndef KDA_CORE_VALIDATE_H_
#define KDA_CORE_VALIDATE_H_

#include <cstddef>
#include <string>

#include "core/isa.h"
#include "core/plan.h"

namespace kda::core {

// The sizes a caller's struct may have: see "Versioning" in kda.h.
struct StructRule {
  const char* name;
  size_t oldest;  // bytes of the smallest version taken
  size_t known;   // sizeof here
};

// Copies what both sides know of *caller (any struct that starts with its size) over *ours, which
// holds the defaults.
kda_status CopyStruct(const StructRule& rule, const void* caller, void* ours, kda_error* error);

// core/validate.cc: all but the index arrays. Sets plan->problem.
kda_status CheckProblem(const kda_problem& problem, kda_plan* plan, kda_error* error);

// core/schedule.cc: cu_seqlens, slots, has_initial, checkpoints. Sets the plan's lists.
kda_status MakeSchedule(const kda_problem& problem, kda_plan* plan, kda_error* error);

// core/options.cc. Sets plan->execution; adds the fallbacks to *reasons. `here`: what isa is chosen
// from.
kda_status CheckOptions(const kda_options& options, const IsaChoice& here, kda_plan* plan,
                        std::string* reasons, kda_error* error);

// core/options.cc, after CheckOptions and when nothing else can be wrong. Sets plan->bf16_products;
// where these take tiles, asks the system for them and, refused, chooses another instruction set.
kda_status ChooseProducts(const kda_options& options, const IsaChoice& here, kda_plan* plan,
                          std::string* reasons, kda_error* error);

// core/options.cc. What will run, in a line.
std::string Describe(const kda_plan& plan);

}  // namespace kda::core

#endif  // KDA_CORE_VALIDATE_H_
