// Options: ranges, forcing, fallbacks and what the description says of them.
#include <sched.h>

#include "core/isa.h"
#include "core/plan.h"
#include "small_case.h"

namespace kda::test {
namespace {

kda_plan_info InfoOf(const SmallCase& small, std::string* description = nullptr) {
  Plan plan;
  const Status status = Plan::Create(small.problem, small.options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  if (description != nullptr) *description = plan.Describe();
  return plan.Info();
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Options, Refused) {
  ExpectRefused({
      {"backend",
       [](auto* s) { s->options.backend = 3; },
       KDA_ERROR_ENUM,
       "backend",
       {"is 3", "auto (0), cpu (1), reference (2)"}},
      {"isa",
       [](auto* s) { s->options.isa = -1; },
       KDA_ERROR_ENUM,
       "isa",
       {"is -1",
        "auto (0), baseline (1), avx2 (2), avx512 (3), avx512_bf16 (4), amx (5), neon (6)"}},
      {"solver",
       [](auto* s) { s->options.solver = 4; },
       KDA_ERROR_ENUM,
       "solver",
       {"is 4", "auto (0), substitution (1), block (2), neumann64 (3)"}},
      {"threads",
       [](auto* s) { s->options.threads = 1025; },
       KDA_ERROR_OPTION,
       "threads",
       {"is 1025", "from 0 to 1024"}},
      {"negative threads",
       [](auto* s) { s->options.threads = -1; },
       KDA_ERROR_OPTION,
       "threads",
       {"is -1", "from 0 to 1024"}},
      {"switches",
       [](auto* s) { s->options.switches_off = 0x21; },
       KDA_ERROR_ENUM,
       "switches_off",
       {"0x21", "0x20 is unknown", "0x1f"}},
      {"flags",
       [](auto* s) { s->options.flags = 2; },
       KDA_ERROR_ENUM,
       "options.flags",
       {"0x2", "0x1"}},
      {"solver in decode",
       [](auto* s) {
         s->problem.mode = KDA_DECODE;
         s->options.solver = KDA_SOLVER_BLOCK;
       },
       KDA_ERROR_OPTION,
       "solver",
       {"block", "decode"}},
      {"solver of the reference",
       [](auto* s) {
         s->options.backend = KDA_BACKEND_REFERENCE;
         s->options.solver = KDA_SOLVER_NEUMANN64;
       },
       KDA_ERROR_OPTION,
       "solver",
       {"neumann64", "reference"}},
  });
}

TEST(Options, NullIsTheDefaults) {
  SmallCase small;
  kda_plan* plan = nullptr;
  ASSERT_EQ(kda_plan_create(&small.problem, nullptr, &plan, nullptr), KDA_OK);
  PlanInfo info;
  EXPECT_EQ(kda_plan_get_info(plan, &info), KDA_OK);
  EXPECT_EQ(info.backend, KDA_BACKEND_CPU);
  EXPECT_EQ(info.switches, KDA_SWITCHES_ALL);
  EXPECT_EQ(info.switches_fallback, 0u);
  EXPECT_EQ(info.solver, KDA_SOLVER_BLOCK);
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(info.threads, CPU_COUNT(&set));
  kda_plan_destroy(plan);
}

TEST(Options, Description) {
  SmallCase small;
  small.options.threads = 2;
  small.options.isa = core::Isas().First().info.isa;
  std::string text;
  InfoOf(small, &text);
  EXPECT_EQ(text.rfind(std::string("cpu ") + core::Isas().First().info.name +
                           ", prefill, bounded gate, switches "
                           "safe_gate,fuse,unified_layout,flat_grid,head_block, solver block, "
                           "2 threads",
                       0),
            0u)
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Options, EverySwitchCombination) {
  for (uint32_t off = 0; off <= KDA_SWITCHES_ALL; ++off) {
    SmallCase small;
    small.options.switches_off = off;
    std::string text;
    const kda_plan_info info = InfoOf(small, &text);
    const uint32_t asked = KDA_SWITCHES_ALL & ~off;
    constexpr uint32_t kNeeds = KDA_SWITCH_FUSE | KDA_SWITCH_SAFE_GATE;
    const bool falls_back = (asked & KDA_SWITCH_HEAD_BLOCK) != 0 && (asked & kNeeds) != kNeeds;
    EXPECT_EQ(info.switches_fallback, falls_back ? KDA_SWITCH_HEAD_BLOCK : 0u) << off;
    EXPECT_EQ(info.switches, asked & ~info.switches_fallback) << off;
    EXPECT_EQ(Contains(text, "head_block off: needs"), falls_back) << text;
    EXPECT_EQ(info.solver,
              (asked & KDA_SWITCH_SAFE_GATE) != 0 ? KDA_SOLVER_BLOCK : KDA_SOLVER_SUBSTITUTION);
  }
  SmallCase no_fuse;
  no_fuse.options.switches_off = KDA_SWITCH_FUSE;
  std::string text;
  InfoOf(no_fuse, &text);
  EXPECT_TRUE(Contains(text, "; head_block off: needs fuse")) << text;
}

// Two, but for the busiest thread's sake.
TEST(Options, HeadsPerStep) {
  const struct {
    int64_t sequences, heads;
    int32_t threads, step;
  } rows[] = {{1, 6, 2, 1},  {1, 24, 8, 1}, {1, 10, 2, 1}, {1, 16, 2, 2}, {1, 12, 4, 1},
              {1, 1, 1, 1},  {1, 2, 1, 2},  {1, 2, 2, 1},  {1, 3, 1, 2},  {1, 3, 2, 2},
              {1, 4, 2, 2},  {1, 24, 4, 2}, {2, 6, 2, 2},  {3, 3, 3, 1},  {4, 6, 8, 1},
              {8, 24, 8, 2}, {1, 2, 64, 1}, {64, 1, 2, 1}};
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.sequences) + " of " + std::to_string(row.heads) + " heads, " +
                 std::to_string(row.threads) + " threads");
    SmallCase small;
    small.problem.q = small.problem.k = Dense(KDA_F32, {row.sequences, 6, 1, 4});
    small.problem.v = small.problem.o = Dense(KDA_F32, {row.sequences, 6, row.heads, 3});
    small.problem.g = Dense(KDA_F32, {row.sequences, 6, row.heads, 4});
    small.problem.beta = Dense(KDA_F32, {row.sequences, 6, row.heads});
    small.problem.A_log = Dense(KDA_F32, {row.heads});
    small.problem.dt_bias = Dense(KDA_F32, {row.heads, 4});
    small.problem.initial_state = small.problem.final_state =
        Dense(KDA_F32, {row.sequences, row.heads, 4, 3});
    small.options.threads = row.threads;
    Plan plan;
    const Status status = Plan::Create(small.problem, small.options, &plan);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(plan.get()->heads_per_step, row.step);
    const bool off = row.step == 1;
    EXPECT_EQ(plan.Info().switches_fallback, off ? KDA_SWITCH_HEAD_BLOCK : 0u);
    EXPECT_EQ(Contains(plan.Describe(), "head_block off: "), off) << plan.Describe();
    EXPECT_EQ(Contains(plan.Describe(), ", 2 heads a step"), !off) << plan.Describe();
  }
}

