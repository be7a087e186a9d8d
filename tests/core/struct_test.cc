// Structs of older and newer callers (E07).
#include <cstddef>
#include <cstring>

#include "small_case.h"

namespace kda::test {
namespace {

// A struct in memory of its own, `size` bytes to the end of a page-like guard of 0xA5.
template <class Struct>
struct Sized {
  Sized(const Struct& full, size_t size, unsigned char fill) : bytes(size + 256, 0xA5) {
    std::memset(bytes.data(), fill, size);
    std::memcpy(bytes.data(), &full, std::min(size, sizeof full));
    std::memcpy(bytes.data(), &size, sizeof size);
  }
  Struct* get() { return reinterpret_cast<Struct*>(bytes.data()); }
  std::vector<unsigned char> bytes;
};

struct Outcome {
  kda_status status;
  kda_error error;
};

Outcome CreateWith(const kda_problem* problem, const kda_options* options) {
  Outcome outcome = {};
  kda_plan* plan = nullptr;
  outcome.status = kda_plan_create(problem, options, &plan, &outcome.error);
  kda_plan_destroy(plan);
  return outcome;
}

// A caller whose header ends early: what it does not know takes its default and is not read.
TEST(Structs, OlderCallers) {
  SmallCase small;
  small.problem.initial_state.rank = small.problem.final_state.rank = 0;
  for (size_t size : {offsetof(kda_problem, cu_seqlens), offsetof(kda_problem, initial_state),
                      offsetof(kda_problem, checkpoints), sizeof(kda_problem)}) {
    Sized<kda_problem> problem(small.problem, size, 0);
    const Outcome outcome = CreateWith(problem.get(), &small.options);
    EXPECT_EQ(outcome.status, KDA_OK) << outcome.error.message;
  }
  Sized<kda_options> options(small.options, offsetof(kda_options, executor), 0);
  const Outcome outcome = CreateWith(&small.problem, options.get());
  EXPECT_EQ(outcome.status, KDA_OK) << outcome.error.message;

  Plan plan;
  ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
  Sized<kda_args> args(small.MakeArgs(), offsetof(kda_args, workspace), 0);
  EXPECT_EQ(kda_run(plan.get(), args.get(), nullptr), KDA_OK);
}

TEST(Structs, NewerCallersWithZeroTail) {
  SmallCase small;
  Sized<kda_problem> problem(small.problem, sizeof(kda_problem) + 64, 0);
  Sized<kda_options> options(small.options, sizeof(kda_options) + 8, 0);
  const Outcome outcome = CreateWith(problem.get(), options.get());
  EXPECT_EQ(outcome.status, KDA_OK) << outcome.error.message;
  Plan plan;
  ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
  Sized<kda_args> args(small.MakeArgs(), sizeof(kda_args) + 16, 0);
  EXPECT_EQ(kda_run(plan.get(), args.get(), nullptr), KDA_OK);
}

void ExpectTailRefused(const Outcome& outcome, const char* argument, size_t byte) {
  EXPECT_EQ(outcome.status, KDA_ERROR_STRUCT_SIZE);
  EXPECT_STREQ(outcome.error.argument, argument);
  EXPECT_NE(std::string(outcome.error.message).find("byte " + std::to_string(byte) + " is 1"),
            std::string::npos)
      << outcome.error.message;
}

TEST(Structs, NewerCallersWithAnUnknownField) {
  SmallCase small;
  for (size_t at : {size_t{0}, size_t{63}}) {
    Sized<kda_problem> problem(small.problem, sizeof(kda_problem) + 64, 0);
    problem.bytes[sizeof(kda_problem) + at] = 1;
    ExpectTailRefused(CreateWith(problem.get(), &small.options), "problem",
                      sizeof(kda_problem) + at);
  }
  Sized<kda_options> options(small.options, sizeof(kda_options) + 8, 0);
  options.bytes[sizeof(kda_options) + 7] = 1;
  ExpectTailRefused(CreateWith(&small.problem, options.get()), "options", sizeof(kda_options) + 7);

  Plan plan;
  ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
  Sized<kda_args> args(small.MakeArgs(), sizeof(kda_args) + 8, 0);
  args.bytes[sizeof(kda_args)] = 1;
  Outcome outcome = {};
  outcome.status = kda_run(plan.get(), args.get(), &outcome.error);
  ExpectTailRefused(outcome, "args", sizeof(kda_args));
  EXPECT_EQ(small.o[0], kUntouched);
}

TEST(Structs, ImpossibleSizes) {
  SmallCase small;
  for (size_t size : {size_t{0}, size_t{8}, offsetof(kda_problem, o), sizeof(kda_problem) + 1,
                      sizeof(kda_problem) - 4, size_t{1} << 20, SIZE_MAX}) {
    Problem problem = small.problem;
    problem.struct_size = size;
    const Outcome outcome = CreateWith(&problem, &small.options);
    EXPECT_EQ(outcome.status, KDA_ERROR_STRUCT_SIZE) << size;
    EXPECT_STREQ(outcome.error.argument, "problem");
    EXPECT_NE(std::string(outcome.error.message).find("is " + std::to_string(size) + ","),
              std::string::npos)
        << outcome.error.message;
  }
  for (size_t size : {size_t{0}, size_t{24}, SIZE_MAX}) {
    Options options = small.options;
    options.struct_size = size;
    EXPECT_EQ(CreateWith(&small.problem, &options).status, KDA_ERROR_STRUCT_SIZE) << size;
    Plan plan;
    ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
    Args args = small.MakeArgs();
    args.struct_size = size;
    ExpectRunRefused(&small, plan, args, KDA_ERROR_STRUCT_SIZE, "args",
                     {"is " + std::to_string(size) + ","});
    PlanInfo info;
    info.struct_size = size;
    info.threads = -7;
    EXPECT_EQ(kda_plan_get_info(plan.get(), &info), KDA_ERROR_STRUCT_SIZE) << size;
    EXPECT_EQ(info.threads, -7);
  }
}

// Info is filled up to the caller's size and not a byte further.
TEST(Structs, InfoOfEverySize) {
  SmallCase small;
  Plan plan;
  ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
  const PlanInfo full = plan.Info();
  for (size_t size : {offsetof(kda_plan_info, workspace_size), offsetof(kda_plan_info, chunks),
                      sizeof(kda_plan_info), sizeof(kda_plan_info) + 64}) {
    Sized<kda_plan_info> info(full, size, 0xEE);
    std::memset(info.bytes.data() + sizeof size, 0xEE, size - sizeof size);
    ASSERT_EQ(kda_plan_get_info(plan.get(), info.get()), KDA_OK) << size;
    const size_t known = std::min(size, sizeof full);
    EXPECT_EQ(info.get()->struct_size, size);
    EXPECT_EQ(std::memcmp(info.bytes.data() + sizeof size,
                          reinterpret_cast<const char*>(&full) + sizeof size, known - sizeof size),
              0);
    for (size_t i = known; i < info.bytes.size(); ++i) {
      EXPECT_EQ(info.bytes[i], i < size ? 0 : 0xA5) << i;
    }
  }
}

}  // namespace
}  // namespace kda::test
