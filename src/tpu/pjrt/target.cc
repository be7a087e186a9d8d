#include "tpu/pjrt/target.h"

namespace kda::tpu {
namespace {

constexpr int64_t kMiB = 1 << 20;

// clang-format off
constexpr Target kTargets[] = {
    // name     topology        accelerator    cores GHz  TB/s  VMEM      MXUs delay fitted
    {"v5e",     "v5e:1x1",      "v5litepod-1", 1, 1.50, 0.82, 128 * kMiB, 4, 4, false},
    {"v5p",     "v5p:1x1x1",    "v5p-2",       1, 1.75, 2.46,  64 * kMiB, 4, 4, false},
    {"v6e",     "v6e:1x1",      "v6e-1",       1, 1.75, 1.60, 128 * kMiB, 2, 4, true},
    {"v6e:2x2", "v6e:2x2",      "v6e-4",       4, 1.75, 1.60, 128 * kMiB, 2, 4, true},
    {"tpu7x",   "tpu7x:1x1x1",  "tpu7x-2",     1, 2.20, 3.70,  64 * kMiB, 2, 6, false},
};
// clang-format on

}  // namespace

const Target* Targets(size_t* count) {
  *count = sizeof kTargets / sizeof kTargets[0];
  return kTargets;
}

const Target* FindTarget(const std::string& name) {
  for (const Target& target : kTargets) {
    if (name == target.name) return &target;
  }
  return nullptr;
}

std::string TargetNames() {
  std::string names;
  for (const Target& target : kTargets)
    names += (names.empty() ? "" : ", ") + std::string(target.name);
  return names;
}

}  // namespace kda::tpu
