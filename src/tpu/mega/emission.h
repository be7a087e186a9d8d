// The order in which a kernel's operations are written. LLO, libtpu's scheduler, keeps the order of
// matrix operations: independent work overlaps only where it is written interleaved.
#ifndef KDA_TPU_MEGA_EMISSION_H_
#define KDA_TPU_MEGA_EMISSION_H_

#include <functional>
#include <vector>

namespace kda::tpu::mega {

using Step = std::function<void()>;
using Stage = std::function<void(int item)>;

// One strand of work: its steps stay in order and are spread evenly over [start, end],
// as fractions of the whole.
struct Track {
  std::vector<Step> steps;
  double start = 0;
  double end = 1;
};

// Every item through every stage, item i entering stage k at time i + k * lag: `lag` items are
// under way in each stage at a time. Lag 0: all items through a stage before the next stage begins.
std::vector<Step> Skewed(int items, const std::vector<Stage>& stages, int lag);

// Runs all steps of all tracks, each next the one whose place on its track comes first.
void Merge(std::vector<Track> tracks);

}  // namespace kda::tpu::mega

#endif  // KDA_TPU_MEGA_EMISSION_H_
