// Reads the code of one program: the compiler's "packed-bundles-post-ra"
// text and its table of units.
#ifndef KDA_TPU_SCHEDULE_BUNDLES_H_
#define KDA_TPU_SCHEDULE_BUNDLES_H_

#include <string>

#include "tpu/schedule/schedule.h"

namespace kda::tpu {

// Both take any text; what is not in order is left out.
Program ParseBundles(const std::string& text, int delay_slots);
void ParseUse(const std::string& text, Program* program);

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_BUNDLES_H_
