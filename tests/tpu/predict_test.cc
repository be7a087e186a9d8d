// The predictor's formula, term by term, on schedules made up for it.
#include "tpu/predict.h"

#include <gtest/gtest.h>

#include "tpu/pjrt/files.h"
#include "tpu/schedule/bundles.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

// `bundles` cycles of straight code in which the matrix unit does one thing per cycle.
Program StraightCode(int32_t bundles) {
  Program program;
  program.bundles = bundles;
  program.capacity.fill(2);
  program.use.resize(static_cast<size_t>(bundles));
  for (UnitUse& use : program.use) use[static_cast<size_t>(Unit::kMatmul)] = 1;
  return program;
}

Operation KernelOf(int32_t program) {
  Operation operation;
  operation.name = "k.3";
  operation.kernel = "k";
  operation.kind = OperationKind::kKernel;
  operation.program = program;
  return operation;
}

const Target& V6e() { return *FindTarget("v6e"); }

TEST(Predict, KernelBoundByItsCycles) {
  Schedule schedule;
  schedule.programs = {StraightCode(1000)};
  schedule.programs[0].blocks = {{BlockKind::kLoop, 100, 899, -1, -1, 12, ""}};
  schedule.programs[0].grid_loop = 0;
  schedule.operations = {KernelOf(0)};
  schedule.operations[0].hbm_bytes = 1000;
  const Prediction prediction = Predict(schedule, {{"k", {10, {}, 0}}}, V6e());
  ASSERT_EQ(prediction.kernels.size(), 1U);
  const PredictedOperation& kernel = prediction.kernels[0];
  EXPECT_EQ(kernel.name, "k");
  EXPECT_EQ(kernel.bound, Bound::kCycles);
  EXPECT_DOUBLE_EQ(kernel.cycles, 200 + 800 * 12);
  EXPECT_DOUBLE_EQ(kernel.cycles_per_step, 960);
  EXPECT_DOUBLE_EQ(kernel.us, 9800 / 1750.0);
  EXPECT_DOUBLE_EQ(kernel.occupancy[static_cast<size_t>(Unit::kMatmul)], 0.5);
  EXPECT_EQ(BusiestUnit(kernel), Unit::kMatmul);
  EXPECT_DOUBLE_EQ(prediction.device_ms, kernel.us / 1e3);
  EXPECT_DOUBLE_EQ(prediction.wall_ms, prediction.device_ms + 0.122);
  EXPECT_TRUE(prediction.fitted);
}

TEST(Predict, KernelBoundByMemory) {
  Schedule schedule;
  schedule.programs = {StraightCode(100)};
  schedule.operations = {KernelOf(0)};
  schedule.operations[0].hbm_bytes = 1;
  const Prediction prediction = Predict(schedule, {{"k", {10, {}, 96000000}}}, V6e());
  const PredictedOperation& kernel = prediction.kernels[0];
  EXPECT_EQ(kernel.bound, Bound::kHbm);
  EXPECT_EQ(kernel.hbm_bytes, 96000000);
  EXPECT_NEAR(kernel.us, 10 * 0.20 + 100, 1e-9);
}

TEST(Predict, KernelWithoutCountsSaysSo) {
  Schedule schedule;
  schedule.programs = {StraightCode(100)};
  schedule.programs[0].blocks = {{BlockKind::kRegion, 10, 19, -1, -1, 0, "tail"}};
  schedule.operations = {KernelOf(0), KernelOf(-1)};
  const Prediction prediction = Predict(schedule, {}, V6e());
  EXPECT_EQ(prediction.kernels[0].notes.size(), 1U);
  EXPECT_EQ(prediction.kernels[1].notes.size(), 1U);
  EXPECT_DOUBLE_EQ(prediction.kernels[0].cycles, 100);
}

TEST(Predict, XlaOperations) {
  Schedule schedule;
  schedule.programs = {StraightCode(17500)};
  schedule.operations.resize(4);
  schedule.operations[0].program = 0;
  schedule.operations[1].hbm_bytes = 9000000;
  schedule.operations[1].times = 3;
  schedule.operations[2].rows = 1000;
  schedule.operations[3].hbm_bytes = 9000000;
  schedule.operations[3].kind = OperationKind::kTransfer;
  schedule.while_iterations = 5;
  const Prediction prediction = Predict(schedule, {}, V6e());
  ASSERT_EQ(prediction.operations.size(), 4U);
  EXPECT_NEAR(prediction.operations[0].us, 10.26, 1e-9);
  EXPECT_EQ(prediction.operations[0].bound, Bound::kCycles);
  EXPECT_NEAR(prediction.operations[1].us, 3 * 10.26, 1e-9);
  EXPECT_EQ(prediction.operations[1].bound, Bound::kHbm);
  EXPECT_NEAR(prediction.operations[2].us, 14.26, 1e-9);
  EXPECT_EQ(prediction.operations[2].bound, Bound::kRows);
  EXPECT_EQ(prediction.operations[3].us, 0);
  EXPECT_NEAR(prediction.xla_ms, (10.26 * 4 + 14.26 + 16) / 1e3, 1e-12);
  EXPECT_EQ(prediction.kernels_ms, 0);
}

