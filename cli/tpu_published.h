// Times of others on a real TPU v6e, to stand beside predicted ones. Wall times of a call, the
// host's share of about 0.12 ms included; bounded gate.
#ifndef KDA_CLI_TPU_PUBLISHED_H_
#define KDA_CLI_TPU_PUBLISHED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kda::cli {

extern const char* const kTpuLadderCsv;  // data/tpu_v6e_ladder_h24.csv
extern const char* const kTpuGridCsv;    // data/tpu_v6e_grid_h24.csv

// What the column is called wherever it is shown.
inline constexpr char kPublishedFigure[] = "published, measured on a v6e by others";

// Of a rung as the library names it, or "serial": the last step with its heads in a loop.
std::optional<double> PublishedMs(const std::vector<int64_t>& lengths, int64_t heads,
                                  const std::string& rung);

}  // namespace kda::cli

#endif  // KDA_CLI_TPU_PUBLISHED_H_
