#include "cli/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace kda::cli {
namespace {

// The data lines of a CSV text.
std::vector<std::string> Lines(const char* csv) {
  std::istringstream stream(csv);
  std::vector<std::string> lines;
  std::string line;
  std::getline(stream, line);  // the column names
  while (std::getline(stream, line)) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

}  // namespace

int64_t Batch::Tokens() const {
  int64_t tokens = 0;
  for (int64_t length : lengths) tokens += length;
  return tokens;
}

int64_t Batch::PaddedTokens() const {
  int64_t tokens = 0;
  for (int64_t length : lengths) tokens += (length + 63) / 64 * 64;
  return tokens;
}

std::string Batch::Describe() const {
  if (lengths.empty()) return "nothing";
  const auto [low, high] = std::minmax_element(lengths.begin(), lengths.end());
  if (*low == *high) return fmt::format("{} x {}", lengths.size(), *low);
  return fmt::format("{} of {}..{}", lengths.size(), *low, *high);
}

std::vector<Batch> HeadlineWorkload() { return {Batch::Of(4, 2048)}; }

std::vector<Batch> K3Workload() {
  std::vector<Batch> batches;
  for (int64_t length = 128; length <= 8192; length *= 2) batches.push_back(Batch::Of(1, length));
  return batches;
}

std::vector<Batch> GridWorkload() {
  std::vector<Batch> batches;
  for (int64_t length = 8; length <= 1024; length *= 2) {
    for (int64_t count = 1; count <= 64; count *= 2) batches.push_back(Batch::Of(count, length));
  }
  // Smallest first: what a time limit cuts off is then the costly end.
  std::stable_sort(batches.begin(), batches.end(),
                   [](const Batch& a, const Batch& b) { return a.Tokens() < b.Tokens(); });
  return batches;
}

std::vector<Replay> ShareGptReplays() {
  std::vector<Replay> replays;
  for (const std::string& line : Lines(kBatchesCsv)) {
    Replay replay;
    replay.batch = std::stoll(line);
    std::istringstream lengths(line.substr(line.find(',') + 1));
    for (int64_t length; lengths >> length;) replay.lengths.push_back(length);
    replays.push_back(std::move(replay));
  }
  return replays;
}

std::vector<LengthCount> ShareGptLengthCounts() {
  std::vector<LengthCount> counts;
  for (const std::string& line : Lines(kLengthCountsCsv)) {
    counts.push_back({std::stoll(line), std::stoll(line.substr(line.find(',') + 1))});
  }
  return counts;
}

}  // namespace kda::cli