// Two gathers of 14.26 us on the SparseCore, behind each other and beside
// 10.26 us of the TensorCore's.
TEST(Predict, SparseCoreRunsBeside) {
  Schedule schedule;
  schedule.programs = {StraightCode(17500)};
  schedule.operations.resize(4);
  for (const size_t gather : {0, 1}) {
    schedule.operations[gather].rows = 1000;
    schedule.operations[gather].kind = OperationKind::kGather;
  }
  schedule.operations[0].awaited = 3;
  schedule.operations[1].awaited = 4;
  schedule.operations[2].program = schedule.operations[3].program = 0;
  const Prediction prediction = Predict(schedule, {}, V6e());
  ASSERT_EQ(prediction.operations.size(), 4U);
  EXPECT_NEAR(prediction.operations[0].us, 14.26 - 10.26, 1e-9);
  EXPECT_NEAR(prediction.operations[1].us, 14.26 - 10.26, 1e-9);
  EXPECT_NEAR(prediction.device_ms, 2 * 14.26 / 1e3, 1e-12);
}

TEST(Predict, OtherTargetsScaleAndAreNotFitted) {
  size_t count = 0;
  const Target* targets = Targets(&count);
  for (size_t i = 0; i < count; ++i) {
    const PredictorConstants constants = ConstantsOf(targets[i]);
    EXPECT_DOUBLE_EQ(constants.clock_ghz, targets[i].clock_ghz);
    EXPECT_DOUBLE_EQ(constants.kernel_hbm_tb_s / targets[i].hbm_tb_s, 0.96 / 1.6);
    EXPECT_EQ(targets[i].fitted, std::string(targets[i].name).rfind("v6e", 0) == 0);
  }
}

TEST(Compare, MeasuredPoints) {
  const std::vector<MeasuredPoint> points = ParseMeasured(
      "S,B,impl,median_ms,p10_ms,p90_ms\n8,1,original,0.9683,0.9,1\nrubbish\n\n"
      "1024,64,+hb,35.5214\n8,1,x\n");
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].implementation, "original");
  EXPECT_EQ(points[1].tokens, 1024);
  EXPECT_EQ(points[1].batch, 64);
  EXPECT_EQ(points[1].ms, 35.5214);
  std::string csv;
  ASSERT_TRUE(ReadFile(KDA_DATA_DIR "/tpu_v6e_grid_h24.csv", &csv));
  EXPECT_EQ(ParseMeasured(csv).size(), 3U * 56);
  ASSERT_TRUE(ReadFile(KDA_DATA_DIR "/tpu_v6e_ladder_h24.csv", &csv));
  EXPECT_EQ(ParseMeasured(csv).size(), 12U);
}

TEST(Compare, MedianAndWorst) {
  const Comparison three = Compare({{"a", 1.1, 1}, {"b", 0.5, 1}, {"c", 2.04, 2}});
  EXPECT_NEAR(three.median_error, 0.1, 1e-12);
  EXPECT_NEAR(three.worst_error, 0.5, 1e-12);
  EXPECT_EQ(three.worst, "b");
  EXPECT_EQ(three.points, 3);
  EXPECT_NEAR(Compare({{"a", 1.1, 1}, {"b", 1.3, 1}}).median_error, 0.2, 1e-12);
  EXPECT_EQ(Compare({}).points, 0);
  EXPECT_EQ(Compare({{"zero", 1, 0}}).points, 0);
}

// The whole way, on the tiny kernel: its cycles are those of its parts as often as they run.
TEST(Predict, TinyKernel) {
  KDA_NEEDS_LIBTPU();
  CompileRequest request = TinyRequest();
  request.schedule = true;
  const CompileResult result = Compile(request);
  ASSERT_TRUE(result.ok()) << result.message;
  Schedule schedule;
  std::string error;
  ASSERT_TRUE(ReadSchedule(result.dumps, V6e().delay_slots, &schedule, &error)) << error;
  KernelCounts counts;
  counts.steps = 4;
  counts.lines = {{4, 9}, {7, 3}};  // "dynamic", "region"
  const auto cycles = [&] {
    const Prediction prediction = Predict(schedule, {{"tiny", counts}}, V6e());
    EXPECT_TRUE(prediction.notes.empty());
    EXPECT_EQ(prediction.kernels.size(), 1U);
    EXPECT_TRUE(prediction.kernels[0].notes.empty());
    return prediction.kernels[0].cycles;
  };
  const double base = cycles();
  // A product of 64 rows through 128x128 in fp32, dependent: between its
  // latency and a few times it.
  counts.lines[4] = 10;
  const double more = cycles() - base;
  EXPECT_GT(more, 100);
  EXPECT_LT(more, 400);
  EXPECT_GT(base, 28 * 100);
  EXPECT_LT(base, (28 + 9 + 4 + 6) * 400);
}

}  // namespace
}  // namespace kda::tpu
