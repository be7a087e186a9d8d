// The process-wide thread pool.
//
// A ParallelRun puts a job, which lives on its caller's stack, on a list and takes indices from it
// itself; workers that are free take indices too. The caller returns when no index is left and no
// worker is still inside the job, so it never waits for a worker to become free: several callers,
// and a task that calls ParallelRun, cannot block each other.
//
// Everything here is constant-initialised and never destroyed: idle workers may outlive main().
#include <pthread.h>
#include <signal.h>

#include <atomic>

#include "core/plan.h"

namespace kda::core {
namespace {

struct Job {
  kda_task task;
  void* argument;
  int32_t count;
  std::atomic<int64_t> next{0};  // first index that nobody has taken; 64 bits: it passes `count`
  int32_t inside = 0;            // workers working on it; guarded by the pool's lock
  bool listed = true;
  Job* previous = nullptr;
  Job* following = nullptr;
  pthread_cond_t left = PTHREAD_COND_INITIALIZER;  // `inside` became 0
};

struct Pool {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t work = PTHREAD_COND_INITIALIZER;  // a job was listed
  Job* first = nullptr;                            // jobs that may have indices left
  Job* last = nullptr;
  int32_t workers = 0;
  int32_t idle = 0;
  bool can_fork = false;  // the fork handlers are in place
};
Pool pool;  // NOLINT: constant-initialised, trivially destroyed

class Lock {
 public:
  Lock() { pthread_mutex_lock(&pool.lock); }
  ~Lock() { pthread_mutex_unlock(&pool.lock); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

void Append(Job* job) {
  job->previous = pool.last;
  (pool.last != nullptr ? pool.last->following : pool.first) = job;
  pool.last = job;
}

void Remove(Job* job) {
  if (!job->listed) return;
  job->listed = false;
  (job->previous != nullptr ? job->previous->following : pool.first) = job->following;
  (job->following != nullptr ? job->following->previous : pool.last) = job->previous;
}

void TakeIndices(Job* job) {
  for (int64_t i = job->next++; i < job->count; i = job->next++) {
    job->task(job->argument, static_cast<int32_t>(i));
  }
}

void* Worker(void*) {
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    while (pool.first == nullptr) {
      ++pool.idle;
      pthread_cond_wait(&pool.work, &pool.lock);
      --pool.idle;
    }
    Job* const job = pool.first;
    ++job->inside;
    pthread_mutex_unlock(&pool.lock);
    TakeIndices(job);
    pthread_mutex_lock(&pool.lock);
    Remove(job);
    if (--job->inside == 0) pthread_cond_signal(&job->left);
  }
  return nullptr;
}

// Around fork() the lock is held, so that the child finds the pool in one piece. The child has none
// of the workers and none of the other threads' jobs.
void BeforeFork() { pthread_mutex_lock(&pool.lock); }
void AfterForkInParent() { pthread_mutex_unlock(&pool.lock); }
void AfterForkInChild() {
  pool.first = pool.last = nullptr;
  pool.workers = pool.idle = 0;
  pthread_cond_init(&pool.work, nullptr);  // it may remember waiters
  pthread_mutex_unlock(&pool.lock);
}

// The caller's signal handlers must not run on our threads.
bool StartWorker() {
  sigset_t all, before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, Worker, nullptr) == 0;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

void EnsureThreads(int32_t threads) {
  const Lock lock;
  if (pool.workers >= threads - 1) return;
  if (!pool.can_fork) {
    pool.can_fork = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
    if (!pool.can_fork) return;
  }
  // Fewer threads than wanted only make a run slower.
  while (pool.workers < threads - 1 && StartWorker()) ++pool.workers;
}

void ParallelRun(int32_t count, kda_task task, void* argument) {
  if (count <= 1) {
    if (count == 1) task(argument, 0);
    return;
  }
  Job job;
  job.task = task;
  job.argument = argument;
  job.count = count;
  {
    const Lock lock;
    Append(&job);
    const int32_t wanted = count - 1 < pool.idle ? count - 1 : pool.idle;
    for (int32_t i = 0; i < wanted; ++i) pthread_cond_signal(&pool.work);
  }
  TakeIndices(&job);
  const Lock lock;
  Remove(&job);
  while (job.inside != 0) pthread_cond_wait(&job.left, &pool.lock);
}

void Execute(const Execution& execution, int32_t count, kda_task task, void* argument) {
  if (execution.executor.run != nullptr) {
    execution.executor.run(execution.executor.context, count, task, argument);
  } else {
    ParallelRun(count, task, argument);
  }
}

}  // namespace kda::core
