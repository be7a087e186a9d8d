#include "core/plan.h"

namespace kda::core {
const Backend& CpuBackend() {
  static const Backend backend = {
      [](kda_plan* plan) { plan->workspace_size = 0; },
      [](const kda_plan&, const Buffers&, kda_error* error) {
        return Fail(error, KDA_ERROR_INTERNAL, "backend", "not written yet");
      }};
  return backend;
}
}  // namespace kda::core
