// Group E: the same bits whatever else is in the batch, however many threads, in whatever order.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/split_model.h"
#include "reference/dtypes.h"
#include "support/engine_test.h"
#include "support/goldens.h"
#include "support/parts.h"

namespace kda::test {
namespace {

KDA_CASE(CaseE01);
KDA_CASE(CaseE02);
KDA_CASE(CaseE04);

TEST_P(CaseE01, RunToRun) {
  for (const Config& config : {Base().Threads(3), Base().Off(KDA_SWITCHES_ALL).Threads(3)}) {
    Runner runner(StdB(), config);
    const Result first = runner.Run(kPoisonNan);
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(SameBits(first, runner.Run(kPoisonNan)));
  }
}

TEST_P(CaseE01, AnyNumberOfThreads) {
  std::vector<Case> cases = {StdB(), Standard(Std(91, 200, 5).Packed({0, 0, 3, 120, 200}))};
  cases.push_back(AsDecode(cases.back()));
  for (const Case& c : cases) {
    for (const Config& config : ConfigsFor(c.mode)) {
      const Result serial = RunCase(c, config);
      for (int32_t threads : {2, 3, 5, 8, 13, 0, 100}) {
        EXPECT_TRUE(SameBits(serial, RunCase(c, config.Threads(threads))))
            << config.Name() << " threads " << threads;
      }
    }
  }
}

// Fewer heads than threads: chunks go apart first, then columns of V.
TEST_P(CaseE01, FewerHeadsThanThreads) {
  if (!IsCpu()) GTEST_SKIP() << "the reference has no parts";
  std::vector<Case> cases;
  for (const auto& [k, v] : {std::pair<int64_t, int64_t>{128, 128}, {64, 80}, {100, 32}}) {
    for (const kda_dtype dtype : {KDA_BF16, KDA_F32}) {
      Case c = Standard(Std(92, 260, 1).Dims(k, v).Packed({0, 0, 65, 195, 260}));
      c.dtypes.qk = c.dtypes.v = c.dtypes.o = dtype;
      c.checkpoint_every = 13;
      cases.push_back(c);
      c.qk_l2norm = true;
      c.gate = KDA_GATE_SOFTPLUS;
      c.S0.clear();
      cases.push_back(c);
    }
  }
  // Parts of V may be of any width.
  for (const int64_t v : {1, 24, 40, 100}) {
    Case c = Standard(Std(92, 260, 1).Dims(64, v).Packed({0, 65, 195, 260}));
    c.S0.clear();
    c.want_state = false;
    cases.push_back(c);
  }
  for (const Case& c : cases) {
    const Oracle oracle = Solve(c);
    for (const Config& config : {Base(), Base().Off(KDA_SWITCH_SAFE_GATE)}) {
      const Result serial = RunCase(c, config);
      EXPECT_TRUE(Matches(c, serial, oracle)) << config.Name();
      for (int32_t threads : {5, 8, 13}) {
        const Result result = RunCase(c, config.Threads(threads));
        EXPECT_NE(result.description.find("chunks, then columns"), std::string::npos);
        EXPECT_TRUE(SameBits(serial, result)) << config.Name() << " threads " << threads;
      }
    }
  }
}

// More chunks than are kept at a time; a sequence that ends among the
// first, and one without a token.
TEST_P(CaseE01, FewerHeadsThanThreadsLong) {
  if (!IsCpu()) GTEST_SKIP() << "the reference has no parts";
  for (const kda_dtype dtype : {KDA_BF16, KDA_F32}) {
    for (const int64_t every : {0, 13, 64}) {
      Case c = Standard(Std(93, 1601, 1).Dims(32, 80).Packed({0, 1531, 1531, 1601}));
      c.dtypes.qk = c.dtypes.v = c.dtypes.o = dtype;
      c.checkpoint_every = every;
      const Result serial = RunCase(c, Base());
      EXPECT_TRUE(Matches(c, serial, Solve(c)));
      const Result result = RunCase(c, Base().Threads(4));
      EXPECT_NE(result.description.find("chunks, then columns"), std::string::npos);
      EXPECT_TRUE(SameBits(serial, result)) << "checkpoints every " << every;
    }
  }
}

// Parts of V with slots in a pool, updated in place, a sequence skipped before one that is longer
// than what is kept at a time, and one that starts from zeros.
Case PartsOfAPool(int64_t v = 48, int64_t T = 3470) {
  Case c = Standard(Std(95, T, 1).Dims(32, v).Packed({0, 70, 170, 170, T}));
  c.pool = 4;
  c.slots = {2, -1, 3, 0};
  c.has_initial = {1, 1, 1, 0};
  c.in_place = true;
  return c;
}

TEST_P(CaseE01, PartsWithSkippedSequences) {
  if (!IsCpu()) GTEST_SKIP() << "the reference has no parts";
  const Case c = PartsOfAPool();
  const Result serial = RunCase(c, Base());
  EXPECT_TRUE(Matches(c, serial, Solve(c)));
  for (const int32_t threads : {4, 8}) {
    const Result result = RunCase(c, Base().Threads(threads));
    EXPECT_NE(result.description.find("chunks, then columns"), std::string::npos)
        << result.description;
    EXPECT_TRUE(SameBits(serial, result)) << threads << " threads";
  }
}

// What one thread leaves for another goes through memory where their caches are far from each
// other: here they always are, or become so and cease to be.
TEST_P(CaseE01, PartsWhereCachesAreFar) {
  if (!IsCpu()) GTEST_SKIP() << "the reference has no parts";
  const double measured = cpu::far_nanoseconds;
  for (const int64_t every : {0, 13}) {
    Case c = PartsOfAPool();
    c.checkpoint_every = every;
    const Result serial = RunCase(c, Base());
    EXPECT_TRUE(Matches(c, serial, Solve(c)));
    for (const double limit : {0.0, 45.0}) {
      cpu::far_nanoseconds = limit;
      for (const int32_t threads : {2, 3, 8}) {
        const Result result = RunCase(c, Base().Threads(threads));
        EXPECT_NE(result.description.find("chunks, then columns"), std::string::npos)
            << result.description;
        EXPECT_TRUE(SameBits(serial, result)) << "checkpoints every " << every << ", limit "
                                              << limit << ", " << threads << " threads";
      }
    }
    cpu::far_nanoseconds = measured;
  }
}

// States that parts of V cannot use as they lie: other dtypes, the other order, columns that are no
// multiple of 16; in place and not, with checkpoints and without.
TEST_P(CaseE01, PartsOfAnyState) {
  if (!IsCpu()) GTEST_SKIP() << "the reference has no parts";
  const std::pair<kda_dtype, kda_dtype> dtypes[] = {
      {KDA_F32, KDA_F32}, {KDA_BF16, KDA_BF16}, {KDA_F32, KDA_BF16}, {KDA_BF16, KDA_F32}};
  for (const kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
    for (const auto& [initial, final] : dtypes) {
      for (const int64_t v : {80, 100}) {
        for (const int64_t every : {0, 13}) {
          Case c = PartsOfAPool(v, 700);
          for (double& x : c.S0) x = reference::Round(initial, x);
          c.order = order;
          c.dtypes.initial = initial, c.dtypes.final = final;
          c.dtypes.checkpoints = every == 13 ? final : KDA_F32;
          c.in_place = initial == final;
          c.checkpoint_every = every;
          const Result serial = RunCase(c, Base());
          EXPECT_TRUE(Matches(c, serial, Solve(c)));
          for (int32_t threads = 2; threads <= 7; ++threads) {
            const Result result = RunCase(c, Base().Threads(threads));
            EXPECT_NE(result.description.find("chunks, then columns"), std::string::npos)
                << result.description;
            EXPECT_TRUE(SameBits(serial, result))
                << "order " << order << ", V " << v << ", initial state " << initial << ", final "
                << final << ", checkpoints every " << every << ", " << threads << " threads";
          }
        }
      }
    }
  }
}

// Whole heads where they keep the threads about as busy: what goes apart is more work.
TEST_P(CaseE01, PartsWhereTheyPay) {
  if (!IsCpu()) GTEST_SKIP() << "the reference has no parts";
  const struct {
    int64_t heads;
    std::vector<int64_t> cu_seqlens;
    int32_t threads;
    const char* way;
  } rows[] = {{1, {0, 192}, 2, "chunks, then columns"},
              {4, {0, 192}, 8, "chunks, then columns"},
              {1, {0, 640, 704, 768}, 4, "chunks, then columns"},
              {3, {0, 192}, 4, "one pass"},
              {1, {0, 192, 384, 576}, 4, "one pass"},
              {7, {0, 192}, 8, "one pass"},
              {2, {0, 192}, 2, "one pass"},
              {5, {0, 192}, 4, "chunks, then columns"},  // the fifth by all threads
              {3, {0, 1024}, 2, "chunks, then columns"},
              {5, {0, 1024}, 2, "one pass"},
              {4, {0, 1024}, 2, "one pass"},
              {1, {0, 64, 128, 1152}, 2, "chunks, then columns"},
              {1, {0, 64}, 2, "one pass"}};
  for (const auto& row : rows) {
    const Case c = Standard(Std(94, row.cu_seqlens.back(), row.heads).Packed(row.cu_seqlens));
    const Result result = RunCase(c, Base().Threads(row.threads));
    EXPECT_NE(result.description.find(row.way), std::string::npos)
        << row.heads << " heads, " << row.cu_seqlens.size() - 1 << " sequences, " << row.threads
        << " threads: " << result.description;
    if (row.way == std::string("chunks, then columns")) {
      EXPECT_EQ(result.description.find("heads a step"), std::string::npos) << result.description;
    }
    EXPECT_TRUE(SameBits(RunCase(c, Base()), result));
  }
}

// The caller's own threads, and an order nobody would choose.
struct Backwards {
  static void Run(void*, int32_t count, kda_task task, void* argument) {
    for (int32_t i = count - 1; i >= 0; --i) task(argument, i);
  }
};
struct ThreadPerTask {
  static void Run(void*, int32_t count, kda_task task, void* argument) {
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < count; ++i) threads.emplace_back(task, argument, i);
    for (std::thread& thread : threads) thread.join();
  }
};

struct TwoAtATime {
  static void Run(void*, int32_t count, kda_task task, void* argument) {
    std::atomic<int32_t> next{0};
    const auto work = [&] {
      for (int32_t i = next++; i < count; i = next++) task(argument, i);
    };
    std::thread other(work);
    work();
    other.join();
  }
};

TEST_P(CaseE01, AnyExecutor) {
  for (const Case& c : {Standard(Std(91, 200, 5).Packed({0, 0, 3, 120, 200})), PartsOfAPool()}) {
    for (const Config& config : Configs()) {
      const Result serial = RunCase(c, config);
      for (auto* run : {Backwards::Run, TwoAtATime::Run, ThreadPerTask::Run}) {
        Config other = config.Threads(6);
        other.executor = {nullptr, run};
        EXPECT_TRUE(SameBits(serial, RunCase(c, other))) << config.Name();
      }
    }
  }
}

// Sequence n of `packed` has the bits of `alone`.
void ExpectSame(const Case& c, const Result& packed, int64_t n, const Result& alone) {
  EXPECT_TRUE(SameBits(RowBits(c, packed.o, c.First(n), c.First(n) + c.Length(n)), alone.o.bits));
  EXPECT_TRUE(SameBits(StateBits(c, packed.S, n), alone.S.bits));
}

TEST_P(CaseE02, AloneOrPackedAnywhere) {
  const Case one = Standard(Std(92, 150, 2));
  for (const Config& config : Configs()) {
    const Result alone = RunCase(one, config);
    for (int64_t offset : {0, 1, 17, 63, 64, 1000}) {
      SCOPED_TRACE(config.Name() + " at " + std::to_string(offset));
      std::vector<Case> parts = {Standard(Std(93, offset, 2)), one, Standard(Std(94, 37, 2))};
      parts[0].A_log = one.A_log;  // the gate's parameters are the whole batch's
      parts[0].dt_bias = one.dt_bias;
      const Case packed = Pack(parts);
      ExpectSame(packed, RunCase(packed, config), 1, alone);
    }
  }
}

TEST_P(CaseE02, AnyNumberOfSequences) {
  const Case one = Standard(Std(92, 70, 2));
  for (const Config& config : {Base(), Base().Threads(4), Base().Off(KDA_SWITCHES_ALL)}) {
    const Result alone = RunCase(one, config);
    for (int64_t count : {1, 2, 3, 7, 64}) {
      const Case packed = Pack(std::vector<Case>(static_cast<size_t>(count), one));
      const Result result = RunCase(packed, config);
      for (int64_t n = 0; n < count; ++n) ExpectSame(packed, result, n, alone);
    }
  }
}

TEST_P(CaseE02, HeadsDoNotMeet) {
  const Case all = Standard(Std(95, 80, 16));
  for (const Config& config : Configs()) {
    const Result together = RunCase(all, config);
    for (int64_t head : {0, 7, 15}) {
      Case one = Standard(Std(95, 80, 1));
      for (int64_t t = 0; t < 80; ++t) {
        one.Beta(t, 0) = Case(all).Beta(t, head);
      }
      const auto take = [&](const std::vector<double>& from, int64_t width) {
        std::vector<double> out;
        for (int64_t t = 0; t < 80; ++t) {
          const auto at = from.begin() + (t * 16 + head) * width;
          out.insert(out.end(), at, at + width);
        }
        return out;
      };
      one.q = take(all.q, 128);
      one.k = take(all.k, 128);
      one.v = take(all.v, 128);
      one.g = take(all.g, 128);
      one.beta = take(all.beta, 1);
      one.A_log = {all.A_log[static_cast<size_t>(head)]};
      one.dt_bias.assign(all.dt_bias.begin() + head * 128, all.dt_bias.begin() + (head + 1) * 128);
      one.S0.assign(all.S0.begin() + head * 128 * 128, all.S0.begin() + (head + 1) * 128 * 128);
      const Result alone = RunCase(one, config);
      EXPECT_TRUE(SameBits(RowBits(all, together.o, 0, 80, head), alone.o.bits));
      EXPECT_TRUE(SameBits(StateBits(all, together.S, 0, head), alone.S.bits));
    }
  }
}

// A state written in fp32 and read back is the state.
TEST_P(CaseE02, SplitAtMultiplesOfTheChunk) {
  if (!IsCpu()) return;  // the reference carries fp64 between tokens and hands fp32 over
  const Case c = StdF();
  for (const Config& config : Configs()) {
    const Result whole = RunCase(c, config);
    for (int64_t s : {64, 128, 192}) {
      const Result parts = RunInParts(c, {{s, KDA_PREFILL}, {200 - s, KDA_PREFILL}}, config);
      EXPECT_TRUE(SameBits(whole.o.bits, parts.o.bits)) << config.Name() << " at " << s;
      EXPECT_TRUE(SameBits(whole.S.bits, parts.S.bits)) << config.Name() << " at " << s;
    }
  }
}

// One plan, many threads, each with its own outputs and workspace.
TEST_P(CaseE04, OnePlanFromManyThreads) {
  const int kThreads = 8, calls = FastTests() ? 20 : 200;
  const std::pair<Case, Config> rows[] = {
      {StdB(), Base()},
      {StdB(), Base().Threads(3)},
      {Standard(Std(96, 300, 1).Dims(32, 48)), Base().Threads(4)}};
  for (const auto& [c, config] : rows) {
    std::vector<std::unique_ptr<Runner>> runners;
    for (int i = 0; i < kThreads; ++i) runners.push_back(std::make_unique<Runner>(c, config));
    const Result serial = runners[0]->Run(kPoisonNan);
    if (IsCpu() && config.threads > c.HV * c.Sequences()) {
      EXPECT_NE(serial.description.find("chunks, then columns"), std::string::npos);
    }
    const kda::Plan& plan = runners[0]->plan();
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        for (int call = 0; call < calls; ++call) {
          if (!plan.Run(runners[static_cast<size_t>(i)]->MakeArgs()).ok()) ++failures;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
    for (const auto& runner : runners) EXPECT_TRUE(SameBits(serial, runner->Read()));
  }
}

// The plan's own workspace is shared: runs wait for one another.
TEST_P(CaseE04, OneWorkspaceFromManyThreads) {
  const Case c = StdB();
  Runner first(c, Base().Threads(2));
  const Result serial = first.Run(kPoisonNan);
  Options options;
  options.backend = Base().backend;
  options.isa = IsCpu() ? Base().isa : KDA_ISA_AUTO;
  options.threads = 2;
  kda::Plan plan;
  ASSERT_TRUE(kda::Plan::Create(first.problem(), options, &plan).ok());
  std::vector<std::unique_ptr<Runner>> runners;
  for (int i = 0; i < 8; ++i) runners.push_back(std::make_unique<Runner>(c, Base()));
  std::vector<std::thread> threads;
  for (const auto& runner : runners) {
    threads.emplace_back([&] {
      Args args = runner->MakeArgs();
      args.workspace = nullptr;
      args.workspace_size = 0;
      for (int call = 0; call < 20; ++call) plan.Run(args);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& runner : runners) EXPECT_TRUE(SameBits(serial, runner->Read()));
}

// Different shapes at once; plans made and run in all threads, first use included.
TEST_P(CaseE04, DifferentProblemsAtOnce) {
  std::vector<Case> cases = {StdA(), StdB(), StdC(), StdE(),
                             StdG(), StdH(), StdL(), AsDecode(StdK())};
  std::vector<Result> results(cases.size());
  std::vector<std::thread> threads;
  std::atomic<bool> go{false};
  for (size_t i = 0; i < cases.size(); ++i) {
    threads.emplace_back([&, i] {
      while (!go) std::this_thread::yield();
      Runner runner(cases[i], Base().Threads(2));
      runner.Poison(kPoisonNan);
      for (int call = 0; call < (FastTests() ? 10 : 100); ++call) runner.RunOnly();
      results[i] = runner.Read();
    });
  }
  go = true;
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(SameBits(RunCase(cases[i], Base()), results[i])) << i;
  }
}

}  // namespace
}  // namespace kda::test
