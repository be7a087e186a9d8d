// Predicted wall times beside measured ones (data/tpu_v6e_grid_h24.csv; kda tpu validate does
// it for all of them). The measured kernels are the published ones and these the library's
// own, which need fewer cycles: what is kept is how far apart they are, so that a term lost
// from the formula is seen.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tpu/pjrt/files.h"
#include "tpu/report.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

constexpr double kSlack = 0.06;  // of the ratio

struct Kept {
  const char* name;
  const char* implementation;  // as the table names it
  uint32_t switches;
  int64_t tokens, batch;
  double ratio;  // predicted / measured, of kda tpu validate
  const char* what;
};

constexpr Kept kTable[] = {
    {"Shortest", "original", 0, 8, 1, 0.644, "kernels' cycles and the host"},
    {"Largest", "original", 0, 1024, 64, 0.744, "steps that do nothing, XLA's copies"},
    {"ShortestOptimized", "optimized", KDA_SWITCHES_ALL, 8, 1, 0.900, "the host's share"},
    {"Gathers", "optimized", KDA_SWITCHES_ALL, 1024, 64, 0.577,
     "0.08 of it waits for the SparseCore"},
};

double MeasuredMs(const Kept& row) {
  std::string csv;
  EXPECT_TRUE(ReadFile(KDA_DATA_DIR "/tpu_v6e_grid_h24.csv", &csv));
  for (const MeasuredPoint& point : ParseMeasured(csv)) {
    if (point.implementation == row.implementation && point.tokens == row.tokens &&
        point.batch == row.batch) {
      return point.ms;
    }
  }
  ADD_FAILURE() << "not measured";
  return 0;
}

class Validate : public testing::TestWithParam<Kept> {};

TEST_P(Validate, IsAsFarFromMeasuredAsItWas) {
  KDA_NEEDS_LIBTPU();
  const Kept& row = GetParam();
  ProgramRequest request;
  request.family = Family::kLadder;
  request.problem =
      PackedProblem(std::vector<int64_t>(static_cast<size_t>(row.batch), row.tokens), 24);
  request.problem.gate = KDA_GATE_BOUNDED;
  request.problem.has_a_log = request.problem.has_dt_bias = true;
  request.problem.gate_dtype = request.problem.beta_dtype = ir::DType::kF32;
  request.ladder.switches = row.switches;
  CompileSettings settings;
  settings.target = FindTarget("v6e");
  settings.child = TinyRequest().child;
  const Report report = PredictProgram(BuildProgram(request), settings);
  ASSERT_TRUE(report.ok()) << report.error;
  const double ratio = report.prediction.wall_ms / MeasuredMs(row);
  EXPECT_NEAR(ratio, row.ratio, kSlack * row.ratio) << row.what;
  RecordProperty("ratio", std::to_string(ratio));
}

INSTANTIATE_TEST_SUITE_P(V6e, Validate, testing::ValuesIn(kTable),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kda::tpu