TEST(Options, ForcedSolver) {
  for (int32_t solver : {KDA_SOLVER_SUBSTITUTION, KDA_SOLVER_BLOCK, KDA_SOLVER_NEUMANN64}) {
    SmallCase small;
    small.options.solver = solver;
    std::string text;
    EXPECT_EQ(InfoOf(small, &text).solver, solver);
    EXPECT_TRUE(Contains(text, std::string("solver ") + kda_solver_name(solver))) << text;
  }
}

// Nothing that does not run is reported as running.
TEST(Options, TokenByTokenHasNoSwitches) {
  SmallCase decode, reference;
  decode.problem.mode = KDA_DECODE;
  reference.options.backend = KDA_BACKEND_REFERENCE;
  for (SmallCase* small : {&decode, &reference}) {
    std::string text;
    const kda_plan_info info = InfoOf(*small, &text);
    EXPECT_EQ(info.switches, 0u);
    EXPECT_EQ(info.switches_fallback, KDA_SWITCHES_ALL);
    EXPECT_EQ(info.solver, KDA_SOLVER_AUTO);
    EXPECT_TRUE(Contains(text, "off: token by token")) << text;
    EXPECT_TRUE(Contains(text, "switches none")) << text;
  }
  std::string text;
  EXPECT_EQ(InfoOf(reference, &text).backend, KDA_BACKEND_REFERENCE);
  EXPECT_EQ(text.rfind("reference fp64, prefill, bounded gate", 0), 0u) << text;
}

}  // namespace
}  // namespace kda::test
