// kda_run: pointers, workspace, aliasing (C05, D18), and the rows of `o` outside every sequence.
#include <atomic>
#include <cmath>
#include <thread>

#include "small_case.h"

namespace kda::test {
namespace {

Plan MakePlan(const SmallCase& small) {
  Plan plan;
  const Status status = Plan::Create(small.problem, small.options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

void AskForCheckpoints(SmallCase* small) {
  small->problem.checkpoint_every = 3;
  small->problem.checkpoints = Dense(KDA_F32, {2, 4, 4, 3});
}

TEST(Run, NullPointers) {
  SmallCase small;
  AskForCheckpoints(&small);
  const Plan plan = MakePlan(small);
  const struct {
    const char* name;
    std::function<void(Args*)> drop;
    const char* bytes;
  } rows[] = {
      {"q", [](Args* a) { a->q = nullptr; }, "192 bytes"},
      {"k", [](Args* a) { a->k = nullptr; }, "192 bytes"},
      {"v", [](Args* a) { a->v = nullptr; }, "288 bytes"},
      {"g", [](Args* a) { a->g = nullptr; }, "384 bytes"},
      {"beta", [](Args* a) { a->beta = nullptr; }, "96 bytes"},
      {"A_log", [](Args* a) { a->A_log = nullptr; }, "16 bytes"},
      {"dt_bias", [](Args* a) { a->dt_bias = nullptr; }, "64 bytes"},
      {"initial_state", [](Args* a) { a->initial_state = nullptr; }, "192 bytes"},
      {"o", [](Args* a) { a->o = nullptr; }, "288 bytes"},
      {"final_state", [](Args* a) { a->final_state = nullptr; }, "192 bytes"},
      {"checkpoints", [](Args* a) { a->checkpoints = nullptr; }, "384 bytes"},
  };
  for (const auto& row : rows) {
    Args args = small.MakeArgs();
    row.drop(&args);
    ExpectRunRefused(&small, plan, args, KDA_ERROR_NULL_POINTER, row.name, {"is NULL", row.bytes});
  }
}

template <typename Pointer>
void Move(Pointer* pointer, int64_t bytes) {
  *pointer = const_cast<char*>(static_cast<const char*>(*pointer)) + bytes;
}

TEST(Run, MisalignedPointers) {
  SmallCase small;
  AskForCheckpoints(&small);
  const Plan plan = MakePlan(small);
  const struct {
    const char* name;
    std::function<void(Args*, int64_t)> move;
  } rows[] = {
      {"q", [](Args* a, int64_t n) { Move(&a->q, n); }},
      {"k", [](Args* a, int64_t n) { Move(&a->k, n); }},
      {"v", [](Args* a, int64_t n) { Move(&a->v, n); }},
      {"g", [](Args* a, int64_t n) { Move(&a->g, n); }},
      {"beta", [](Args* a, int64_t n) { Move(&a->beta, n); }},
      {"A_log", [](Args* a, int64_t n) { Move(&a->A_log, n); }},
      {"dt_bias", [](Args* a, int64_t n) { Move(&a->dt_bias, n); }},
      {"initial_state", [](Args* a, int64_t n) { Move(&a->initial_state, n); }},
      {"o", [](Args* a, int64_t n) { Move(&a->o, n); }},
      {"final_state", [](Args* a, int64_t n) { Move(&a->final_state, n); }},
      {"checkpoints", [](Args* a, int64_t n) { Move(&a->checkpoints, n); }},
  };
  for (const auto& row : rows) {
    for (const int64_t bytes : {1, 2, 3}) {
      Args args = small.MakeArgs();
      row.move(&args, bytes);
      ExpectRunRefused(&small, plan, args, KDA_ERROR_ALIGNMENT, row.name,
                       {"address is 0x", "multiple of 4", "size of an element"});
    }
  }
}

// What 2 bytes are aligned to depends on the dtype of the tensor, not on the others.
TEST(Run, AlignmentIsThatOfTheDtype) {
  SmallCase small;
  small.problem.q.dtype = small.problem.k.dtype = KDA_BF16;
  small.problem.final_state.dtype = KDA_BF16;
  const Plan plan = MakePlan(small);
  for (const int64_t bytes : {1, 3}) {
    Args args = small.MakeArgs();
    Move(&args.q, bytes);
    ExpectRunRefused(&small, plan, args, KDA_ERROR_ALIGNMENT, "q", {"multiple of 2"});
    args = small.MakeArgs();
    Move(&args.final_state, bytes);
    ExpectRunRefused(&small, plan, args, KDA_ERROR_ALIGNMENT, "final_state", {"multiple of 2"});
  }
  Args args = small.MakeArgs();
  Move(&args.q, 2);
  Move(&args.final_state, 2);
  const Status status = plan.Run(args);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Run, PointersOfAbsentTensorsAreIgnored) {
  SmallCase small;
  small.problem.A_log.rank = small.problem.dt_bias.rank = 0;
  small.problem.initial_state.rank = small.problem.final_state.rank = 0;
  const Plan plan = MakePlan(small);
  Args args = small.MakeArgs();
  args.A_log = args.dt_bias = args.initial_state = args.o;  // would be aliases
  args.final_state = args.checkpoints = args.o;
  const Status status = plan.Run(args);
  ASSERT_TRUE(status.ok()) << status.message();
  Args bare = small.MakeArgs();
  const std::vector<float> first = small.o;
  bare.A_log = bare.dt_bias = bare.initial_state = nullptr;
  bare.final_state = bare.checkpoints = nullptr;
  ASSERT_TRUE(plan.Run(bare).ok());
  EXPECT_EQ(small.o, first);
  EXPECT_EQ(small.final_state[0], kUntouched);
}

TEST(Run, NullPlanAndArgs) {
  SmallCase small;
  const Plan plan = MakePlan(small);
  const Args args = small.MakeArgs();
  kda_error error = {};
  EXPECT_EQ(kda_run(nullptr, &args, &error), KDA_ERROR_NULL_POINTER);
  EXPECT_STREQ(error.argument, "plan");
  EXPECT_EQ(kda_run(plan.get(), nullptr, &error), KDA_ERROR_NULL_POINTER);
  EXPECT_STREQ(error.argument, "args");
  EXPECT_EQ(kda_run(nullptr, nullptr, nullptr), KDA_ERROR_NULL_POINTER);
  kda_plan* created = nullptr;
  EXPECT_EQ(kda_plan_create(nullptr, nullptr, &created, &error), KDA_ERROR_NULL_POINTER);
  EXPECT_STREQ(error.argument, "problem");
  EXPECT_EQ(kda_plan_create(&small.problem, nullptr, nullptr, &error), KDA_ERROR_NULL_POINTER);
  EXPECT_STREQ(error.argument, "plan");
  PlanInfo info;
  EXPECT_EQ(kda_plan_get_info(nullptr, &info), KDA_ERROR_NULL_POINTER);
  EXPECT_EQ(kda_plan_get_info(plan.get(), nullptr), KDA_ERROR_NULL_POINTER);
  EXPECT_EQ(kda_plan_checkpoint(nullptr, 0, nullptr, nullptr, nullptr), KDA_ERROR_NULL_POINTER);
  EXPECT_STREQ(kda_plan_describe(nullptr), "");
  kda_plan_destroy(nullptr);
}

TEST(Run, Workspace) {
  SmallCase small;
  small.options.flags = KDA_OPTION_CALLER_WORKSPACE;
  const Plan plan = MakePlan(small);
  const size_t size = plan.Info().workspace_size;
  ASSERT_GT(size, 0u);
  std::vector<char> memory(size + 256);
  char* const aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  Args args = small.MakeArgs();
  ExpectRunRefused(&small, plan, args, KDA_ERROR_WORKSPACE, "workspace",
                   {"is NULL", std::to_string(size)});
  args.workspace = aligned;
  for (size_t too_small : {size - 1, size_t{0}}) {
    args.workspace_size = too_small;
    ExpectRunRefused(&small, plan, args, KDA_ERROR_WORKSPACE, "workspace_size",
                     {"is " + std::to_string(too_small), "at least " + std::to_string(size)});
  }
  args.workspace_size = size + 64;
  for (int shift : {1, 32}) {
    args.workspace = aligned + shift;
    ExpectRunRefused(&small, plan, args, KDA_ERROR_WORKSPACE, "workspace", {"multiple of 64"});
  }
  args.workspace = reinterpret_cast<void*>(~uintptr_t{63});
  args.workspace_size = ~size_t{0};
  ExpectRunRefused(&small, plan, args, KDA_ERROR_OVERFLOW, "workspace", {"end of memory"});
  args.workspace = aligned;
  args.workspace_size = size;
  ASSERT_TRUE(plan.Run(args).ok());
  EXPECT_NE(small.o[0], kUntouched);

  // The plan's own gives the same bits.
  SmallCase own;
  ASSERT_TRUE(MakePlan(own).Run(own.MakeArgs()).ok());
  EXPECT_EQ(own.o, small.o);
  EXPECT_EQ(own.final_state, small.final_state);
}

TEST(Run, Aliases) {
  SmallCase small;
  AskForCheckpoints(&small);
  const Plan plan = MakePlan(small);
  const struct {
    std::function<void(Args*)> change;
    const char* argument;
    const char* other;
  } rows[] = {
      {[](Args* a) { a->v = a->o; }, "o", "overlap v"},
      {[](Args* a) { a->q = static_cast<float*>(a->o) + 71; }, "o", "overlap q"},
      {[](Args* a) { a->k = static_cast<float*>(a->o) + 1; }, "o", "overlap k"},
      {[](Args* a) { a->g = static_cast<float*>(a->final_state) + 47; }, "final_state",
       "overlap g"},
      {[](Args* a) { a->beta = a->final_state; }, "final_state", "overlap beta"},
      {[](Args* a) { a->A_log = a->checkpoints; }, "checkpoints", "overlap A_log"},
      {[](Args* a) { a->dt_bias = a->o; }, "o", "overlap dt_bias"},
      {[](Args* a) { a->initial_state = a->o; }, "o", "overlap initial_state"},
      {[](Args* a) { a->final_state = a->o; }, "final_state", "overlap o"},
      {[](Args* a) { a->checkpoints = static_cast<float*>(a->final_state) + 47; }, "checkpoints",
       "overlap final_state"},
      {[](Args* a) { a->initial_state = static_cast<float*>(a->final_state) + 1; }, "final_state",
       "overlap initial_state"},
      {[](Args* a) { a->initial_state = a->checkpoints; }, "checkpoints", "overlap initial_state"},
  };
  for (const auto& row : rows) {
    Args args = small.MakeArgs();
    row.change(&args);
    ExpectRunRefused(&small, plan, args, KDA_ERROR_ALIAS, row.argument, {row.other, "bytes at"});
  }
}

TEST(Run, WorkspaceOverlapsNothing) {
  SmallCase small;
  const Plan plan = MakePlan(small);
  const size_t size = plan.Info().workspace_size;
  std::vector<char> memory(size + 4096);
  Args args = small.MakeArgs();
  args.workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  args.workspace_size = size;
  memcpy(static_cast<char*>(args.workspace) + size - 4, small.q.data(), 4);
  args.q = static_cast<char*>(args.workspace) + size - 4;
  ExpectRunRefused(&small, plan, args, KDA_ERROR_ALIAS, "workspace", {"overlap q"});
  args = small.MakeArgs();
  args.workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  args.workspace_size = size;
  args.o = args.workspace;
  ExpectRunRefused(&small, plan, args, KDA_ERROR_ALIAS, "workspace", {"overlap o"});
}

// Buffers that touch do not overlap.
TEST(Run, NeighboursAreNoAliases) {
  SmallCase small;
  const Plan plan = MakePlan(small);
  Args args = small.MakeArgs();
  ASSERT_TRUE(plan.Run(args).ok());
  const std::vector<float> expected(small.o.begin(), small.o.begin() + 72);
  std::vector<float> memory(72 + 48 + 48, kUntouched);  // o, q, final_state
  std::copy(small.q.begin(), small.q.end(), memory.begin() + 72);
  args.o = memory.data();
  args.q = memory.data() + 72;
  args.final_state = memory.data() + 72 + 48;
  const Status status = plan.Run(args);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), memory.begin()));
}

TEST(Run, InPlaceState) {
  SmallCase apart, in_place;
  ASSERT_TRUE(MakePlan(apart).Run(apart.MakeArgs()).ok());
  Args args = in_place.MakeArgs();
  args.final_state = in_place.initial_state.data();
  const Status status = MakePlan(in_place).Run(args);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(in_place.o, apart.o);
  EXPECT_TRUE(std::equal(in_place.initial_state.begin(), in_place.initial_state.end(),
                         apart.final_state.begin()));
}

TEST(Run, InPlaceStateOfAnotherLayout) {
  SmallCase dtype, stride;
  dtype.problem.final_state.dtype = KDA_BF16;
  stride.problem.final_state.stride[0] = 64;
  stride.problem.final_state.stride[1] = 16;
  stride.problem.final_state.stride[2] = 3;
  stride.problem.final_state.stride[3] = 1;
  stride.initial_state.resize(64);
  for (SmallCase* small : {&dtype, &stride}) {
    const Plan plan = MakePlan(*small);
    Args args = small->MakeArgs();
    args.final_state = small->initial_state.data();
    ExpectRunRefused(small, plan, args, KDA_ERROR_ALIAS, "final_state",
                     {"overlap initial_state", "unless pointer, dtype, shape and strides"});
  }
}

// B05: rows past the last offset become zero, whatever strides `o` has; nothing else is touched.
TEST(Run, RowsOfNoSequenceBecomeZero) {
  const struct { int64_t token, head; } strides[] = {{12, 3}, {20, 5}, {3, 18}, {12, 100}};
  for (kda_backend backend : {KDA_BACKEND_CPU, KDA_BACKEND_REFERENCE}) {
    for (const auto& stride : strides) {
      SmallCase small;
      small.options.backend = backend;
      small.cu_seqlens = {0, 1, 4};
      small.problem.cu_seqlens = Index(small.cu_seqlens);
      small.problem.initial_state.rank = small.problem.final_state.rank = 0;
      small.problem.o.stride[0] = 500;
      small.problem.o.stride[1] = stride.token;
      small.problem.o.stride[2] = stride.head;
      small.problem.o.stride[3] = 1;
      for (size_t i = 4 * 8; i < small.q.size(); ++i) small.q[i] = small.k[i] = NAN;
      ASSERT_TRUE(MakePlan(small).Run(small.MakeArgs()).ok());
      std::vector<bool> belongs(small.o.size(), false);
      for (int64_t t = 0; t < 6; ++t) {
        for (int64_t h = 0; h < 4; ++h) {
          for (int64_t c = 0; c < 3; ++c) {
            const auto i = static_cast<size_t>(t * stride.token + h * stride.head + c);
            belongs[i] = true;
            if (t < 4) {
              EXPECT_NE(small.o[i], kUntouched);
              EXPECT_NE(small.o[i], 0.0f);
            } else {
              EXPECT_EQ(small.o[i], 0.0f) << t;
            }
          }
        }
      }
      for (size_t i = 0; i < small.o.size(); ++i) {
        if (!belongs[i]) {
          EXPECT_EQ(small.o[i], kUntouched) << i;
        }
      }
    }
  }
}

// Many threads on one plan whose workspace is its own: they take turns.
TEST(Run, OnePlanManyThreads) {
  SmallCase small;
  small.options.threads = 3;
  const Plan plan = MakePlan(small);
  ASSERT_TRUE(plan.Run(small.MakeArgs()).ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      std::vector<float> o(1024, kUntouched), final_state(1024, kUntouched);
      for (int repeat = 0; repeat < 50; ++repeat) {
        Args args = small.MakeArgs();
        args.o = o.data();
        args.final_state = final_state.data();
        if (!plan.Run(args).ok() || o != small.o || final_state != small.final_state) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// The executor runs every task, and gets its context.
TEST(Run, Executor) {
  SmallCase own, hooked;
  own.options.threads = hooked.options.threads = 4;
  int64_t tasks = 0;
  hooked.options.executor.context = &tasks;
  hooked.options.executor.run = [](void* context, int32_t count, kda_task task, void* argument) {
    *static_cast<int64_t*>(context) += count;
    for (int32_t i = count - 1; i >= 0; --i) task(argument, i);
  };
  ASSERT_TRUE(MakePlan(own).Run(own.MakeArgs()).ok());
  const Plan plan = MakePlan(hooked);
  ASSERT_TRUE(plan.Run(hooked.MakeArgs()).ok());
  EXPECT_GT(tasks, 0);
  EXPECT_EQ(hooked.o, own.o);
  EXPECT_EQ(hooked.final_state, own.final_state);
  EXPECT_NE(plan.Describe().find("executor"), std::string::npos);
}

}  // namespace
}  // namespace kda::test
