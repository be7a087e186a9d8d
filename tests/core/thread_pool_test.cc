// The process-wide pool: every index once, callers side by side, nesting, fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/plan.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KDA_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define KDA_TSAN 1
#endif

namespace kda::core {
namespace {

#ifdef KDA_TSAN
constexpr int32_t kThreadsOfTheChild = 1;  // it ends a forked child that starts threads
#else
constexpr int32_t kThreadsOfTheChild = 3;
#endif

template <class Task>
void Parallel(int32_t count, const Task& task) {
  ParallelRun(
      count, [](void* argument, int32_t i) { (*static_cast<const Task*>(argument))(i); },
      const_cast<Task*>(&task));
}

// How often each index ran.
std::vector<int> RunCounts(int32_t count) {
  std::vector<std::atomic<int>> ran(static_cast<size_t>(count));
  Parallel(count, [&](int32_t i) { ++ran[static_cast<size_t>(i)]; });
  return std::vector<int>(ran.begin(), ran.end());
}

TEST(ThreadPool, EveryIndexOnce) {
  EnsureThreads(4);
  for (int32_t count : {0, 1, 2, 3, 4, 5, 64, 1000}) {  // more than there are threads, too
    EXPECT_EQ(RunCounts(count), std::vector<int>(static_cast<size_t>(count), 1)) << count;
  }
}

// What the tasks wrote is there when ParallelRun returns.
TEST(ThreadPool, ResultsAreVisible) {
  EnsureThreads(4);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    int values[5] = {};
    Parallel(5, [&](int32_t i) { values[i] = i + repeat; });
    for (int i = 0; i < 5; ++i) ASSERT_EQ(values[i], i + repeat);
  }
}

// Tasks that wait for each other: true when `threads` threads, the caller's among them, ran
// one each at the same time.
bool Meet(int32_t threads) {
  std::mutex lock;
  std::condition_variable all_here;
  int32_t here = 0, on_caller = 0;
  bool met = true;
  const std::thread::id caller = std::this_thread::get_id();
  Parallel(threads, [&](int32_t) {
    std::unique_lock<std::mutex> hold(lock);
    on_caller += std::this_thread::get_id() == caller;
    ++here;
    all_here.notify_all();
    met &= all_here.wait_for(hold, std::chrono::seconds(60), [&] { return here == threads; });
  });
  return met && on_caller == 1;
}

TEST(ThreadPool, WorkersTakePart) {
  EnsureThreads(3);
  EXPECT_TRUE(Meet(3));
}

// The caller, done with its own index, waits for the worker that is not.
TEST(ThreadPool, WaitsForClaimedIndices) {
  EnsureThreads(2);
  std::atomic<int> here{0}, done{0};
  const std::thread::id caller = std::this_thread::get_id();
  Parallel(2, [&](int32_t) {
    ++here;
    while (here != 2) std::this_thread::yield();
    if (std::this_thread::get_id() != caller) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ++done;
  });
  EXPECT_EQ(done, 2);
}

// A caller finishes although every worker is held up elsewhere.
TEST(ThreadPool, FinishesWithoutFreeWorkers) {
  EnsureThreads(4);
  std::mutex lock;
  std::condition_variable changed;
  bool release = false;
  int held = 0;
  std::thread holder([&] {
    Parallel(64, [&](int32_t) {
      std::unique_lock<std::mutex> hold(lock);
      ++held;
      changed.notify_all();
      changed.wait(hold, [&] { return release; });
    });
  });
  {
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [&] { return held >= 4; });  // all workers, or all but the other tests' ones
  }
  EXPECT_EQ(RunCounts(10), std::vector<int>(10, 1));
  {
    const std::lock_guard<std::mutex> hold(lock);
    release = true;
    changed.notify_all();
  }
  holder.join();
  EXPECT_EQ(held, 64);
}

TEST(ThreadPool, ManyCallersAndNesting) {
  EnsureThreads(5);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        Parallel(4, [&](int32_t i) { Parallel(3, [&](int32_t j) { sum += 10 * i + j; }); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 6 * 50 * (3 * 60 + 4 * 3));
}

TEST(ThreadPool, ExecutorReplacesThePool) {
  struct Log {
    void* context;
    int32_t count;
  } log = {};
  Execution execution;
  execution.executor.context = &log;
  execution.executor.run = [](void* context, int32_t count, kda_task task, void* argument) {
    *static_cast<Log*>(context) = {context, count};
    for (int32_t i = 0; i < count; ++i) task(argument, i);
  };
  int ran = 0;
  Execute(
      execution, 7, [](void* argument, int32_t) { ++*static_cast<int*>(argument); }, &ran);
  EXPECT_EQ(ran, 7);
  EXPECT_EQ(log.context, &log);
  EXPECT_EQ(log.count, 7);
}

// Runs `body` in a forked child: true when it returned true and the child ended by itself in time.
// A body that starts threads needs every thread of the parent to have run: AddressSanitizer holds a
// lock while a thread starts, and a child forked meanwhile never gets it.
template <class Body>
bool InChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ThreadPool, AfterFork) {
  EnsureThreads(4);
  ASSERT_TRUE(Meet(4));
  const auto works = [] { return RunCounts(100) == std::vector<int>(100, 1); };
  EXPECT_TRUE(InChild(works));
  EXPECT_TRUE(InChild([&] {
    EnsureThreads(kThreadsOfTheChild);  // its own
    return Meet(kThreadsOfTheChild) && works() && InChild(works);
  }));
  EXPECT_TRUE(works());  // the parent is as before
}

// A job of another thread is the parent's alone: the child's workers must not touch it.
TEST(ThreadPool, JobsStayInTheParent) {
  EnsureThreads(2);
  const pid_t parent = getpid();
  std::atomic<int> started{0};
  std::atomic<bool> release{false};
  std::thread holder([&] {
    Parallel(64, [&](int32_t) {
      if (getpid() != parent) _exit(3);
      ++started;
      while (!release) std::this_thread::yield();
    });
  });
  while (started < 2) std::this_thread::yield();  // the holder and a worker
  EXPECT_TRUE(InChild([] {
    EnsureThreads(kThreadsOfTheChild);
    return Meet(kThreadsOfTheChild);
  }));
  release = true;
  holder.join();
  EXPECT_EQ(started, 64);
}

TEST(ThreadPool, ForkWhileOthersRun) {
  EnsureThreads(4);
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      while (!stop) Parallel(8, [](int32_t) {});
    });
  }
  int good = 0;
  for (int i = 0; i < 20; ++i) {
    // No allocation in the child: another thread may hold the allocator's lock in some C libraries.
    good += InChild([] {
      std::atomic<int> ran{0};
      Parallel(16, [&](int32_t) { ++ran; });
      return ran == 16;
    });
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(good, 20);
}

}  // namespace
}  // namespace kda::core
