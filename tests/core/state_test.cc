// States and slots (C06, C09, C10).
#include "small_case.h"

namespace kda::test {
namespace {

// Two sequences in a pool of `pool` slots.
void SetSlots(SmallCase* s, std::vector<int64_t> slots, int64_t pool) {
  s->cu_seqlens = {0, 4, 6};
  s->problem.cu_seqlens = Index(s->cu_seqlens);
  s->slots = std::move(slots);
  s->problem.slots = Index(s->slots);
  s->problem.initial_state.shape[0] = s->problem.final_state.shape[0] = pool;
  s->initial_state.resize(static_cast<size_t>(pool) * 48, 0.5f);
}

TEST(State, Shapes) {
  ExpectRefused({
      {"N",
       [](auto* s) { s->problem.initial_state.shape[0] = 2; },
       KDA_ERROR_SHAPE,
       "initial_state",
       {"(N) is 2", "must be 1"}},
      {"H",
       [](auto* s) { s->problem.initial_state.shape[1] = 2; },
       KDA_ERROR_SHAPE,
       "initial_state",
       {"(HV) is 2", "must be 4"}},
      {"K and V swapped",
       [](auto* s) {
         s->problem.initial_state = Dense(KDA_F32, {1, 4, 3, 4});
       },
       KDA_ERROR_SHAPE,
       "initial_state",
       {"dimension 2 (K) is 3", "must be 4"}},
      {"K and V swapped, VK",
       [](auto* s) { s->problem.state_order = KDA_STATE_VK; },
       KDA_ERROR_SHAPE,
       "initial_state",
       {"dimension 2 (V) is 4", "must be 3"}},
      {"no head axis",
       [](auto* s) {
         s->problem.initial_state = Dense(KDA_F32, {1, 4, 3});
       },
       KDA_ERROR_SHAPE,
       "initial_state",
       {"rank is 3", "must be 4"}},
      {"final K",
       [](auto* s) { s->problem.final_state.shape[2] = 8; },
       KDA_ERROR_SHAPE,
       "final_state",
       {"(K) is 8", "must be 4"}},
  });
  SmallCase vk;
  vk.problem.state_order = KDA_STATE_VK;
  vk.problem.initial_state = vk.problem.final_state = Dense(KDA_F32, {1, 4, 3, 4});
  ExpectAccepted(&vk);
  SmallCase mixed;  // dtypes and layouts of the two states are each their own
  mixed.problem.initial_state.dtype = KDA_BF16;
  ExpectAccepted(&mixed);
  SmallCase none;
  none.problem.initial_state.rank = none.problem.final_state.rank = 0;
  ExpectAccepted(&none);
}

TEST(State, SlotsRefused) {
  static const float kFloats[] = {0, 1};
  ExpectRefused({
      {"past the pool",
       [](auto* s) {
         SetSlots(s, {0, 7}, 7);
       },
       KDA_ERROR_SLOT,
       "slots",
       {"[1] is 7", "from 0 to 6", "initial_state"}},
      {"-2",
       [](auto* s) {
         SetSlots(s, {-2, 0}, 7);
       },
       KDA_ERROR_SLOT,
       "slots",
       {"[0] is -2", "-1"}},
      {"INT64_MIN",
       [](auto* s) {
         SetSlots(s, {INT64_MIN, 0}, 7);
       },
       KDA_ERROR_SLOT,
       "slots",
       {"-9223372036854775808"}},
      {"past the final pool",
       [](auto* s) {
         SetSlots(s, {0, 5}, 7);
         s->problem.final_state.shape[0] = 5;
       },
       KDA_ERROR_SLOT,
       "slots",
       {"[1] is 5", "from 0 to 4", "final_state"}},
      {"twice",
       [](auto* s) {
         SetSlots(s, {3, 3}, 7);
       },
       KDA_ERROR_SLOT,
       "slots",
       {"3 is given to more than one"}},
      {"count",
       [](auto* s) { SetSlots(s, {3}, 7); },
       KDA_ERROR_SHAPE,
       "slots",
       {"count is 1", "must be 2", "cu_seqlens"}},
      {"floats",
       [](auto* s) {
         SetSlots(s, {0, 1}, 7);
         s->problem.slots = kda_index_of(kFloats, KDA_F32, 2);
       },
       KDA_ERROR_DTYPE,
       "slots",
       {"f32"}},
      {"has_initial count",
       [](auto* s) {
         s->has_initial = {1, 1};
         s->problem.has_initial = Index(s->has_initial);
       },
       KDA_ERROR_SHAPE,
       "has_initial",
       {"count is 2", "must be 1"}},
      {"has_initial dtype",
       [](auto* s) { s->problem.has_initial = kda_index_of(kFloats, KDA_BF16, 1); },
       KDA_ERROR_DTYPE,
       "has_initial",
       {"bf16"}},
  });
}

TEST(State, SlotsTaken) {
  SmallCase both;
  SetSlots(&both, {6, 0}, 7);
  ExpectAccepted(&both);
  SmallCase skipped_twice;
  SetSlots(&skipped_twice, {-1, -1}, 7);
  ExpectAccepted(&skipped_twice);
  SmallCase read_twice;  // one prefix state for two sequences: only writing twice is wrong
  SetSlots(&read_twice, {3, 3}, 7);
  read_twice.problem.final_state.rank = 0;
  ExpectAccepted(&read_twice);
  SmallCase int32;
  static const int32_t kSlots[] = {5, -1};
  SetSlots(&int32, {0, 0}, 7);
  int32.problem.slots = kda_index_of(kSlots, KDA_I32, 2);
  ExpectAccepted(&int32);
}

// C10: pool of 7 slots, indices [5, 0, -1, 2]: -1 touches no slot and its rows become zero.
TEST(State, SkippedSequenceTouchesNothing) {
  SmallCase small;
  SetSlots(&small, {5, 0, -1, 2}, 7);
  small.cu_seqlens = {0, 2, 3, 5, 6};
  small.problem.cu_seqlens = Index(small.cu_seqlens);
  Plan plan;
  ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
  EXPECT_EQ(plan.Info().tokens, 4);
  EXPECT_EQ(plan.Info().chunks, 3);
  ASSERT_TRUE(plan.Run(small.MakeArgs()).ok());
  for (size_t slot = 0; slot < 7; ++slot) {
    const bool written = small.final_state[slot * 48] != kUntouched;
    EXPECT_EQ(written, slot == 5 || slot == 0 || slot == 2) << slot;
  }
  for (size_t t = 0; t < 6; ++t) {
    float largest = 0;
    for (size_t i = 0; i < 12; ++i) largest = std::max(largest, std::abs(small.o[t * 12 + i]));
    EXPECT_EQ(largest == 0, t == 3 || t == 4) << t;
  }
  EXPECT_EQ(small.o[6 * 12], kUntouched);
}

// has_initial 0: whatever the slot holds, NaN included, the sequence starts from zeros.
TEST(State, HasInitial) {
  SmallCase small, zeros;
  SetSlots(&small, {1, 0}, 2);
  SetSlots(&zeros, {1, 0}, 2);
  small.has_initial = {0, 1};
  small.problem.has_initial = Index(small.has_initial);
  for (size_t i = 48; i < 96; ++i) {
    small.initial_state[i] = std::numeric_limits<float>::quiet_NaN();
    zeros.initial_state[i] = 0;
  }
  for (SmallCase* s : {&small, &zeros}) {
    Plan plan;
    ASSERT_TRUE(Plan::Create(s->problem, s->options, &plan).ok());
    ASSERT_TRUE(plan.Run(s->MakeArgs()).ok());
  }
  EXPECT_EQ(small.o, zeros.o);
  EXPECT_EQ(small.final_state, zeros.final_state);
}

}  // namespace
}  // namespace kda::test
