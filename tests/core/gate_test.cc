// The gate's parameters (A21, D14), scale, flags.
#include <cfloat>
#include <cmath>
#include <limits>

#include "small_case.h"

namespace kda::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Gate, LowerBoundOutsideItsDomain) {
  ExpectRefused({
      {"one",
       [](auto* s) { s->problem.lower_bound = 1; },
       KDA_ERROR_GATE,
       "lower_bound",
       {"must be set", "to 0", "is 1,", "kda_problem_init"}},
      {"tiny",
       [](auto* s) { s->problem.lower_bound = 5e-324; },
       KDA_ERROR_GATE,
       "lower_bound",
       {"4.94066e-324", "to 0"}},
      {"NaN",
       [](auto* s) { s->problem.lower_bound = kNan; },
       KDA_ERROR_GATE,
       "lower_bound",
       {"nan"}},
      {"-inf",
       [](auto* s) { s->problem.lower_bound = -kInf; },
       KDA_ERROR_GATE,
       "lower_bound",
       {"-inf"}},
      {"inf",
       [](auto* s) { s->problem.lower_bound = kInf; },
       KDA_ERROR_GATE,
       "lower_bound",
       {"inf"}},
      {"not of fp32",
       [](auto* s) { s->problem.lower_bound = -1e39; },
       KDA_ERROR_GATE,
       "lower_bound",
       {"is -1e+39", "from -1e+38"}},
  });
}

TEST(Gate, LowerBoundInsideItsDomain) {
  for (double bound :
       {0.0, -0.0, -5e-324, -0.25, -2.77, -5.0, -5.95, -6.0, -11.2, -1000.0, -1e38}) {
    SmallCase small;
    small.problem.lower_bound = bound;
    ExpectAccepted(&small);
  }
  for (kda_gate gate : {KDA_GATE_LOG, KDA_GATE_SOFTPLUS}) {  // unused otherwise
    SmallCase small;
    small.problem.gate = gate;
    if (gate == KDA_GATE_LOG) small.problem.A_log.rank = small.problem.dt_bias.rank = 0;
    small.problem.lower_bound = kNan;
    ExpectAccepted(&small);
  }
}

TEST(Gate, Parameters) {
  ExpectRefused({
      {"softplus without A_log",
       [](auto* s) {
         s->problem.gate = KDA_GATE_SOFTPLUS;
         s->problem.A_log.rank = 0;
       },
       KDA_ERROR_GATE,
       "A_log",
       {"rank is 0 (absent)", "softplus"}},
      {"log with A_log",
       [](auto* s) {
         s->problem.gate = KDA_GATE_LOG;
         s->problem.dt_bias.rank = 0;
       },
       KDA_ERROR_GATE,
       "A_log",
       {"rank is 1", "must be 0 (absent)", "bounded and softplus"}},
      {"log with dt_bias",
       [](auto* s) {
         s->problem.gate = KDA_GATE_LOG;
         s->problem.A_log.rank = 0;
       },
       KDA_ERROR_GATE,
       "dt_bias",
       {"rank is 2", "must be 0 (absent)", "bounded and softplus"}},
      {"A_log per q head",
       [](auto* s) { s->problem.A_log = Dense(KDA_F32, {2}); },
       KDA_ERROR_SHAPE,
       "A_log",
       {"(HV) is 2", "must be 4"}},
      {"A_log of rank 2",
       [](auto* s) {
         s->problem.A_log = Dense(KDA_F32, {4, 1});
       },
       KDA_ERROR_SHAPE,
       "A_log",
       {"rank is 2", "must be 1"}},
      {"dt_bias per head",
       [](auto* s) { s->problem.dt_bias = Dense(KDA_F32, {4}); },
       KDA_ERROR_SHAPE,
       "dt_bias",
       {"is 4", "must be 16"}},
      {"dt_bias per channel",
       [](auto* s) { s->problem.dt_bias = Dense(KDA_F32, {SmallCase::kK}); },
       KDA_ERROR_SHAPE,
       "dt_bias",
       {"is 4", "must be 16"}},
      {"dt_bias [2, K]",
       [](auto* s) {
         s->problem.dt_bias = Dense(KDA_F32, {2, 4});
       },
       KDA_ERROR_SHAPE,
       "dt_bias",
       {"(HV) is 2", "must be 4"}},
      {"dt_bias [HV, 1]",
       [](auto* s) {
         s->problem.dt_bias = Dense(KDA_F32, {4, 1});
       },
       KDA_ERROR_SHAPE,
       "dt_bias",
       {"(K) is 1", "must be 4"}},
      {"dt_bias of rank 3",
       [](auto* s) {
         s->problem.dt_bias = Dense(KDA_F32, {1, 4, 4});
       },
       KDA_ERROR_SHAPE,
       "dt_bias",
       {"rank is 3", "must be 2"}},
  });
}

