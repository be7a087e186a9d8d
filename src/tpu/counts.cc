#include "tpu/counts.h"

#include <numeric>

#include "tpu/ir/array.h"

namespace kda::tpu {

namespace {

ir::Array Prefetched(const std::string& name, const TpuProblem& problem) {
  const auto count = static_cast<int32_t>(problem.sequences);
  std::vector<int32_t> values;
  if (name == "cu_seqlens") {
    values = {0};
    for (int64_t length : problem.lengths) {
      values.push_back(values.back() + static_cast<int32_t>(length));
    }
    values.resize(static_cast<size_t>(count) + 1, values.back());
  } else if (name == "initial_slots" || name == "final_slots") {
    values.resize(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 0);
  } else {
    return {};
  }
  return ir::Array::I32({static_cast<int64_t>(values.size())}, values);
}

}  // namespace

ir::Counts CountProgram(const ir::Program& program, const TpuProblem& problem) {
  std::vector<ir::Array> arguments;
  for (const ir::Argument& argument : program.arguments) {
    if (argument.role == ir::Role::kPrefetch) {
      arguments.push_back(Prefetched(argument.name, problem));
    }
  }
  return ir::Count(program, arguments);
}

KernelCounts CountsOf(const ir::Counts& counts) {
  KernelCounts result;
  result.steps = counts.steps;
  result.hbm_bytes = counts.BytesIn() + counts.BytesOut();
  for (const ir::Branch& branch : counts.branches) {
    if (!branch.label.empty()) result.lines[branch.node] = static_cast<double>(branch.taken);
  }
  return result;
}

}  // namespace kda::tpu
