// The workloads that are measured: shapes, and the ShareGPT-derived prompt lengths.
#ifndef KDA_CLI_WORKLOAD_H_
#define KDA_CLI_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kda::cli {

extern const char* const kLengthCountsCsv;  // data/sharegpt_k3_length_counts.csv
extern const char* const kBatchesCsv;       // data/sharegpt_k3_batches.csv

inline constexpr int64_t kHeadlineHeads = 16;
inline constexpr int64_t kK3Heads = 24;  // Kimi K3: 96 heads over 4 chips

// One batch: sequences of these lengths, packed.
struct Batch {
  std::vector<int64_t> lengths;

  static Batch Of(int64_t sequences, int64_t length) {
    return {std::vector<int64_t>(static_cast<size_t>(sequences), length)};
  }
  int64_t sequences() const { return static_cast<int64_t>(lengths.size()); }
  int64_t Tokens() const;
  int64_t PaddedTokens() const;  // each sequence rounded up to whole 64-token chunks
  std::string Describe() const;  // "4 x 2048"
};

std::vector<Batch> HeadlineWorkload();  // 4 x 2048
std::vector<Batch> K3Workload();        // 1 x 128 .. 1 x 8192
std::vector<Batch> GridWorkload();      // 56 points

// 100 batches for each B, in the order they are replayed.
struct Replay {
  int64_t batch = 0;
  std::vector<int64_t> lengths;
};
std::vector<Replay> ShareGptReplays();

struct LengthCount {
  int64_t tokens = 0, count = 0;
};
std::vector<LengthCount> ShareGptLengthCounts();

}  // namespace kda::cli

#endif  // KDA_CLI_WORKLOAD_H_
