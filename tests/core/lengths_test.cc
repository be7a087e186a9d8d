// cu_seqlens, batches, empty problems, checkpoints (B02, B07, B08, B09, C12).
#include "small_case.h"

namespace kda::test {
namespace {

void SetCu(SmallCase* s, std::vector<int64_t> cu) {
  s->cu_seqlens = std::move(cu);
  s->problem.cu_seqlens = Index(s->cu_seqlens);
  const auto n = static_cast<int64_t>(s->cu_seqlens.size()) - 1;
  if (n >= 0) s->problem.initial_state.shape[0] = s->problem.final_state.shape[0] = n;
}

void SetBatchAndTokens(SmallCase* s, int64_t b, int64_t t) {
  for (kda_tensor* x : {&s->problem.q, &s->problem.k, &s->problem.v, &s->problem.g, &s->problem.o,
                        &s->problem.beta}) {
    x->shape[0] = b;
    x->shape[1] = t;
  }
  s->problem.initial_state.shape[0] = s->problem.final_state.shape[0] = b;
}

TEST(Lengths, BadCuSeqlens) {
  static const float kFloats[] = {0, 6};
  ExpectRefused({
      {"decreasing",
       [](auto* s) {
         SetCu(s, {0, 6, 4});
       },
       KDA_ERROR_CU_SEQLENS,
       "cu_seqlens",
       {"[2] is 4", "[1], 6"}},
      {"first not 0",
       [](auto* s) {
         SetCu(s, {1, 6});
       },
       KDA_ERROR_CU_SEQLENS,
       "cu_seqlens",
       {"[0] is 1", "must be 0"}},
      {"past T",
       [](auto* s) {
         SetCu(s, {0, 7});
       },
       KDA_ERROR_CU_SEQLENS,
       "cu_seqlens",
       {"[1] is 7", "at most 6"}},
      {"negative",
       [](auto* s) {
         SetCu(s, {0, -1, 6});
       },
       KDA_ERROR_CU_SEQLENS,
       "cu_seqlens",
       {"[1] is -1"}},
      {"negative first",
       [](auto* s) {
         SetCu(s, {-1, 6});
       },
       KDA_ERROR_CU_SEQLENS,
       "cu_seqlens",
       {"[0] is -1", "must be 0"}},
      {"far past T",
       [](auto* s) {
         SetCu(s, {0, INT64_MAX});
       },
       KDA_ERROR_CU_SEQLENS,
       "cu_seqlens",
       {"9223372036854775807"}},
      {"empty", [](auto* s) { SetCu(s, {}); }, KDA_ERROR_CU_SEQLENS, "cu_seqlens", {"count is 0"}},
      {"floats",
       [](auto* s) { s->problem.cu_seqlens = kda_index_of(kFloats, KDA_F32, 2); },
       KDA_ERROR_DTYPE,
       "cu_seqlens",
       {"dtype is 1 (f32)", "i32 or i64"}},
      {"unknown dtype",
       [](auto* s) {
         s->problem.cu_seqlens = kda_index_of(kFloats, KDA_F32, 2);
         s->problem.cu_seqlens.dtype = 99;
       },
       KDA_ERROR_DTYPE,
       "cu_seqlens",
       {"dtype is 99 (unknown)"}},
      {"null with N > 1",
       [](auto* s) { s->problem.cu_seqlens.count = 3; },
       KDA_ERROR_NULL_POINTER,
       "cu_seqlens",
       {"data is NULL", "count is 3"}},
      {"negative count",
       [](auto* s) {
         SetCu(s, {0, 6});
         s->problem.cu_seqlens.count = -2;
       },
       KDA_ERROR_SHAPE,
       "cu_seqlens",
       {"count is -2"}},
      {"negative stride",
       [](auto* s) {
         SetCu(s, {0, 6});
         s->problem.cu_seqlens.stride = -1;
       },
       KDA_ERROR_STRIDE,
       "cu_seqlens",
       {"stride is -1"}},
      {"stride past 2^63",
       [](auto* s) {
         SetCu(s, {0, 6});
         s->problem.cu_seqlens.stride = INT64_MAX / 4;
       },
       KDA_ERROR_OVERFLOW,
       "cu_seqlens",
       {"2305843009213693951"}},
      {"reserved",
       [](auto* s) {
         SetCu(s, {0, 6});
         s->problem.cu_seqlens.reserved = 1;
       },
       KDA_ERROR_ENUM,
       "cu_seqlens",
       {"reserved is 1"}},
      {"with B = 2",
       [](auto* s) {
         SetBatchAndTokens(s, 2, 6);
         SetCu(s, {0, 6});
       },
       KDA_ERROR_SHAPE,
       "cu_seqlens",
       {"B = 2", "B must be 1"}},
      {"N of initial_state",
       [](auto* s) {
         SetCu(s, {0, 3, 6});
         s->problem.initial_state.shape[0] = 3;
       },
       KDA_ERROR_SHAPE,
       "initial_state",
       {"(N) is 3", "must be 2", "cu_seqlens"}},
      {"N of final_state",
       [](auto* s) {
         SetCu(s, {0, 3, 6});
         s->problem.final_state.shape[0] = 1;
       },
       KDA_ERROR_SHAPE,
       "final_state",
       {"(N) is 1", "must be 2", "cu_seqlens"}},
  });
}

kda_plan_info InfoOf(const SmallCase& small) {
  Plan plan;
  const Status status = Plan::Create(small.problem, small.options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan.Info();
}

// B08: int32, int64 and every second element give the same sequences, and the same bits.
TEST(Lengths, KindsOfCuSeqlens) {
  static const int32_t kSpread32[] = {0, 99, 3, 99, 5};
  static const int64_t kSpread64[] = {0, 99, 3, 99, 5};
  static const int32_t kDense32[] = {0, 3, 5};
  static const int64_t kDense64[] = {0, 3, 5};
  kda_index spread32 = kda_index_of(kSpread32, KDA_I32, 3);
  kda_index spread64 = kda_index_of(kSpread64, KDA_I64, 3);
  spread32.stride = spread64.stride = 2;
  char shifted[1 + sizeof kDense64];
  memcpy(shifted + 1, kDense64, sizeof kDense64);
  std::vector<float> first_o;
  for (const kda_index& index :
       {kda_index_of(kDense32, KDA_I32, 3), kda_index_of(kDense64, KDA_I64, 3), spread32, spread64,
        kda_index_of(shifted + 1, KDA_I64, 3)}) {
    SmallCase small;
    SetCu(&small, {0, 3, 5});
    small.initial_state.resize(2 * 48, 0.25f);
    small.problem.cu_seqlens = index;
    Plan plan;
    ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
    EXPECT_EQ(plan.Info().sequences, 2);
    EXPECT_EQ(plan.Info().tokens, 5);
    ASSERT_TRUE(plan.Run(small.MakeArgs()).ok());
    if (first_o.empty()) first_o = small.o;
    EXPECT_EQ(small.o, first_o);
  }
}

// B02: nothing at all is a problem like any other.
TEST(Lengths, EmptyProblems) {
  for (const std::vector<int64_t>& cu :
       {std::vector<int64_t>{0}, std::vector<int64_t>{0, 0}, std::vector<int64_t>{0, 0, 0}}) {
    SmallCase small;
    SetBatchAndTokens(&small, 1, 0);
    SetCu(&small, cu);
    small.initial_state.resize(2 * 48, 0.25f);
    const size_t n = cu.size() - 1;
    Plan plan;
    const Status status = Plan::Create(small.problem, small.options, &plan);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(plan.Info().sequences, static_cast<int64_t>(n));
    EXPECT_EQ(plan.Info().tokens, 0);
    EXPECT_EQ(plan.Info().chunks, 0);
    Args args = small.MakeArgs();
    args.q = args.k = args.v = args.g = args.beta = args.o = nullptr;  // as torch has it
    const Status run = plan.Run(args);
    ASSERT_TRUE(run.ok()) << run.message();
    const auto end = static_cast<std::ptrdiff_t>(n * 48);
    EXPECT_TRUE(std::equal(small.initial_state.begin(), small.initial_state.begin() + end,
                           small.final_state.begin()));
    EXPECT_EQ(small.final_state[n * 48], kUntouched);
  }
  SmallCase no_batch;
  SetBatchAndTokens(&no_batch, 0, 6);
  EXPECT_EQ(InfoOf(no_batch).sequences, 0);
}

TEST(Lengths, ChunksThatExist) {
  SmallCase small;
  SetBatchAndTokens(&small, 1, 400);
  SetCu(&small, {0, 0, 64, 65, 65, 195, 360});
  const kda_plan_info info = InfoOf(small);
  EXPECT_EQ(info.sequences, 6);
  EXPECT_EQ(info.tokens, 360);
  EXPECT_EQ(info.chunks, 0 + 1 + 1 + 0 + 3 + 3);
}

TEST(Lengths, Batch) {
  SmallCase small;
  SetBatchAndTokens(&small, 3, 65);
  const kda_plan_info info = InfoOf(small);
  EXPECT_EQ(info.sequences, 3);
  EXPECT_EQ(info.tokens, 195);
  EXPECT_EQ(info.chunks, 6);
  ExpectRefused({{"states of another B",
                  [](auto* s) {
                    SetBatchAndTokens(s, 3, 5);
                    s->problem.initial_state.shape[0] = 1;
                  },
                  KDA_ERROR_SHAPE,
                  "initial_state",
                  {"(N) is 1", "must be 3", "q (B)"}}});
}

void SetList(SmallCase* s, std::vector<int64_t> offsets, std::vector<int64_t> tokens) {
  s->checkpoint_offsets = std::move(offsets);
  s->checkpoint_tokens = std::move(tokens);
  s->problem.checkpoint_offsets = Index(s->checkpoint_offsets);
  s->problem.checkpoint_tokens = Index(s->checkpoint_tokens);
  s->problem.checkpoints =
      Dense(KDA_F32, {static_cast<int64_t>(s->checkpoint_tokens.size()), 4, 4, 3});
}

TEST(Checkpoints, Refused) {
  ExpectRefused({
      {"both forms",
       [](auto* s) {
         SetList(s, {0, 1}, {2});
         s->problem.checkpoint_every = 2;
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_every",
       {"is 2", "must be 0"}},
      {"negative every",
       [](auto* s) { s->problem.checkpoint_every = -3; },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_every",
       {"is -3", "from 0"}},
      {"no tensor",
       [](auto* s) { s->problem.checkpoint_every = 2; },
       KDA_ERROR_CHECKPOINT,
       "checkpoints",
       {"rank is 0", "must be 4"}},
      {"tensor alone",
       [](auto* s) {
         s->problem.checkpoints = Dense(KDA_F32, {1, 4, 4, 3});
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoints",
       {"rank is 4", "must be 0"}},
      {"C",
       [](auto* s) {
         SetList(s, {0, 2}, {2, 4});
         s->problem.checkpoints.shape[0] = 3;
       },
       KDA_ERROR_SHAPE,
       "checkpoints",
       {"(C) is 3", "must be 2", "checkpoint_tokens"}},
      {"C of every",
       [](auto* s) {
         s->problem.checkpoint_every = 2;
         s->problem.checkpoints = Dense(KDA_F32, {2, 4, 4, 3});
       },
       KDA_ERROR_SHAPE,
       "checkpoints",
       {"(C) is 2", "must be 3", "checkpoint_every"}},
      {"dtype",
       [](auto* s) {
         SetList(s, {0, 1}, {2});
         s->problem.checkpoints.dtype = KDA_F16;
       },
       KDA_ERROR_DTYPE,
       "checkpoints",
       {"f16", "f32, bf16"}},
      {"tokens alone",
       [](auto* s) {
         SetList(s, {0, 1}, {2});
         s->problem.checkpoint_offsets = {};
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_offsets",
       {"absent", "checkpoint_tokens"}},
      {"offsets alone",
       [](auto* s) {
         SetList(s, {0, 1}, {2});
         s->problem.checkpoint_tokens = {};
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_tokens",
       {"absent", "checkpoint_offsets"}},
      {"count of offsets",
       [](auto* s) {
         SetList(s, {0, 1, 1}, {2});
       },
       KDA_ERROR_SHAPE,
       "checkpoint_offsets",
       {"count is 3", "must be 2"}},
      {"first offset",
       [](auto* s) {
         SetList(s, {1, 1}, {2});
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_offsets",
       {"[0] is 1", "must be 0"}},
      {"offset past the tokens",
       [](auto* s) {
         SetList(s, {0, 2}, {2});
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_offsets",
       {"[1] is 2", "at most 1"}},
      {"tokens left over",
       [](auto* s) {
         SetList(s, {0, 1}, {2, 3});
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_offsets",
       {"is 1", "must be 2"}},
      {"token 0",
       [](auto* s) {
         SetList(s, {0, 1}, {0});
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_tokens",
       {"[0] is 0", "above 0"}},
      {"same token twice",
       [](auto* s) {
         SetList(s, {0, 2}, {3, 3});
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_tokens",
       {"[1] is 3", "above 3"}},
      {"decreasing",
       [](auto* s) {
         SetList(s, {0, 2}, {3, 2});
       },
       KDA_ERROR_CHECKPOINT,
       "checkpoint_tokens",
       {"[1] is 2", "above 3"}},
  });
}

struct CheckpointRow {
  int64_t sequence, token;
  int32_t written;
  bool operator==(const CheckpointRow& o) const {
    return sequence == o.sequence && token == o.token && written == o.written;
  }
};

std::vector<CheckpointRow> RowsOf(const SmallCase& small) {
  Plan plan;
  const Status status = Plan::Create(small.problem, small.options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<CheckpointRow> rows;
  CheckpointRow row;
  int64_t skipped = 0;
  for (int64_t i = 0;
       kda_plan_checkpoint(plan.get(), i, &row.sequence, &row.token, &row.written) == KDA_OK; ++i) {
    rows.push_back(row);
    skipped += row.written == 0;
  }
  EXPECT_EQ(plan.Info().checkpoints, static_cast<int64_t>(rows.size()));
  EXPECT_EQ(plan.Info().checkpoints_skipped, skipped);
  EXPECT_EQ(kda_plan_checkpoint(plan.get(), -1, nullptr, nullptr, nullptr), KDA_ERROR_CHECKPOINT);
  EXPECT_EQ(
      kda_plan_checkpoint(plan.get(), static_cast<int64_t>(rows.size()), nullptr, nullptr, nullptr),
      KDA_ERROR_CHECKPOINT);
  return rows;
}

TEST(Checkpoints, Rows) {
  SmallCase every;
  SetBatchAndTokens(&every, 1, 20);
  SetCu(&every, {0, 9, 9, 11, 20});
  every.problem.checkpoint_every = 4;
  every.problem.checkpoints = Dense(KDA_F32, {4, 4, 4, 3});
  EXPECT_EQ(RowsOf(every),
            (std::vector<CheckpointRow>{{0, 4, 1}, {0, 8, 1}, {3, 4, 1}, {3, 8, 1}}));

  // The second sequence is shorter than asked; the third is skipped.
  SmallCase listed;
  SetBatchAndTokens(&listed, 1, 20);
  SetCu(&listed, {0, 9, 11, 20});
  listed.slots = {0, 1, -1};
  listed.problem.slots = Index(listed.slots);
  SetList(&listed, {0, 2, 4, 5}, {1, 9, 2, 3, 4});
  EXPECT_EQ(RowsOf(listed),
            (std::vector<CheckpointRow>{{0, 1, 1}, {0, 9, 1}, {1, 2, 1}, {1, 3, 0}, {2, 4, 0}}));

  SmallCase none;  // given, but empty
  SetList(&none, {0, 0}, {});
  EXPECT_TRUE(RowsOf(none).empty());
}

// Every index array may lie at any address.
TEST(Indices, AnyAddress) {
  kda_index Problem::*const kIndices[] = {&Problem::cu_seqlens, &Problem::slots,
                                          &Problem::has_initial, &Problem::checkpoint_offsets,
                                          &Problem::checkpoint_tokens};
  for (const int64_t shift : {1, 2, 3, 4, 5, 8}) {
    SCOPED_TRACE(shift);
    SmallCase plain, shifted;
    for (SmallCase* small : {&plain, &shifted}) {
      SetBatchAndTokens(small, 1, 6);
      SetCu(small, {0, 2, 6});
      small->slots = {1, 0};
      small->has_initial = {1, 0};
      small->problem.slots = Index(small->slots);
      small->problem.has_initial = Index(small->has_initial);
      small->initial_state.resize(2 * 48, 0.25f);
      SetList(small, {0, 1, 3}, {2, 1, 3});
    }
    std::vector<std::vector<char>> memory;
    for (kda_index Problem::*const member : kIndices) {
      kda_index& index = shifted.problem.*member;
      std::vector<char>& bytes = memory.emplace_back(static_cast<size_t>(8 * index.count + shift));
      memcpy(bytes.data() + shift, index.data, static_cast<size_t>(8 * index.count));
      index.data = bytes.data() + shift;
    }
    for (SmallCase* small : {&plain, &shifted}) {
      Plan plan;
      const Status made = Plan::Create(small->problem, small->options, &plan);
      ASSERT_TRUE(made.ok()) << made.message();
      ASSERT_TRUE(plan.Run(small->MakeArgs()).ok());
    }
    EXPECT_EQ(shifted.o, plain.o);
    EXPECT_EQ(shifted.final_state, plain.final_state);
    EXPECT_EQ(shifted.checkpoints, plain.checkpoints);
  }
}

// A step longer than anything is no checkpoint, and no overflow.
TEST(Checkpoints, HugeStep) {
  SmallCase small;
  small.problem.checkpoint_every = INT64_MAX / 2;
  small.problem.checkpoints = Dense(KDA_F32, {0, 4, 4, 3});
  EXPECT_TRUE(RowsOf(small).empty());
}

}  // namespace
}  // namespace kda::test
