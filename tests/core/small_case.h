// A small valid problem with its buffers, to be changed in one place by a test.
#ifndef KDA_TESTS_CORE_SMALL_CASE_H_
#define KDA_TESTS_CORE_SMALL_CASE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kda/kda.hpp"

namespace kda::test {

// Prefill, B = 1, T = 6, H = 2, HV = 4, K = 4, V = 3, everything fp32 and dense; bounded gate with
// A_log and dt_bias, both states.
struct SmallCase {
  static constexpr int64_t kT = 6, kH = 2, kHv = 4, kK = 4, kV = 3;

  SmallCase();
  SmallCase(const SmallCase&) = delete;  // `problem` points into the vectors
  SmallCase& operator=(const SmallCase&) = delete;

  Args MakeArgs();

  Problem problem;
  Options options;
  std::vector<int64_t> cu_seqlens, slots, has_initial, checkpoint_offsets, checkpoint_tokens;
  std::vector<float> q, k, v, g, beta, A_log, dt_bias, initial_state;
  std::vector<float> o, final_state, checkpoints;  // full of kUntouched, with room to spare
};
inline constexpr float kUntouched = -12345.0f;

// One way to make the small case wrong.
struct Refusal {
  const char* name;
  std::function<void(SmallCase*)> change;
  kda_status status;
  const char* argument;
  std::vector<std::string> says;  // each must be in the message: the value, and what is allowed
};

// The plan is refused as described, and the plan pointer left alone.
void ExpectRefused(const Refusal& refusal);
void ExpectRefused(const std::vector<Refusal>& refusals);

// The plan is made; its description, or the message.
std::string ExpectAccepted(SmallCase* small);

// kda_run refuses as described and writes nothing.
void ExpectRunRefused(SmallCase* small, const Plan& plan, const Args& args, kda_status status,
                      const std::string& argument, const std::vector<std::string>& says);

}  // namespace kda::test

#endif  // KDA_TESTS_CORE_SMALL_CASE_H_
