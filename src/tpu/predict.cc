#include "tpu/predict.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

namespace kda::tpu {
namespace {

constexpr double kFittedHbm = 1.60;  // TB/s, nominal, of the target that was fitted

double Microseconds(double bytes, double tb_s) { return bytes / (tb_s * 1e6); }

// Cycles, occupancy and spills of a program, from how often each of its bundles runs.
void AddCode(const Program& program, const Executions& executions, PredictedOperation* out) {
  std::array<double, kUnits> used{};
  for (size_t i = 0; i < executions.bundles.size(); ++i) {
    out->cycles += executions.bundles[i];
    if (i >= program.use.size()) continue;
    for (size_t unit = 0; unit < kUnits; ++unit) {
      used[unit] += executions.bundles[i] * program.use[i][unit];
    }
  }
  out->fills = used[static_cast<size_t>(Unit::kFill)];
  out->spills = used[static_cast<size_t>(Unit::kSpill)];
  for (size_t unit = 0; unit < kUnits; ++unit) {
    const double slots = out->cycles * program.capacity[unit];
    if (slots > 0) out->occupancy[unit] = used[unit] / slots;
  }
  if (program.grid_loop >= 0) {
    const Block& loop = program.blocks[static_cast<size_t>(program.grid_loop)];
    double body = 0;
    for (int32_t i = loop.first; i <= loop.last; ++i) {
      body += executions.bundles[static_cast<size_t>(i)];
    }
    out->cycles_per_step = body / executions.steps;
  } else {
    out->cycles_per_step = out->cycles / executions.steps;
  }
}

PredictedOperation PredictKernel(const Operation& operation, const Program* program,
                                 const KernelCounts* counts, const PredictorConstants& k) {
  PredictedOperation out;
  out.name = operation.kernel;
  out.hbm_bytes = operation.hbm_bytes;
  if (counts != nullptr && counts->hbm_bytes > 0) out.hbm_bytes = counts->hbm_bytes;
  if (program != nullptr) {
    const Executions executions =
        CountExecutions(*program, counts != nullptr ? *counts : KernelCounts{});
    out.steps = executions.steps;
    out.notes = executions.notes;
    AddCode(*program, executions, &out);
  } else {
    out.notes.push_back("there is no code to read");
  }
  const double compute = out.cycles / (k.clock_ghz * 1e3);
  const double memory = out.steps * k.step_latency_us +
                        Microseconds(static_cast<double>(out.hbm_bytes), k.kernel_hbm_tb_s);
  out.us = std::max(compute, memory);
  out.bound = compute >= memory ? Bound::kCycles : Bound::kHbm;
  return out;
}

PredictedOperation PredictXla(const Operation& operation, const Program* program,
                              const PredictorConstants& k) {
  PredictedOperation out;
  out.name = operation.name;
  out.hbm_bytes = operation.hbm_bytes;
  if (operation.kind == OperationKind::kTransfer) return out;
  if (program != nullptr) {
    Executions executions = CountExecutions(*program, KernelCounts{});
    AddCode(*program, executions, &out);
  }
  const double times[] = {out.cycles / (k.clock_ghz * 1e3),
                          Microseconds(static_cast<double>(out.hbm_bytes), k.xla_hbm_tb_s),
                          static_cast<double>(operation.rows) * k.row_us};
  const double* longest = std::max_element(times, times + 3);
  out.us = *longest + k.operation_us;
  out.bound = *longest > k.operation_us ? static_cast<Bound>(longest - times) : Bound::kOverhead;
  return out;
}

// The SparseCore's gathers, one after another, while the TensorCore goes on.
class SparseCore {
 public:
  void Start(size_t gather, const Operation& operation, double us, double now) {
    free_ = std::max(free_, now) + us;
    running_.push_back({gather, static_cast<size_t>(operation.awaited), free_});
  }
  // What the TensorCore waits for before operation `next`, as a time of the gather: its index, us.
  std::vector<std::pair<size_t, double>> Await(size_t next, double now) {
    std::vector<std::pair<size_t, double>> waits;
    for (Running& gather : running_) {
      if (gather.awaited > next) continue;
      const double wait = std::max(0.0, gather.end - now);
      waits.emplace_back(gather.index, wait);
      now += wait;
    }
    running_.erase(std::remove_if(running_.begin(), running_.end(),
                                  [next](const Running& r) { return r.awaited <= next; }),
                   running_.end());
    return waits;
  }

