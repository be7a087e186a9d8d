#include "cli/tpu_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/table.h"
#include "cli/tpu_flags.h"

namespace kda::cli {
namespace {

using tpu::PredictedOperation;
using tpu::Unit;

constexpr size_t kOperationRows = 12;  // of XLA's, the longest

Json OccupancyJson(const PredictedOperation& operation) {
  Json json = Json::object();
  for (int i = 0; i < tpu::kUnits; ++i) {
    const auto unit = static_cast<Unit>(i);
    if (unit == Unit::kFill || unit == Unit::kSpill) continue;  // part of vload and vstore
    json[tpu::UnitName(unit)] = operation.occupancy[static_cast<size_t>(i)];
  }
  return json;
}

Json KernelJson(const PredictedOperation& k, const tpu::KernelStep& step) {
  const auto whole = [](double x) { return static_cast<int64_t>(std::llround(x)); };
  return {{"name", k.name},
          {"ms", k.us / 1e3},
          {"times", whole(k.times)},
          {"bound", tpu::BoundName(k.bound)},
          {"steps", whole(step.steps)},
          {"cycles_per_step", step.cycles},
          {"grid_steps", whole(k.steps)},
          {"cycles", k.cycles},
          {"hbm_bytes", k.hbm_bytes},
          {"vmem_bytes", k.vmem_bytes},
          {"spills", whole(k.spills)},
          {"fills", whole(k.fills)},
          {"busiest_unit", tpu::UnitName(tpu::BusiestUnit(k))},
          {"occupancy", OccupancyJson(k)},
          {"notes", k.notes}};
}

std::string KernelTable(const tpu::Report& report) {
  Table table({"kernel", "time", "bound", "steps", "cycles/step", "HBM", "VMEM", "spills"});
  const std::vector<PredictedOperation>& kernels = report.prediction.kernels;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const PredictedOperation& k = kernels[i];
    const double steps = report.steps[i].steps;
    table.Add({k.name + (k.times > 1 ? fmt::format(" x {:.0f}", k.times) : ""),
               HumanTime(k.us / 1e3), tpu::BoundName(k.bound), fmt::format("{:.0f}", steps),
               fmt::format("{:.0f}", report.steps[i].cycles), Bytes(k.hbm_bytes),
               Bytes(k.vmem_bytes), fmt::format("{:.0f} a step", k.spills / std::max(1.0, steps))});
  }
  return table.Text();
}

// Share of each unit's slots in use, over a kernel's cycles.
std::string OccupancyTable(const tpu::Report& report) {
  const Unit shown[] = {Unit::kMatmul, Unit::kMatpush, Unit::kXlu,    Unit::kValu, Unit::kVpop,
                        Unit::kEup,    Unit::kVload,   Unit::kVstore, Unit::kSalu};
  std::vector<std::string> columns = {"slots in use"};
  for (Unit unit : shown) columns.emplace_back(tpu::UnitName(unit));
  columns.emplace_back("busiest");
  Table table(columns);
  for (const PredictedOperation& k : report.prediction.kernels) {
    std::vector<std::string> cells = {k.name};
    for (Unit unit : shown) {
      cells.push_back(fmt::format("{:.0f} %", 100 * k.occupancy[static_cast<size_t>(unit)]));
    }
    cells.emplace_back(tpu::UnitName(tpu::BusiestUnit(k)));
    table.Add(cells);
  }
  return table.Text() +
         "matmul, matpush: matrix products, weights put into the matrix units; xlu: moves along "
         "and\n"
         "across lanes; valu: vector arithmetic; vpop: results taken from units; eup: exp, 1/x and "
         "the\n"
         "like; vload, vstore: VMEM read, written; salu: scalar arithmetic (docs/tpu.md, Words)\n";
}

std::string OperationTable(const tpu::Prediction& prediction) {
  std::vector<const PredictedOperation*> operations;
  for (const PredictedOperation& o : prediction.operations) operations.push_back(&o);
  std::stable_sort(operations.begin(), operations.end(),
                   [](const auto* a, const auto* b) { return a->us > b->us; });
  Table table({"XLA operation", "kind", "time", "bound", "HBM"});
  double rest = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    const PredictedOperation& o = *operations[i];
    if (i >= kOperationRows) {
      rest += o.us;
      continue;
    }
    table.Add({o.name + (o.times > 1 ? fmt::format(" x {:.0f}", o.times) : ""),
               tpu::OperationKindName(o.kind), HumanTime(o.us / 1e3), tpu::BoundName(o.bound),
               Bytes(o.hbm_bytes)});
  }
  if (operations.size() > kOperationRows) {
    table.Add({fmt::format("{} more", operations.size() - kOperationRows), "",
               HumanTime(rest / 1e3), "", ""});
  }
  return table.Text();
}

}  // namespace

Json ReportJson(const tpu::Report& report) {
  const tpu::Prediction& p = report.prediction;
  Json json = {{"figure", tpu::kPredictedFigure},
               {"predicted_ms", p.device_ms},
               {"kernels_ms", p.kernels_ms},
               {"xla_ms", p.xla_ms},
               {"wall_ms", p.wall_ms},
               {"fitted", p.fitted},
               {"kernels", Json::array()},
               {"operations", Json::array()}};
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    json["kernels"].push_back(KernelJson(p.kernels[i], report.steps[i]));
  }
  for (const PredictedOperation& o : p.operations) {
    json["operations"].push_back({{"name", o.name},
                                  {"kind", tpu::OperationKindName(o.kind)},
                                  {"ms", o.us / 1e3},
                                  {"times", o.times},
                                  {"bound", tpu::BoundName(o.bound)},
                                  {"cycles", o.cycles},
                                  {"hbm_bytes", o.hbm_bytes}});
  }
  json["notes"] = p.notes;
  return json;
}

std::string ReportText(const tpu::Report& report) {
  const tpu::Prediction& p = report.prediction;
  std::string text = fmt::format("{} = kernels {} + XLA {}\n", HumanTime(p.device_ms),
                                 HumanTime(p.kernels_ms), HumanTime(p.xla_ms));
  text += fmt::format("{} as a caller would measure it: the host's {} on top\n",
                      HumanTime(p.wall_ms), HumanTime(p.wall_ms - p.device_ms));
  if (!p.fitted) text += "The predictor was fitted to a v6e; for this target it is unproven.\n";
  if (!p.kernels.empty()) text += "\n" + KernelTable(report) + "\n" + OccupancyTable(report);
  if (!p.operations.empty()) text += "\n" + OperationTable(p);
  std::vector<std::string> notes = p.notes;
  for (const PredictedOperation& k : p.kernels) {
    for (const std::string& note : k.notes) notes.push_back(k.name + ": " + note);
  }
  if (!notes.empty()) text += "\n";
  for (const std::string& note : notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace kda::cli
