// The TPU of this machine, for tests: opened once; tests are skipped, saying
// why, where there is none.
#ifndef KDA_TESTS_TPU_DEVICE_TPU_H_
#define KDA_TESTS_TPU_DEVICE_TPU_H_

#include <gtest/gtest.h>

#include <string>

#include "tpu/hlo/evaluator.h"
#include "tpu/hlo/module.h"
#include "tpu/pjrt/execute.h"

namespace kda::test {

bool Rehearsing();

// Null where there is none; `why` says so in one line. KDA_PJRT_PLUGIN of the environment names
// another plugin of PJRT: tests without kernels run on any device. With KDA_REHEARSE=1 the
// evaluator stands in for four chips, so that the tests themselves can be tested; no times then.
tpu::Device* TpuDevice(std::string* why);

// Outputs by name; fails the test, with the reason, if it does not run.
tpu::hlo::Arrays RunOnTpu(const tpu::hlo::Module& module, const tpu::hlo::Arrays& inputs);

// Empty if programs with kernels run here on that many chips.
std::string WhyNoTpu(int chips);

#define KDA_NEEDS_TPU(chips) \
  if (const std::string why = ::kda::test::WhyNoTpu(chips); !why.empty()) GTEST_SKIP() << why

}  // namespace kda::test

#endif  // KDA_TESTS_TPU_DEVICE_TPU_H_