 private:
  struct Running {
    size_t index, awaited;
    double end;
  };
  double free_ = 0;
  std::vector<Running> running_;
};

}  // namespace

PredictorConstants ConstantsOf(const Target& target) {
  PredictorConstants constants;
  constants.clock_ghz = target.clock_ghz;
  constants.kernel_hbm_tb_s *= target.hbm_tb_s / kFittedHbm;
  constants.xla_hbm_tb_s *= target.hbm_tb_s / kFittedHbm;
  return constants;
}

const char* BoundName(Bound bound) {
  static constexpr const char* kNames[] = {"cycles", "hbm", "rows", "overhead"};
  return kNames[static_cast<int>(bound)];
}

Prediction Predict(const Schedule& schedule, const CountsByKernel& counts, const Target& target) {
  const PredictorConstants constants = ConstantsOf(target);
  Prediction prediction;
  prediction.fitted = target.fitted;
  prediction.notes = schedule.notes;
  double kernels_us = 0;
  double xla_us = schedule.while_iterations * constants.while_iteration_us;
  SparseCore sparse_core;
  const auto await = [&](size_t next) {
    for (const auto& [gather, us] : sparse_core.Await(next, kernels_us + xla_us)) {
      prediction.operations[gather].us = us;
      xla_us += us;
    }
  };
  for (size_t i = 0; i < schedule.operations.size(); ++i) {
    await(i);
    const Operation& operation = schedule.operations[i];
    const Program* program = operation.program >= 0
                                 ? &schedule.programs[static_cast<size_t>(operation.program)]
                                 : nullptr;
    const bool kernel = operation.kind == OperationKind::kKernel;
    const auto it = counts.find(operation.kernel);
    PredictedOperation out =
        kernel ? PredictKernel(operation, program, it != counts.end() ? &it->second : nullptr,
                               constants)
               : PredictXla(operation, program, constants);
    out.kind = operation.kind;
    out.times = operation.times;
    out.vmem_bytes = operation.vmem_bytes;
    out.us *= operation.times;
    if (operation.awaited >= 0) {
      sparse_core.Start(prediction.operations.size(), operation, out.us, kernels_us + xla_us);
      out.us = 0;
    }
    (kernel ? kernels_us : xla_us) += out.us;
    (kernel ? prediction.kernels : prediction.operations).push_back(std::move(out));
  }
  await(schedule.operations.size());
  prediction.kernels_ms = kernels_us / 1e3;
  prediction.xla_ms = xla_us / 1e3;
  prediction.device_ms = (kernels_us + xla_us) / 1e3;
  prediction.wall_ms = prediction.device_ms + constants.host_us / 1e3;
  return prediction;
}

Unit BusiestUnit(const PredictedOperation& operation) {
  const auto& occupancy = operation.occupancy;
  return static_cast<Unit>(std::max_element(occupancy.begin(), occupancy.end()) -
                           occupancy.begin());
}

std::vector<MeasuredPoint> ParseMeasured(const std::string& csv) {
  std::vector<MeasuredPoint> points;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream row(line);
    MeasuredPoint point;
    char comma = 0;
    if (row >> point.tokens >> comma >> point.batch >> comma &&
        std::getline(row, point.implementation, ',') && row >> point.ms) {
      points.push_back(point);
    }
  }
  return points;
}

Comparison Compare(const std::vector<ComparedPoint>& points) {
  Comparison comparison;
  std::vector<double> errors;
  for (const ComparedPoint& point : points) {
    const double error = std::abs(point.predicted / point.measured - 1);
    if (!std::isfinite(error)) continue;
    errors.push_back(error);
    if (errors.size() == 1 || error > comparison.worst_error) {
      comparison.worst_error = error;
      comparison.worst = point.name;
    }
  }
  comparison.points = static_cast<int64_t>(errors.size());
  if (!errors.empty()) comparison.median_error = Median(std::move(errors));
  return comparison;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace kda::tpu
