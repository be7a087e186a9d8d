#include "small_case.h"

#include <algorithm>

namespace kda::test {
namespace {

std::vector<float> Values(int64_t count, int seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        0.1f * static_cast<float>((i * 7 + static_cast<size_t>(seed)) % 11) - 0.47f;  // never 0
  }
  return values;
}

void ExpectMessage(const Status& status, kda_status code, const std::string& argument,
                   const std::vector<std::string>& says) {
  EXPECT_EQ(status.code(), code) << kda_status_name(status.code()) << ": " << status.message();
  EXPECT_EQ(status.argument(), argument) << status.message();
  EXPECT_EQ(status.message().rfind(argument + ": ", 0), 0u) << status.message();
  EXPECT_NE(status.message().rfind(argument + ": " + argument + " ", 0), 0u) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  for (const std::string& text : says) {
    EXPECT_NE(status.message().find(text), std::string::npos)
        << "no \"" << text << "\" in: " << status.message();
  }
}

}  // namespace

SmallCase::SmallCase()
    : q(Values(kT * kH * kK, 1)),
      k(Values(kT * kH * kK, 2)),
      v(Values(kT * kHv * kV, 3)),
      g(Values(kT * kHv * kK, 4)),
      beta(Values(kT * kHv, 5)),
      A_log(Values(kHv, 6)),
      dt_bias(Values(kHv * kK, 7)),
      initial_state(Values(kHv * kK * kV, 8)),
      o(1024, kUntouched),
      final_state(1024, kUntouched),
      checkpoints(1024, kUntouched) {
  problem.gate = KDA_GATE_BOUNDED;
  problem.lower_bound = -5;
  problem.q = problem.k = Dense(KDA_F32, {1, kT, kH, kK});
  problem.v = problem.o = Dense(KDA_F32, {1, kT, kHv, kV});
  problem.g = Dense(KDA_F32, {1, kT, kHv, kK});
  problem.beta = Dense(KDA_F32, {1, kT, kHv});
  problem.A_log = Dense(KDA_F32, {kHv});
  problem.dt_bias = Dense(KDA_F32, {kHv, kK});
  problem.initial_state = problem.final_state = Dense(KDA_F32, {1, kHv, kK, kV});
  options.threads = 1;
}

Args SmallCase::MakeArgs() {
  Args args;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.g = g.data();
  args.beta = beta.data();
  args.A_log = A_log.data();
  args.dt_bias = dt_bias.data();
  args.initial_state = initial_state.data();
  args.o = o.data();
  args.final_state = final_state.data();
  args.checkpoints = checkpoints.data();
  return args;
}

void ExpectRefused(const Refusal& refusal) {
  SCOPED_TRACE(refusal.name);
  SmallCase small;
  refusal.change(&small);
  char marker;
  auto* const before = reinterpret_cast<kda_plan*>(&marker);
  kda_plan* plan = before;
  kda_error error = {};
  const kda_status code = kda_plan_create(&small.problem, &small.options, &plan, &error);
  ExpectMessage(Status(code, error), refusal.status, refusal.argument, refusal.says);
  EXPECT_EQ(plan, before);
  if (code == KDA_OK) kda_plan_destroy(plan);
  // The message is optional.
  plan = before;
  EXPECT_EQ(kda_plan_create(&small.problem, &small.options, &plan, nullptr), refusal.status);
  if (plan != before) kda_plan_destroy(plan);
}

void ExpectRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) ExpectRefused(refusal);
}

std::string ExpectAccepted(SmallCase* small) {
  Plan plan;
  const Status status = Plan::Create(small->problem, small->options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return status.ok() ? plan.Describe() : status.message();
}

void ExpectRunRefused(SmallCase* small, const Plan& plan, const Args& args, kda_status status,
                      const std::string& argument, const std::vector<std::string>& says) {
  const std::vector<float> initial_state = small->initial_state;
  ExpectMessage(plan.Run(args), status, argument, says);
  EXPECT_EQ(kda_run(plan.get(), &args, nullptr), status);
  for (const auto* output : {&small->o, &small->final_state, &small->checkpoints}) {
    EXPECT_TRUE(
        std::all_of(output->begin(), output->end(), [](float x) { return x == kUntouched; }));
  }
  EXPECT_EQ(small->initial_state, initial_state);
}

}  // namespace kda::test
