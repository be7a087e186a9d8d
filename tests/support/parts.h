// A sequence run in parts, each from the state the last one left.
#ifndef KDA_TESTS_SUPPORT_PARTS_H_
#define KDA_TESTS_SUPPORT_PARTS_H_

#include <cstdint>
#include <vector>

#include "support/case.h"
#include "support/run.h"

namespace kda::test {

struct Part {
  int64_t tokens;
  kda_mode mode;
};

// `count` parts of one token.
std::vector<Part> OneByOne(int64_t count, kda_mode mode);

// `c` is one sequence. o is that of all parts in a row, S that of the last.
Result RunInParts(const Case& c, const std::vector<Part>& parts, const Config& config);

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_PARTS_H_
