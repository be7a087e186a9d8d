// Ranks, shapes, dtypes, strides and sizes of the tensors (D01, D02, D06, D16, D17, D18).
#include "core/tensor.h"

#include <limits>

#include "small_case.h"

namespace kda::test {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Tensors, SmallCaseIsTaken) {
  SmallCase small;
  ExpectAccepted(&small);
}

TEST(Tensors, RanksAndShapes) {
  ExpectRefused({
      {"q absent",
       [](auto* s) { s->problem.q.rank = 0; },
       KDA_ERROR_SHAPE,
       "q",
       {"rank is 0 (absent)", "must be 4"}},
      {"q of rank 3",
       [](auto* s) {
         s->problem.q = Dense(KDA_F32, {6, 2, 4});
       },
       KDA_ERROR_SHAPE,
       "q",
       {"rank is 3", "must be 4"}},
      {"q of rank 5",
       [](auto* s) {
         s->problem.q = Dense(KDA_F32, {1, 1, 6, 2, 4});
       },
       KDA_ERROR_SHAPE,
       "q",
       {"rank is 5", "must be 4"}},
      {"negative rank",
       [](auto* s) { s->problem.g.rank = -1; },
       KDA_ERROR_SHAPE,
       "g",
       {"rank is -1", "must be 4"}},
      {"negative T",
       [](auto* s) { s->problem.q.shape[1] = -6; },
       KDA_ERROR_SHAPE,
       "q",
       {"(T)", "-6", "must not be negative"}},
      {"negative B",
       [](auto* s) { s->problem.q.shape[0] = -1; },
       KDA_ERROR_SHAPE,
       "q",
       {"(B)", "-1", "must not be negative"}},
      {"T of k",
       [](auto* s) { s->problem.k.shape[1] = 5; },
       KDA_ERROR_SHAPE,
       "k",
       {"dimension 1 (T) is 5", "must be 6", "as in q"}},
      {"K of k",
       [](auto* s) { s->problem.k.shape[3] = 5; },
       KDA_ERROR_SHAPE,
       "k",
       {"(K) is 5", "must be 4"}},
      {"B of v",
       [](auto* s) { s->problem.v.shape[0] = 2; },
       KDA_ERROR_SHAPE,
       "v",
       {"(B) is 2", "must be 1"}},
      {"HV of g",
       [](auto* s) { s->problem.g.shape[2] = 2; },
       KDA_ERROR_SHAPE,
       "g",
       {"(HV) is 2", "must be 4", "as in v"}},
      {"K of g",
       [](auto* s) { s->problem.g.shape[3] = 3; },
       KDA_ERROR_SHAPE,
       "g",
       {"(K) is 3", "must be 4"}},
      {"HV of beta",
       [](auto* s) { s->problem.beta.shape[2] = 2; },
       KDA_ERROR_SHAPE,
       "beta",
       {"(HV) is 2", "must be 4"}},
      {"V of o",
       [](auto* s) { s->problem.o.shape[3] = 4; },
       KDA_ERROR_SHAPE,
       "o",
       {"(V) is 4", "must be 3"}},
      {"o absent",
       [](auto* s) { s->problem.o.rank = 0; },
       KDA_ERROR_SHAPE,
       "o",
       {"rank is 0 (absent)", "must be 4"}},
  });
}

void SetHeads(SmallCase* s, int64_t h, int64_t hv) {
  s->problem.q.shape[2] = s->problem.k.shape[2] = h;
  s->problem.v.shape[2] = s->problem.o.shape[2] = s->problem.g.shape[2] = hv;
  s->problem.beta.shape[2] = s->problem.A_log.shape[0] = s->problem.dt_bias.shape[0] = hv;
  s->problem.initial_state.shape[1] = s->problem.final_state.shape[1] = hv;
}

TEST(Tensors, HeadCounts) {
  ExpectRefused({
      {"no heads",
       [](auto* s) { SetHeads(s, 0, 4); },
       KDA_ERROR_SHAPE,
       "q",
       {"heads is 0", "from 1 to 65536"}},
      {"no value heads",
       [](auto* s) { SetHeads(s, 2, 0); },
       KDA_ERROR_SHAPE,
       "v",
       {"value_heads is 0", "from 1 to 65536"}},
      {"HV 3, H 2",
       [](auto* s) { SetHeads(s, 2, 3); },
       KDA_ERROR_SHAPE,
       "v",
       {"value_heads is 3", "multiple of the 2 heads"}},
      {"HV < H",
       [](auto* s) { SetHeads(s, 4, 2); },
       KDA_ERROR_SHAPE,
       "v",
       {"value_heads is 2", "multiple of the 4 heads"}},
  });
  for (const auto& [h, hv] : {std::pair(1, 1), std::pair(3, 3), std::pair(5, 40)}) {
    SmallCase small;
    SetHeads(&small, h, hv);
    ExpectAccepted(&small);
  }
}

