// Predicted cycles, kept: an alarm where a kernel's schedule changes by 3 %, and where a time that
// has to be reached is missed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tpu/report.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

// The compiler that the table is of: libtpu 0.0.52 names itself by this change.
constexpr char kCompiler[] = "cl/1014260217";
constexpr double kAlarm = 0.03;

struct Kept {
  const char* name;
  Family family;
  int64_t batch, seqlen, heads;
  kda_gate gate;
  uint32_t switches;  // of the ladder
  double bar_ms;      // of the whole program; 0: none
  double cycles;      // of all kernels, all steps
};

// To update: the failing test prints the row as it should be.
constexpr Kept kTable[] = {
    {"Headline", Family::kMega, 4, 2048, 16, KDA_GATE_BOUNDED, 0, 0.24, 405286},
    {"HeadlineUnbounded", Family::kMega, 4, 2048, 16, KDA_GATE_SOFTPLUS, 0, 0.45, 784491},
    {"LongSequence", Family::kMega, 1, 8192, 24, KDA_GATE_BOUNDED, 0, 0.36, 544274},
    {"ManySequences", Family::kMega, 64, 1024, 24, KDA_GATE_BOUNDED, 0, 2.9, 4261857},
    {"ManyShortSequences", Family::kMega, 64, 8, 24, KDA_GATE_BOUNDED, 0, 0.4, 352841},
    {"OneShortSequence", Family::kMega, 1, 128, 24, KDA_GATE_BOUNDED, 0, 0.015, 21654},
    {"EightHeads", Family::kMega, 1, 2048, 8, KDA_GATE_LOG, 0, 0, 129555},
    {"Decode", Family::kDecode, 64, 1, 24, KDA_GATE_BOUNDED, 0, 0.273, 159335},
    {"LadderOriginal", Family::kLadder, 1, 256, 8, KDA_GATE_BOUNDED, 0, 0, 598148},
    {"LadderOptimized", Family::kLadder, 4, 2048, 16, KDA_GATE_BOUNDED, KDA_SWITCHES_ALL, 0,
     1693567},
};

const char* FamilyName(Family family) {
  return family == Family::kMega ? "kMega" : family == Family::kLadder ? "kLadder" : "kDecode";
}

const char* GateName(kda_gate gate) {
  return gate == KDA_GATE_BOUNDED    ? "KDA_GATE_BOUNDED"
         : gate == KDA_GATE_SOFTPLUS ? "KDA_GATE_SOFTPLUS"
                                     : "KDA_GATE_LOG";
}

std::string Row(const Kept& row, double cycles) {
  char text[256];
  std::snprintf(text, sizeof text, "    {\"%s\", Family::%s, %lld, %lld, %lld, %s, %s, %g, %.0f},",
                row.name, FamilyName(row.family), static_cast<long long>(row.batch),
                static_cast<long long>(row.seqlen), static_cast<long long>(row.heads),
                GateName(row.gate), row.switches == KDA_SWITCHES_ALL ? "KDA_SWITCHES_ALL" : "0",
                row.bar_ms, cycles);
  return text;
}

class Predicted : public testing::TestWithParam<Kept> {};

TEST_P(Predicted, StaysWhatItWas) {
  KDA_NEEDS_LIBTPU();
  const Kept& row = GetParam();
  ProgramRequest request;
  request.family = row.family;
  request.problem =
      PackedProblem(std::vector<int64_t>(static_cast<size_t>(row.batch), row.seqlen), row.heads);
  request.problem.gate = row.gate;
  request.problem.has_a_log = request.problem.has_dt_bias = row.gate != KDA_GATE_LOG;
  request.ladder.switches = row.switches;
  if (row.family == Family::kLadder) {
    request.problem.gate_dtype = request.problem.beta_dtype = ir::DType::kF32;
  }
  CompileSettings settings;
  settings.target = FindTarget("v6e");
  settings.child = TinyRequest().child;
  const Report report = PredictProgram(BuildProgram(request), settings);
  ASSERT_TRUE(report.ok()) << report.error;
  if (row.bar_ms > 0) {
    EXPECT_LE(report.prediction.device_ms, row.bar_ms) << "the time to reach";
  }
  if (report.compiled.compiler.find(kCompiler) == std::string::npos) {
    GTEST_SKIP() << "the table is of libtpu 0.0.52 (" << kCompiler << "), this is '"
                 << report.compiled.compiler << "'";
  }
  double cycles = 0;
  for (const PredictedOperation& kernel : report.prediction.kernels) cycles += kernel.cycles;
  EXPECT_LE(std::abs(cycles / row.cycles - 1), kAlarm)
      << row.cycles << " cycles before, " << cycles
      << " now. If that is meant, the row of kTable (tests/tpu/predicted_test.cc) becomes\n"
      << Row(row, cycles);
  RecordProperty("predicted_us", std::to_string(report.prediction.device_ms * 1e3));
}

INSTANTIATE_TEST_SUITE_P(V6e, Predicted, testing::ValuesIn(kTable),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kda::tpu