TEST(Gate, OptionalParameters) {
  for (int absent = 0; absent < 4; ++absent) {
    SmallCase small;
    if ((absent & 1) != 0) small.problem.A_log.rank = 0;
    if ((absent & 2) != 0) small.problem.dt_bias.rank = 0;
    EXPECT_NE(ExpectAccepted(&small).find("bounded gate"), std::string::npos);
  }
  SmallCase softplus;
  softplus.problem.gate = KDA_GATE_SOFTPLUS;
  softplus.problem.dt_bias.rank = 0;
  EXPECT_NE(ExpectAccepted(&softplus).find("softplus gate"), std::string::npos);
}

// [HV * K] is [HV, K].
TEST(Gate, FlatDtBias) {
  SmallCase matrix, flat;
  flat.problem.dt_bias = Dense(KDA_F32, {16});
  for (SmallCase* small : {&matrix, &flat}) {
    Plan plan;
    ASSERT_TRUE(Plan::Create(small->problem, small->options, &plan).ok());
    ASSERT_TRUE(plan.Run(small->MakeArgs()).ok());
  }
  EXPECT_EQ(matrix.o, flat.o);
  EXPECT_NE(matrix.o[0], kUntouched);
}

TEST(Gate, Scale) {
  for (double scale :
       {0.0, -1.0, 1.0, 1e-30, double{FLT_MAX}, -double{FLT_MAX}, KDA_DEFAULT_SCALE}) {
    SmallCase small;
    small.problem.scale = scale;
    ExpectAccepted(&small);
  }
  ExpectRefused({
      {"NaN", [](auto* s) { s->problem.scale = kNan; }, KDA_ERROR_OPTION, "scale", {"nan"}},
      {"inf", [](auto* s) { s->problem.scale = kInf; }, KDA_ERROR_OPTION, "scale", {"inf"}},
      {"-inf", [](auto* s) { s->problem.scale = -kInf; }, KDA_ERROR_OPTION, "scale", {"-inf"}},
      {"not fp32", [](auto* s) { s->problem.scale = 1e39; }, KDA_ERROR_OPTION, "scale", {"1e+39"}},
  });
}

TEST(Gate, EnumsAndFlags) {
  ExpectRefused({
      {"mode", [](auto* s) { s->problem.mode = 2; }, KDA_ERROR_ENUM, "mode", {"is 2", "0 to 1"}},
      {"gate", [](auto* s) { s->problem.gate = -1; }, KDA_ERROR_ENUM, "gate", {"is -1", "0 to 2"}},
      {"state_order",
       [](auto* s) { s->problem.state_order = 9; },
       KDA_ERROR_ENUM,
       "state_order",
       {"is 9", "0 to 1"}},
      {"reserved", [](auto* s) { s->problem.reserved = 1; }, KDA_ERROR_ENUM, "reserved", {"is 1"}},
      {"flags",
       [](auto* s) { s->problem.flags = 5; },
       KDA_ERROR_ENUM,
       "flags",
       {"0x5", "0x4 is unknown", "0x3"}},
      {"high flag",
       [](auto* s) { s->problem.flags = UINT64_C(1) << 63; },
       KDA_ERROR_ENUM,
       "flags",
       {"0x8000000000000000"}},
  });
}

}  // namespace
}  // namespace kda::test
