#include "core/limits.h"

#include <cfloat>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/plan.h"

namespace kda::core {
namespace {

struct Row {
  Limit limit;
  kda_limit_info info;
};

constexpr double kMaxIndex = 2147483647;  // sequences and chunks are numbered in 32 bits
constexpr double kMaxTokens = kMaxIndex * kChunk;
constexpr double kMaxTokenHeads = 17592186044416;  // 2^44: a workspace then stays below 2^63 bytes

constexpr Row kLimits[] = {
    {Limit::kBatch, {"batch", 0, kMaxIndex, "B, the first dimension of q; 1 with cu_seqlens"}},
    {Limit::kTokens, {"tokens", 0, kMaxTokens, "T, the second dimension of q"}},
    {Limit::kHeads, {"heads", 1, 65536, "H, query and key heads"}},
    {Limit::kValueHeads, {"value_heads", 1, 65536, "HV, a multiple of H"}},
    {Limit::kDimK,
     {"dim_k", 1, kMaxDim, "K, the size of a query and key head; 128 is the fast one"}},
    {Limit::kDimV, {"dim_v", 1, kMaxDim, "V, the size of a value head; 128 is the fast one"}},
    {Limit::kTokenHeads, {"token_heads", 0, kMaxTokenHeads, "B * T * HV"}},
    {Limit::kSequences, {"sequences", 0, kMaxIndex, "N, cu_seqlens.count - 1"}},
    {Limit::kScale,
     {"scale", -FLT_MAX, FLT_MAX, "any finite fp32 number; KDA_DEFAULT_SCALE stands for K^-0.5"}},
    // A larger magnitude times log2(e) leaves fp32.
    {Limit::kLowerBound, {"lower_bound", -1e38, 0, "of the bounded gate; 0: no decay"}},
    {Limit::kCheckpointEvery,
     {"checkpoint_every", 0, 9223372036854774784.0, "tokens between checkpoints; 0: none"}},
    {Limit::kThreads, {"threads", 0, 1024, "0: as many as processors this process may use"}},
    {Limit::kStructSize, {"struct_size", 8, 4096, "bytes of a caller's struct"}},
};
static_assert(sizeof kLimits / sizeof kLimits[0] == static_cast<size_t>(Limit::kCount));

constexpr bool InOrder() {
  for (size_t i = 0; i < static_cast<size_t>(Limit::kCount); ++i) {
    if (kLimits[i].limit != static_cast<Limit>(i)) return false;
  }
  return true;
}
static_assert(InOrder(), "rows are found by their index");

}  // namespace

const kda_limit_info& LimitOf(Limit limit) { return kLimits[static_cast<size_t>(limit)].info; }

namespace {

// What a message says is out of range: a message begins with the argument, and names no other thing
// where the argument itself is the number.
const char* NameIn(const char* argument, const kda_limit_info& info) {
  return std::strcmp(argument, info.name) == 0 ? "value" : info.name;
}

}  // namespace

kda_status CheckLimit(Limit limit, int64_t value, const char* argument, kda_status code,
                      kda_error* error) {
  const kda_limit_info& info = LimitOf(limit);
  const auto min = static_cast<int64_t>(info.min), max = static_cast<int64_t>(info.max);
  if (value >= min && value <= max) return KDA_OK;
  return Fail(error, code, argument,
              "%s is %" PRId64 ", must be from %" PRId64 " to %" PRId64 " (%s)",
              NameIn(argument, info), value, min, max, info.note);
}

namespace {

// The shortest of three forms that reads back as the same number.
struct Number {
  char text[32];
  explicit Number(double value) {
    for (const int digits : {6, 9, 17}) {
      std::snprintf(text, sizeof text, "%.*g", digits, value);
      if (std::strtod(text, nullptr) == value) return;
    }
  }
};

}  // namespace

kda_status CheckLimit(Limit limit, double value, const char* argument, kda_status code,
                      kda_error* error) {
  const kda_limit_info& info = LimitOf(limit);
  if (value >= info.min && value <= info.max) return KDA_OK;
  return Fail(error, code, argument, "%s is %s, must be from %s to %s (%s)", NameIn(argument, info),
              Number(value).text, Number(info.min).text, Number(info.max).text, info.note);
}

}  // namespace kda::core

extern "C" const kda_limit_info* kda_limit(int32_t index) {
  using kda::core::Limit;
  if (index < 0 || index >= static_cast<int32_t>(Limit::kCount)) return nullptr;
  return &kda::core::LimitOf(static_cast<Limit>(index));
}
