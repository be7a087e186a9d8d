// The bounds the validator holds every number against: one row each, shown by kda_limit, so that no
// document can say anything else.
#ifndef KDA_CORE_LIMITS_H_
#define KDA_CORE_LIMITS_H_

#include <cstdint>

#include "kda/kda.h"

namespace kda::core {

enum class Limit {
  kBatch,
  kTokens,
  kHeads,
  kValueHeads,
  kDimK,
  kDimV,
  kTokenHeads,
  kSequences,
  kScale,
  kLowerBound,
  kCheckpointEvery,
  kThreads,
  kStructSize,
  kCount
};

const kda_limit_info& LimitOf(Limit limit);

// KDA_OK or `code`, naming `argument`, the value and the limit.
kda_status CheckLimit(Limit limit, int64_t value, const char* argument, kda_status code,
                      kda_error* error);
// NaN is outside every limit.
kda_status CheckLimit(Limit limit, double value, const char* argument, kda_status code,
                      kda_error* error);

}  // namespace kda::core

#endif  // KDA_CORE_LIMITS_H_
