#include "support/parts.h"

#include <algorithm>

namespace kda::test {

std::vector<Part> OneByOne(int64_t count, kda_mode mode) {
  return std::vector<Part>(static_cast<size_t>(count), Part{1, mode});
}

Result RunInParts(const Case& c, const std::vector<Part>& parts, const Config& config) {
  Result all;
  std::vector<double> state = c.S0;
  int64_t first = 0;
  for (const Part& p : parts) {
    Case part = Slice(c, first, first + p.tokens, -1);
    part.mode = p.mode;
    part.S0 = state;
    if (first > 0) part.dtypes.initial = c.dtypes.final;
    const Result result = RunCase(part, config);
    all.status = result.status;
    const int32_t products = std::max(all.info.products, result.info.products);  // KDA_BF16 if any
    all.info = result.info;
    all.info.products = products;
    all.description = result.description;
    if (!result.status.ok()) return all;
    all.o.values.insert(all.o.values.end(), result.o.values.begin(), result.o.values.end());
    all.o.bits.insert(all.o.bits.end(), result.o.bits.begin(), result.o.bits.end());
    all.S = result.S;
    state = result.S.values;
    first += p.tokens;
  }
  return all;
}

}  // namespace kda::test