TEST(Tensors, DtypesRefused) {
  ExpectRefused({
      {"q i32",
       [](auto* s) { s->problem.q.dtype = KDA_I32; },
       KDA_ERROR_DTYPE,
       "q",
       {"dtype is 4 (i32)", "f32, bf16, f16"}},
      {"q unknown",
       [](auto* s) { s->problem.q.dtype = 77; },
       KDA_ERROR_DTYPE,
       "q",
       {"dtype is 77 (unknown)"}},
      {"q negative",
       [](auto* s) { s->problem.q.dtype = -1; },
       KDA_ERROR_DTYPE,
       "q",
       {"dtype is -1 (unknown)"}},
      {"q zero",
       [](auto* s) { s->problem.q.dtype = 0; },
       KDA_ERROR_DTYPE,
       "q",
       {"dtype is 0 (unknown)"}},
      {"k unlike q",
       [](auto* s) { s->problem.k.dtype = KDA_BF16; },
       KDA_ERROR_DTYPE,
       "k",
       {"dtype is bf16", "must be f32"}},
      {"v i64", [](auto* s) { s->problem.v.dtype = KDA_I64; }, KDA_ERROR_DTYPE, "v", {"i64"}},
      {"g i32", [](auto* s) { s->problem.g.dtype = KDA_I32; }, KDA_ERROR_DTYPE, "g", {"i32"}},
      {"beta i32",
       [](auto* s) { s->problem.beta.dtype = KDA_I32; },
       KDA_ERROR_DTYPE,
       "beta",
       {"i32"}},
      {"A_log bf16",
       [](auto* s) { s->problem.A_log.dtype = KDA_BF16; },
       KDA_ERROR_DTYPE,
       "A_log",
       {"bf16", "must be one of f32"}},
      {"dt_bias bf16",
       [](auto* s) { s->problem.dt_bias.dtype = KDA_BF16; },
       KDA_ERROR_DTYPE,
       "dt_bias",
       {"bf16", "must be one of f32"}},
      {"o i32", [](auto* s) { s->problem.o.dtype = KDA_I32; }, KDA_ERROR_DTYPE, "o", {"i32"}},
      {"state i32",
       [](auto* s) { s->problem.initial_state.dtype = KDA_I32; },
       KDA_ERROR_DTYPE,
       "initial_state",
       {"i32", "f32, bf16"}},
      {"state f16",
       [](auto* s) { s->problem.final_state.dtype = KDA_F16; },
       KDA_ERROR_DTYPE,
       "final_state",
       {"f16", "f32, bf16"}},
  });
}

TEST(Tensors, EveryFloatDtypeMixtureIsTaken) {
  constexpr kda_dtype kFloats[] = {KDA_F32, KDA_BF16, KDA_F16};
  for (kda_dtype qk : kFloats) {
    for (kda_dtype v : kFloats) {
      for (kda_dtype g : kFloats) {
        for (kda_dtype beta : kFloats) {
          SmallCase small;
          small.problem.q.dtype = small.problem.k.dtype = qk;
          small.problem.v.dtype = v;
          small.problem.o.dtype = beta;
          small.problem.g.dtype = g;
          small.problem.beta.dtype = beta;
          ExpectAccepted(&small);
        }
      }
    }
  }
}

// Sets explicit strides.
void SetStrides(kda_tensor* t, std::initializer_list<int64_t> strides) {
  std::copy(strides.begin(), strides.end(), t->stride);
}

