#include "tpu/schedule/executions.h"

#include <algorithm>
#include <set>

namespace kda::tpu {
namespace {

class Counter {
 public:
  Counter(const Program& program, const KernelCounts& counts, Executions* executions)
      : program_(program), counts_(counts), executions_(*executions) {
    for (const Block& block : program.blocks) {
      if (block.kind == BlockKind::kLoop) ++loops_[block.line];
      if (block.kind == BlockKind::kRegion) ++regions_[block.line];
    }
  }

  // Blocks come after those around them.
  void Run() {
    FindSteps();
    executions_.blocks.assign(program_.blocks.size(), 1);
    for (size_t i = 0; i < program_.blocks.size(); ++i) executions_.blocks[i] = Of(i);
    executions_.bundles.assign(static_cast<size_t>(program_.bundles), 1);
    for (size_t i = 0; i < program_.blocks.size(); ++i) {
      const Block& block = program_.blocks[i];
      std::fill(executions_.bundles.begin() + block.first,
                executions_.bundles.begin() + block.last + 1, executions_.blocks[i]);
    }
  }

 private:
  void FindSteps() {
    if (counts_.steps > 0) {
      executions_.steps = static_cast<double>(counts_.steps);
    } else if (program_.grid_loop >= 0) {
      const int64_t trips = program_.blocks[static_cast<size_t>(program_.grid_loop)].trips;
      executions_.steps = static_cast<double>(std::max<int64_t>(1, trips));
      Note("the number of steps is taken from the loop over them, filling and draining included");
    }
  }

  double Of(size_t index) {
    const Block& block = program_.blocks[index];
    const double around =
        block.parent < 0 ? 1 : executions_.blocks[static_cast<size_t>(block.parent)];
    switch (block.kind) {
      case BlockKind::kLoop:
        return OfLoop(index, around);
      case BlockKind::kRegion:
        return OfRegion(block, around);
      case BlockKind::kElse:
        return std::max(0.0, around - executions_.blocks[static_cast<size_t>(block.other)]);
      case BlockKind::kGuard:
        // Not known better: it runs when its loop does at all.
        return std::min(around, OfLoop(static_cast<size_t>(block.other), around));
    }
    return around;
  }

  double OfLoop(size_t index, double around) {
    const Block& block = program_.blocks[index];
    double given = 0;
    if (Given(block, loops_, &given)) return given;
    const bool grid = static_cast<int32_t>(index) == program_.grid_loop;
    if (block.trips > 0) return around * static_cast<double>(block.trips);
    if (grid) return std::max(around, executions_.steps);
    Note("loop '" + block.label + "': iterations unknown, taken as 1");
    return around;
  }

  double OfRegion(const Block& block, double around) {
    double given = 0;
    if (Given(block, regions_, &given)) return std::min(given, around);
    if (!block.label.empty()) {
      Note("region '" + block.label + "': not counted, taken to run always");
      return around;
    }
    // The compiler's own: the body of the pipeline, which the loop over the grid enters only when
    // there is a step to compute.
    return block.parent >= 0 && block.parent == program_.grid_loop
               ? std::min(around, executions_.steps)
               : around;
  }

  using Sharing = std::map<int64_t, int>;  // blocks of one kind by their line

  bool Given(const Block& block, const Sharing& sharing, double* count) const {
    const auto it = counts_.lines.find(block.line);
    if (block.label.empty() || it == counts_.lines.end()) return false;
    const auto shared = sharing.find(block.line);
    *count = it->second / (shared == sharing.end() ? 1 : shared->second);
    return true;
  }

  void Note(const std::string& note) {
    if (noted_.insert(note).second) executions_.notes.push_back(note);
  }

  const Program& program_;
  const KernelCounts& counts_;
  Executions& executions_;
  Sharing loops_, regions_;
  std::set<std::string> noted_;
};

}  // namespace

Executions CountExecutions(const Program& program, const KernelCounts& counts) {
  Executions executions;
  Counter(program, counts, &executions).Run();
  return executions;
}

}  // namespace kda::tpu
