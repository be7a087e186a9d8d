// Measured times on this TPU, with the predicted ones beside them.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>

#include "tpu/report.h"
#include "tpu/tiny_kernel.h"
#include "tpu_device/tpu.h"

namespace kda::test {
namespace {

using tpu::Family;
using tpu::ProgramRequest;
using tpu::TpuProblem;
using tpu::ir::Array;
using tpu::ir::DType;

constexpr int kRepeats = 20;

// Numbers of the right kind: unit keys, gates around 0, sequences as the problem
// has them, in their slots.
tpu::hlo::Arrays InputsOf(const tpu::hlo::Module& module, const TpuProblem& p) {
  std::mt19937 random(1);
  std::vector<double> normal(4099);
  std::normal_distribution<double> distribution(0, 1);
  for (double& x : normal) x = distribution(random);
  tpu::hlo::Arrays inputs;
  for (const tpu::hlo::Port& port : module.inputs()) {
    const tpu::hlo::Type type = module.Whole(port);
    Array array(type.dtype, type.shape);
    const double scale = port.name == "q" || port.name == "k" ? 0.0884 : 1;
    const double shift = p.gate == KDA_GATE_LOG && port.name == "g" ? -5 : 0;
    int64_t token = 0;
    for (int64_t i = 0; i < array.size(); ++i) {
      if (port.name == "cu_seqlens") {
        array.Set(i, static_cast<double>(token));
        if (i < p.sequences) token += p.lengths[static_cast<size_t>(i)];
      } else if (type.dtype == DType::kI32) {
        array.Set(i, static_cast<double>(i));  // slots
      } else if (port.name == "beta") {
        array.Set(i, 0.5);
      } else {
        array.Set(i, shift + scale * normal[static_cast<size_t>(i) % normal.size()]);
      }
    }
    inputs[port.name] = std::move(array);
  }
  return inputs;
}

void Header() {
  printf("%-34s %12s %12s   %s\n", "ms", "one call", "queued", tpu::kPredictedFigure);
}

void Measure(const std::string& name, const ProgramRequest& request) {
  SCOPED_TRACE(name);
  std::string why;
  tpu::Device* const device = TpuDevice(&why);
  const tpu::BuiltProgram program = tpu::BuildProgram(request);
  tpu::ExecuteRequest execute =
      tpu::RequestOf(*program.module, InputsOf(*program.module, request.problem));
  execute.repeats = kRepeats;
  const tpu::ExecuteResult result = device->Execute(execute);
  ASSERT_TRUE(result.ok()) << result.error;
  tpu::CompileSettings settings;
  settings.target = device->target();
  settings.child = {"/proc/self/exe", "compile-child"};
  const tpu::Report report = tpu::PredictProgram(program, settings);
  char predicted[96];
  snprintf(predicted, sizeof predicted, "device %.4f, wall %.4f%s", report.prediction.device_ms,
           report.prediction.wall_ms, report.prediction.fitted ? "" : " (not fitted to this chip)");
  printf("%-34s %12.4f %12.4f   %s\n", name.c_str(), 1e3 * result.call_seconds,
         1e3 * result.queued_seconds, report.ok() ? predicted : report.error.c_str());
  fflush(stdout);
}

ProgramRequest Prefill(int64_t batch, int64_t length, int64_t heads) {
  ProgramRequest request;
  request.problem =
      tpu::PackedProblem(std::vector<int64_t>(static_cast<size_t>(batch), length), heads);
  return request;
}

TEST(TpuDeviceTimes, Mega) {
  KDA_NEEDS_TPU(1);
  if (Rehearsing()) GTEST_SKIP() << "the evaluator has no times";
  Header();
  Measure("mega 4 x 2048, H 16", Prefill(4, 2048, 16));
  for (const auto& [gate, name] :
       {std::pair{KDA_GATE_SOFTPLUS, "softplus"}, std::pair{KDA_GATE_LOG, "log"}}) {
    ProgramRequest request = Prefill(4, 2048, 16);
    request.problem.gate = gate;
    Measure(std::string("mega 4 x 2048, H 16, ") + name, request);
  }
  Measure("mega 1 x 8192, H 24", Prefill(1, 8192, 24));
  Measure("mega 64 x 8, H 24", Prefill(64, 8, 24));
  Measure("mega 1 x 128, H 24", Prefill(1, 128, 24));
}

TEST(TpuDeviceTimes, Decode) {
  KDA_NEEDS_TPU(1);
  if (Rehearsing()) GTEST_SKIP() << "the evaluator has no times";
  Header();
  for (const int64_t sequences : {1, 64, 256}) {
    ProgramRequest request = Prefill(sequences, 1, 24);
    request.family = Family::kDecode;
    request.problem.slots = sequences;
    Measure("decode " + std::to_string(sequences) + ", H 24", request);
  }
}

TEST(TpuDeviceTimes, Ladder) {
  KDA_NEEDS_TPU(1);
  if (Rehearsing()) GTEST_SKIP() << "the evaluator has no times";
  Header();
  const char* name = nullptr;
  uint32_t switches = 0;
  for (int32_t i = 0; kda_rung(i, &name, &switches) != 0; ++i) {
    ProgramRequest request = Prefill(4, 2048, 16);
    request.family = Family::kLadder;
    request.ladder.switches = switches;
    Measure(std::string(name) + " 4 x 2048, H 16", request);
  }
}

}  // namespace
}  // namespace kda::test