TEST(Tensors, StridesTaken) {
  const std::vector<std::function<void(SmallCase*)>> changes = {
      [](auto* s) {
        SetStrides(&s->problem.q, {0, 24, 4, 1});
      },  // a slice of [T, 3, H, K]
      [](auto* s) {
        SetStrides(&s->problem.v, {0, 3, 18, 1});
      },  // [HV, T, V] transposed
      [](auto* s) {
        SetStrides(&s->problem.k, {0, 0, 0, 1});
      },  // broadcast
      [](auto* s) {
        SetStrides(&s->problem.beta, {0, 9, 1});
      },  // columns of [T, HV + 5]
      [](auto* s) {
        SetStrides(&s->problem.beta, {0, 1, 6});
      },                                                    // [HV, T] transposed
      [](auto* s) { SetStrides(&s->problem.A_log, {2}); },  // every second
      [](auto* s) {
        SetStrides(&s->problem.g, {7, 100, 8, 1});
      },  // a batch stride never used
      [](auto* s) {
        SetStrides(&s->problem.o, {0, 3, 18, 1});
      },  // outputs too
      [](auto* s) {
        SetStrides(&s->problem.dt_bias, {64, 1});
      },  // rows of a wider matrix
      [](auto* s) {
        SetStrides(&s->problem.initial_state, {1, 100, 3, 1});
      },
      [](auto* s) {
        SetStrides(&s->problem.final_state, {0, 100, 3, 1});
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    SmallCase small;
    changes[i](&small);
    ExpectAccepted(&small);
  }
}

// A dimension of one element is never stepped along, so that no offset is made of its stride.
TEST(Tensors, StridesOfOneElementAreNotUsed) {
  SmallCase small;
  ASSERT_EQ(small.problem.q.shape[0], 1);
  SetStrides(&small.problem.q, {kMax, 8, 4, 1});
  SetStrides(&small.problem.o, {kMax, 12, 3, 1});
  kda::Plan plan;
  ASSERT_TRUE(kda::Plan::Create(small.problem, small.options, &plan).ok());
  ASSERT_TRUE(plan.Run(small.MakeArgs()).ok());
  const std::vector<float> o = small.o;
  SmallCase dense;
  ASSERT_TRUE(kda::Plan::Create(dense.problem, dense.options, &plan).ok());
  ASSERT_TRUE(plan.Run(dense.MakeArgs()).ok());
  EXPECT_EQ(o, dense.o);
}

TEST(Tensors, StridesRefused) {
  ExpectRefused({
      {"negative",
       [](auto* s) {
         SetStrides(&s->problem.q, {48, -8, 4, 1});
       },
       KDA_ERROR_STRIDE,
       "q",
       {"dimension 1 (T) is -8", "must not be negative"}},
      {"last of q",
       [](auto* s) {
         SetStrides(&s->problem.q, {96, 16, 8, 2});
       },
       KDA_ERROR_STRIDE,
       "q",
       {"dimension 3 (K) is 2", "must be 1 (contiguous)"}},
      {"last of k",
       [](auto* s) {
         SetStrides(&s->problem.k, {48, 8, 1, 2});
       },
       KDA_ERROR_STRIDE,
       "k",
       {"(K) is 2", "must be 1"}},
      {"last of v",
       [](auto* s) {
         SetStrides(&s->problem.v, {0, 1, 18, 6});
       },
       KDA_ERROR_STRIDE,
       "v",
       {"(V) is 6", "must be 1"}},
      {"last of g",
       [](auto* s) {
         SetStrides(&s->problem.g, {96, 16, 4, 0});
       },
       KDA_ERROR_STRIDE,
       "g",
       {"(K) is 0", "must be 1"}},
      {"last of o",
       [](auto* s) {
         SetStrides(&s->problem.o, {144, 24, 6, 2});
       },
       KDA_ERROR_STRIDE,
       "o",
       {"(V) is 2", "must be 1"}},
      {"last of dt_bias",
       [](auto* s) {
         SetStrides(&s->problem.dt_bias, {1, 4});
       },
       KDA_ERROR_STRIDE,
       "dt_bias",
       {"(K) is 4", "must be 1"}},
      {"o broadcast over T",
       [](auto* s) {
         SetStrides(&s->problem.o, {72, 0, 3, 1});
       },
       KDA_ERROR_STRIDE,
       "o",
       {"dimension 1 (T) is 0", "must not share memory"}},
      {"o rows overlap",
       [](auto* s) {
         SetStrides(&s->problem.o, {72, 11, 3, 1});
       },
       KDA_ERROR_STRIDE,
       "o",
       {"dimension 1 (T) is 11", "at least 12"}},
      {"o heads overlap",
       [](auto* s) {
         SetStrides(&s->problem.o, {72, 12, 2, 1});
       },
       KDA_ERROR_STRIDE,
       "o",
       {"dimension 2 (HV) is 2", "at least 3"}},
      {"state rows overlap",
       [](auto* s) {
         SetStrides(&s->problem.final_state, {48, 11, 3, 1});
       },
       KDA_ERROR_STRIDE,
       "final_state",
       {"dimension 1 (HV) is 11", "at least 12"}},
      {"state transposed",
       [](auto* s) {
         SetStrides(&s->problem.initial_state, {48, 12, 1, 4});
       },
       KDA_ERROR_STRIDE,
       "initial_state",
       {"is 4", "must be 1"}},
      {"state padded",
       [](auto* s) {
         SetStrides(&s->problem.initial_state, {64, 16, 4, 1});
       },
       KDA_ERROR_STRIDE,
       "initial_state",
       {"dimension 2 (K) is 4", "must be 3"}},
  });
}

TEST(Tensors, SizesThatDoNotFit) {
  const auto big_t = [](SmallCase* s, int64_t t) {
    for (kda_tensor* x : {&s->problem.q, &s->problem.k, &s->problem.v, &s->problem.g, &s->problem.o,
                          &s->problem.beta}) {
      x->shape[1] = t;
    }
  };
  ExpectRefused({
      {"dense strides pass 2^63",
       [=](auto* s) { big_t(s, kMax / 2); },
       KDA_ERROR_OVERFLOW,
       "q",
       {"4611686018427387903", "2^63"}},
      {"bytes pass 2^63",
       [=](auto* s) { big_t(s, kMax / 16); },
       KDA_ERROR_OVERFLOW,
       "q",
       {"576460752303423487", "2^63"}},
      {"stride",
       [](auto* s) {
         SetStrides(&s->problem.g, {0, kMax / 4, 4, 1});
       },
       KDA_ERROR_OVERFLOW,
       "g",
       {"2305843009213693951", "2^63"}},
      {"batch",
       [](auto* s) { s->problem.q.shape[0] = kMax; },
       KDA_ERROR_OVERFLOW,
       "q",
       {"9223372036854775807"}},
      {"heads",
       [](auto* s) { SetHeads(s, 2, kMax / 8); },
       KDA_ERROR_OVERFLOW,
       "v",
       {"1152921504606846975"}},
      {"state stride",
       [](auto* s) {
         SetStrides(&s->problem.initial_state, {0, kMax / 8, 3, 1});
       },
       KDA_ERROR_OVERFLOW,
       "initial_state",
       {"1152921504606846975"}},
  });
}

// A batch of empty sequences still has its other dimensions checked.
TEST(Tensors, ExtremeSizesOfAnEmptyProblem) {
  ExpectRefused({{"no tokens, too many heads",
                  [](auto* s) {
                    SetHeads(s, 2, 1 << 20);
                    for (kda_tensor* x : {&s->problem.q, &s->problem.k, &s->problem.v,
                                          &s->problem.g, &s->problem.o, &s->problem.beta}) {
                      x->shape[1] = 0;
                    }
                  },
                  KDA_ERROR_SHAPE,
                  "v",
                  {"value_heads is 1048576", "65536"}}});
}

// D17 (a): T * H * K past 2^31 elements, and bytes past 2^31, are ordinary sizes.
TEST(Tensors, OffsetsPastTwoToThe31) {
  const struct {
    int64_t t, h;
  } sizes[] = {{174762, 96}, {174763, 96}, {87381, 96}, {87382, 96}, {1048577, 16}, {524289, 16}};
  for (const auto& size : sizes) {
    const int64_t t = size.t, h = size.h;
    core::TensorRule rule = {"q", core::kFloatDtypes,
                             4,   {{"B", 1, "x"}, {"T", t, "x"}, {"H", h, "x"}, {"K", 128, "x"}},
                             1,   true};
    for (kda_dtype dtype : {KDA_BF16, KDA_F32}) {
      kda_tensor checked;
      kda_error error;
      const kda_tensor tensor = Dense(dtype, {1, t, h, 128});
      ASSERT_EQ(core::CheckTensor(rule, tensor, &checked, &error), KDA_OK) << error.message;
      EXPECT_EQ(checked.stride[0], t * h * 128);
      EXPECT_EQ(checked.stride[1], h * 128);
      EXPECT_EQ(checked.stride[2], 128);
      EXPECT_EQ(core::ExtentBytes(checked), t * h * 128 * (dtype == KDA_F32 ? 4 : 2));
    }
  }
  kda_tensor state;
  kda_error error;
  core::TensorRule rule = {"initial_state",
                           core::kStateDtypes,
                           4,
                           {{"N", 1366, "x"}, {"HV", 96, "x"}, {"K", 128, "x"}, {"V", 128, "x"}},
                           2,
                           true};
  ASSERT_EQ(core::CheckTensor(rule, Dense(KDA_F32, {1366, 96, 128, 128}), &state, &error), KDA_OK);
  EXPECT_EQ(core::ExtentBytes(state), int64_t{1366} * 96 * 128 * 128 * 4);
}

TEST(Tensors, LargePlansAreMade) {
  SmallCase small;
  for (kda_tensor* x : {&small.problem.q, &small.problem.k, &small.problem.v, &small.problem.g,
                        &small.problem.o, &small.problem.beta}) {
    x->shape[1] = 174763;
  }
  SetHeads(&small, 96, 96);
  small.problem.q.shape[3] = small.problem.k.shape[3] = small.problem.g.shape[3] = 128;
  small.problem.v.shape[3] = small.problem.o.shape[3] = 128;
  small.problem.dt_bias.shape[1] = 128;
  small.problem.initial_state.rank = small.problem.final_state.rank = 0;
  small.options.flags = KDA_OPTION_CALLER_WORKSPACE;
  Plan plan;
  const Status status = Plan::Create(small.problem, small.options, &plan);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(plan.Info().tokens, 174763);
  EXPECT_EQ(plan.Info().chunks, (174763 + 63) / 64);
}

}  // namespace
}  // namespace kda::test
