#include "cli/tpu_published.h"

#include <algorithm>
#include <map>

#include "cli/workload.h"
#include "tpu/predict.h"

namespace kda::cli {

namespace {

// 4 sequences of 2048 tokens, 16 heads: the published ladder.
const std::map<std::string, double> kHeadline = {
    {"original", 33.61}, {"port", 14.73},  {"fuse", 11.79},    {"unified_layout", 8.23},
    {"flat_grid", 5.02}, {"serial", 4.12}, {"optimized", 2.62}};

// One sequence, 24 heads, optimized.
const std::map<int64_t, double> kOneSequence = {{128, 0.210},  {256, 0.260},  {512, 0.376},
                                                {1024, 0.555}, {2048, 0.963}, {4096, 1.898},
                                                {8192, 3.899}};

const std::map<std::string, std::string> kCsvNames = {
    {"baseline", "original"}, {"original", "original"},       {"mxu_port", "port"},
    {"+safe_gate", "port"},   {"+unified", "unified_layout"}, {"+fuse", "fuse"},
    {"+flat", "flat_grid"},   {"+hb", "optimized"},           {"optimized", "optimized"}};

std::optional<double> Find(const char* csv, const Batch& batch, const std::string& rung) {
  for (const tpu::MeasuredPoint& point : tpu::ParseMeasured(csv)) {
    const auto name = kCsvNames.find(point.implementation);
    if (name != kCsvNames.end() && name->second == rung && point.batch == batch.sequences() &&
        point.tokens == batch.lengths[0]) {
      return point.ms;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> PublishedMs(const std::vector<int64_t>& lengths, int64_t heads,
                                  const std::string& rung) {
  const Batch batch{lengths};
  if (lengths.empty() ||
      std::any_of(lengths.begin(), lengths.end(), [&](int64_t n) { return n != lengths[0]; })) {
    return std::nullopt;
  }
  if (heads == kHeadlineHeads && lengths == HeadlineWorkload()[0].lengths) {
    const auto it = kHeadline.find(rung);
    return it == kHeadline.end() ? std::nullopt : std::optional<double>(it->second);
  }
  if (heads != kK3Heads) return std::nullopt;
  if (const auto ms = Find(kTpuLadderCsv, batch, rung)) return ms;
  if (const auto ms = Find(kTpuGridCsv, batch, rung)) return ms;
  const auto it = kOneSequence.find(lengths[0]);
  if (rung == "optimized" && lengths.size() == 1 && it != kOneSequence.end()) return it->second;
  return std::nullopt;
}

}  // namespace kda::cli
