#include "tpu/mega/emission.h"

#include <cstddef>
#include <utility>

namespace kda::tpu::mega {

namespace {

std::vector<Step> StageByStage(int items, const std::vector<Stage>& stages) {
  std::vector<Step> steps;
  for (const Stage& stage : stages) {
    for (int item = 0; item < items; ++item) steps.push_back([stage, item] { stage(item); });
  }
  return steps;
}

}  // namespace

std::vector<Step> Skewed(int items, const std::vector<Stage>& stages, int lag) {
  if (lag == 0) return StageByStage(items, stages);
  const int count = static_cast<int>(stages.size());
  std::vector<Step> steps;
  for (int time = 0; time < items + (count - 1) * lag; ++time) {
    for (int k = count - 1; k >= 0; --k) {
      const int item = time - k * lag;
      if (item < 0 || item >= items) continue;
      steps.push_back([stage = stages[static_cast<size_t>(k)], item] { stage(item); });
    }
  }
  return steps;
}

void Merge(std::vector<Track> tracks) {
  std::vector<size_t> done(tracks.size(), 0);
  while (true) {
    const Track* next = nullptr;
    size_t at = 0;
    double first = 0;
    for (size_t t = 0; t < tracks.size(); ++t) {
      const Track& track = tracks[t];
      if (done[t] == track.steps.size()) continue;
      const double place = track.start + (track.end - track.start) * static_cast<double>(done[t]) /
                                             static_cast<double>(track.steps.size());
      if (next == nullptr || place < first) {
        next = &track;
        at = t;
        first = place;
      }
    }
    if (next == nullptr) return;
    next->steps[done[at]++]();
  }
}

}  // namespace kda::tpu::mega
