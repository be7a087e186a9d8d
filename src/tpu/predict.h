// Predicts how long a compiled program takes, from the compiler's static schedule. A figure of this
// kind is named kPredictedFigure wherever it is shown, and never mixed with a measured one.
//
// One bundle of the schedule is one cycle. With the constants below (microseconds, bytes):
//   kernel        max(cycles / clock, steps * (step latency + bytes per step / kernel HBM))
//   XLA operation max(cycles / clock, bytes / XLA HBM, rows gathered or scattered * row) + operation
//   while loop    + iterations * iteration
// An asynchronous copy between HBM and VMEM is taken to be hidden behind what runs meanwhile. A
// gather that the compiler leaves to the SparseCore takes as long as one of the TensorCore's, one
// after another, and counts where the TensorCore waits for it. The device's time is the sum; a
// measured wall time has the host's on top.
#ifndef KDA_TPU_PREDICT_H_
#define KDA_TPU_PREDICT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tpu/pjrt/target.h"
#include "tpu/schedule/executions.h"
#include "tpu/schedule/schedule.h"

namespace kda::tpu {

inline constexpr char kPredictedFigure[] = "predicted (libtpu static schedule)";

// Fitted to measurements of a v6e (data/tpu_v6e_*.csv). On other targets the clock and the share of
// the nominal HBM bandwidth carry over, unproven (Target::fitted).
struct PredictorConstants {
  double clock_ghz = 1.75;        // pairs of programs that differ in one kernel: 1.737 to 1.759
  double kernel_hbm_tb_s = 0.96;  // of 1.6 nominal
  double step_latency_us = 0.20;  // of a grid step's first DMA
  double xla_hbm_tb_s = 0.90;
  double row_us = 0.014;
  double operation_us = 0.26;
  double while_iteration_us = 3.2;
  double host_us = 122;  // per call, in measured wall times
};
PredictorConstants ConstantsOf(const Target& target);

enum class Bound { kCycles, kHbm, kRows, kOverhead };
const char* BoundName(Bound bound);  // "cycles", "hbm", "rows", "overhead"

struct PredictedOperation {
  std::string name;
  OperationKind kind = OperationKind::kOther;
  double us = 0;  // in all
  Bound bound = Bound::kCycles;
  double times = 1;
  double steps = 1;  // of a kernel's grid, like all below per time it runs
  double cycles = 0;
  double cycles_per_step = 0;  // of the body of the loop over the grid
  int64_t hbm_bytes = 0;
  int64_t vmem_bytes = 0;
  double spills = 0, fills = 0;               // register stores and loads run
  std::array<double, kUnits> occupancy = {};  // share of each unit's slots in use over the cycles
  std::vector<std::string> notes;
};

struct Prediction {
  std::vector<PredictedOperation> kernels, operations;  // in the order in which they run
  double kernels_ms = 0, xla_ms = 0;                    // the latter with its while loops
  double device_ms = 0;
  double wall_ms = 0;  // device and host, to compare with measured times
  bool fitted = false;
  std::vector<std::string> notes;
};

Prediction Predict(const Schedule& schedule, const CountsByKernel& counts, const Target& target);

// The unit whose slots are fullest, which bounds a kernel that its cycles bound.
Unit BusiestUnit(const PredictedOperation& operation);

// One row of data/tpu_v6e_grid_h24.csv or _ladder_h24.csv, which begin with these columns.
struct MeasuredPoint {
  int64_t tokens = 0, batch = 0;  // per sequence, sequences
  std::string implementation;     // or rung
  double ms = 0;                  // median wall time
};
std::vector<MeasuredPoint> ParseMeasured(const std::string& csv);

// A predicted time beside a measured one.
struct ComparedPoint {
  std::string name;
  double predicted = 0, measured = 0;
};
struct Comparison {
  double median_error = 0, worst_error = 0;  // |predicted / measured - 1|
  std::string worst;                         // the point's name
  int64_t points = 0;
};
Comparison Compare(const std::vector<ComparedPoint>& points);
double Median(std::vector<double> values);  // of at least one

}  // namespace kda::tpu

#endif  // KDA_TPU_PREDICT_H_
