// Group E: workspace, allocations, fork, and what a run leaves alone.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>
#include <cstdlib>
#include <new>

#include "core/float_mode.h"
#include "support/engine_test.h"
#include "support/goldens.h"

// Every allocation of this program, the library's among them. Counted, or made to fail, on demand.
namespace {
thread_local int64_t allocations = 0;
thread_local int64_t fail_at = -1;  // the allocation to fail, counted from when it was set

void* Allocate(size_t size) {
  ++allocations;
  if (fail_at >= 0 && fail_at-- == 0) throw std::bad_alloc();
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
}  // namespace
void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace kda::test {
namespace {

KDA_CASE(CaseE06);
KDA_CASE(CaseE09);
KDA_CASE(CaseE15);

TEST_P(CaseE06, AfterFork) {
  const Case c = Standard(Std(96, 100, 8));
  Runner runner(c, Base().Threads(4));
  const Result before = runner.Run(kPoisonNan);  // the pool's threads exist now, and only here
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    runner.Poison(kPoisonNan);
    const bool ok = runner.RunOnly().ok() && runner.Read().o == before.o;
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(SameBits(before, runner.Run(kPoisonNan)));
}

TEST_P(CaseE09, RunAllocatesNothing) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case c = StdB();
    c.mode = mode;
    c.checkpoint_every = 10;
    for (const Config& config : ConfigsFor(mode)) {
      Runner runner(c, config);
      ASSERT_TRUE(runner.status().ok());
      runner.Poison(kPoisonNan);
      const Args args = runner.MakeArgs();
      kda_error error;
      allocations = 0;
      const kda_status status = kda_run(runner.plan().get(), &args, &error);
      EXPECT_EQ(allocations, 0) << config.Name();
      EXPECT_EQ(status, KDA_OK);
    }
  }
}

// Each allocation in turn fails while the plan is made: a status every time, a plan in the end.
TEST_P(CaseE09, OutOfMemoryIsAStatus) {
  Case c = StdB();
  c.checkpoint_every = 10;
  for (const Config& config : Configs()) {
    Runner runner(c, config);
    Options options;
    options.backend = config.backend;
    options.isa = IsCpu() ? config.isa : KDA_ISA_AUTO;
    options.solver = config.solver;
    options.switches_off = config.switches_off;
    options.threads = 2;
    kda_status status = KDA_ERROR_INTERNAL;
    for (int64_t i = 0; i < 1000 && status != KDA_OK; ++i) {
      kda_plan* plan = nullptr;
      kda_error error = {};
      fail_at = i;
      status = kda_plan_create(&runner.problem(), &options, &plan, &error);
      fail_at = -1;
      if (status != KDA_OK) {
        ASSERT_EQ(status, KDA_ERROR_OUT_OF_MEMORY) << error.message;
        ASSERT_EQ(plan, nullptr);
        ASSERT_NE(error.message[0], '\0');
      }
      kda_plan_destroy(plan);
    }
    EXPECT_EQ(status, KDA_OK) << config.Name();
  }
}

// The caller's floating-point environment is its own, and changes no bit.
TEST_P(CaseE09, FloatingPointEnvironment) {
  const Case c = StdB();
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case run = c;
    run.mode = mode;
    Runner runner(run, Base());
    const Result expected = runner.Run(kPoisonNan);
    runner.Poison(kPoisonNan);
    using Control = core::FloatControl;
    const Control::Word saved = Control::Read();
    Control::Write((saved | Control::kFlush) & ~Control::kFlags);
    const Control::Word set = Control::Read();
    runner.RunOnly();
    const Control::Word after = Control::Read();
    Control::Write(saved);
    EXPECT_EQ(after & ~Control::kFlags, set);
    EXPECT_TRUE(!IsCpu() || SameBits(expected, runner.Read()));
    if (!IsCpu()) continue;
    runner.Poison(kPoisonNan);
    std::fesetround(FE_UPWARD);
    runner.RunOnly();
    const int round = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(round, FE_UPWARD);
    EXPECT_TRUE(SameBits(expected, runner.Read()));
  }
}

// Used to its last byte at most: bands behind it are checked after every run; and never more of it
// than the problem needs.
TEST_P(CaseE15, WorkspaceGrowsWithTokensNotWithTheLongestTimesTheNumber) {
  const auto size = [&](const std::vector<int64_t>& lengths, const Config& config) {
    const std::vector<int64_t> cu = Offsets(lengths);
    Case c;  // shapes only
    c.T = cu.back();
    c.H = c.HV = 2;
    c.cu = cu;
    c.q.resize(static_cast<size_t>(c.T * 256));
    c.k = c.v = c.g = c.q;
    c.beta.resize(static_cast<size_t>(c.T * 2));
    Runner runner(c, config);
    EXPECT_TRUE(runner.status().ok()) << runner.status().message();
    return static_cast<double>(runner.plan().Info().workspace_size);
  };
  std::vector<int64_t> one_long(63, 1);
  one_long.push_back(2048);
  for (const Config& config : Configs()) {
    SCOPED_TRACE(config.Name());
    // A sequence of one token costs at most a chunk: without fuse each chunk keeps its state.
    EXPECT_LE(size(one_long, config), size({2048 + 63 * 64}, config));
    EXPECT_LE(size(std::vector<int64_t>(128, 1), config), size({128 * 64}, config));
    // A pass that keeps nothing between chunks needs the same for any length.
    if (!IsCpu() || (config.switches_off & KDA_SWITCH_FUSE) == 0) {
      EXPECT_EQ(size({4096}, config), size({64}, config));
    }
  }
}

// 131,072 tokens of 16 heads on one thread, in the pass that is the default.
TEST_P(CaseE15, LargeProblemsNeedLittle) {
  Problem problem;
  const int64_t T = 131072, H = 16;
  problem.gate = KDA_GATE_LOG;
  problem.q = problem.k = problem.v = problem.g = Dense(KDA_BF16, {1, T, H, 128});
  problem.o = problem.q;
  problem.beta = Dense(KDA_BF16, {1, T, H});
  problem.final_state = Dense(KDA_F32, {1, H, 128, 128});
  Options options;
  options.backend = Base().backend;
  options.isa = IsCpu() ? Base().isa : KDA_ISA_AUTO;
  options.threads = 1;
  kda::Plan plan;
  ASSERT_TRUE(kda::Plan::Create(problem, options, &plan).ok());
  EXPECT_LE(plan.Info().workspace_size, size_t{4} << 20);
}

// Many plans and runs leave the process as large as it was.
TEST_P(CaseE15, RepeatedCallsDoNotGrowTheProcess) {
#if defined(KDA_SANITIZED)
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
  const auto pages = [] {
    FILE* file = std::fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    const int read = std::fscanf(file, "%ld %ld", &total, &resident);
    std::fclose(file);
    return read == 2 ? resident : -1;
  };
  const Case c = StdB();
  const auto work = [&] {
    for (int i = 0; i < 50; ++i) {
      Runner runner(c, Base().Threads(2));
      runner.RunOnly();
    }
  };
  work();
  const long before = pages();
  work();
  EXPECT_LE(pages(), before + 256);  // a MiB
}

}  // namespace
}  // namespace kda::test
