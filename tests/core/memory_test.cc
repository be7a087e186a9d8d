// Out of memory at each allocation of kda_plan_create gives a status and leaks nothing (E09); and
// kda_run allocates nothing at all.
#include <cstdlib>
#include <new>

#include "small_case.h"

namespace {

// Counts of this thread, while `watching`.
thread_local bool watching = false;
thread_local int64_t allocations = 0;
thread_local int64_t live = 0;
thread_local int64_t fail_at = -1;

void* Allocate(std::size_t size) {
  if (watching && allocations++ == fail_at) throw std::bad_alloc();
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  if (watching) ++live;
  return memory;
}

void Free(void* memory) {
  if (watching && memory != nullptr) --live;
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { Free(memory); }

namespace kda::test {
namespace {

// A problem that needs every list of a plan.
void Enlarge(SmallCase* s) {
  s->cu_seqlens = {0, 2, 2, 6};
  s->slots = {2, -1, 0};
  s->has_initial = {1, 1, 0};
  s->checkpoint_offsets = {0, 1, 1, 3};
  s->checkpoint_tokens = {1, 2, 4};
  s->problem.cu_seqlens = Index(s->cu_seqlens);
  s->problem.slots = Index(s->slots);
  s->problem.has_initial = Index(s->has_initial);
  s->problem.checkpoint_offsets = Index(s->checkpoint_offsets);
  s->problem.checkpoint_tokens = Index(s->checkpoint_tokens);
  s->problem.checkpoints = Dense(KDA_F32, {3, 4, 4, 3});
  s->problem.initial_state.shape[0] = s->problem.final_state.shape[0] = 3;
  s->initial_state.resize(3 * 48, 0.5f);
  s->options.switches_off = KDA_SWITCH_FUSE;
}

int64_t AllocationsToCreate(const SmallCase& small) {
  kda_plan* plan = nullptr;
  allocations = 0;
  fail_at = -1;
  watching = true;
  const kda_status status = kda_plan_create(&small.problem, &small.options, &plan, nullptr);
  watching = false;
  EXPECT_EQ(status, KDA_OK);
  kda_plan_destroy(plan);
  return allocations;
}

void FailEachAllocation(const SmallCase& small) {
  const int64_t total = AllocationsToCreate(small);
  ASSERT_GT(total, 5);
  for (int64_t n = 0; n < total; ++n) {
    kda_plan* plan = nullptr;
    kda_error error = {};
    allocations = live = 0;
    fail_at = n;
    watching = true;
    const kda_status status = kda_plan_create(&small.problem, &small.options, &plan, &error);
    watching = false;
    EXPECT_EQ(status, KDA_ERROR_OUT_OF_MEMORY) << n << " of " << total << ": " << error.message;
    EXPECT_EQ(plan, nullptr) << n;
    EXPECT_EQ(live, 0) << n;
  }
  fail_at = -1;
}

TEST(Memory, EachAllocationFails) {
  for (kda_backend backend : {KDA_BACKEND_CPU, KDA_BACKEND_REFERENCE}) {
    for (int32_t threads : {1, 2}) {
      SmallCase small;
      Enlarge(&small);
      small.options.backend = backend;
      small.options.threads = threads;
      FailEachAllocation(small);
    }
  }
}

TEST(Memory, CreateAndDestroyBalance) {
  SmallCase small;
  Enlarge(&small);
  live = 0;
  watching = true;
  kda_plan* plan = nullptr;
  const kda_status status = kda_plan_create(&small.problem, &small.options, &plan, nullptr);
  kda_plan_destroy(plan);
  watching = false;
  EXPECT_EQ(status, KDA_OK);
  EXPECT_EQ(live, 0);
}

TEST(Memory, RunAllocatesNothing) {
  for (kda_backend backend : {KDA_BACKEND_CPU, KDA_BACKEND_REFERENCE}) {
    for (int32_t mode : {KDA_PREFILL, KDA_DECODE}) {
      for (uint32_t off : {0u, KDA_SWITCH_FUSE, KDA_SWITCHES_ALL}) {
        SmallCase small;
        Enlarge(&small);
        small.problem.mode = mode;
        small.options.backend = backend;
        small.options.switches_off = off;
        small.options.threads = 2;
        Plan plan;
        ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
        const Args args = small.MakeArgs();
        allocations = 0;
        watching = true;
        const kda_status status = kda_run(plan.get(), &args, nullptr);
        watching = false;
        EXPECT_EQ(status, KDA_OK);
        EXPECT_EQ(allocations, 0);
      }
    }
  }
}

}  // namespace
}  // namespace kda::test
