// The switch table, the rungs and the limits: what they say is what the validator does (E16).
#include <cfloat>
#include <cmath>
#include <map>

#include "small_case.h"

namespace kda::test {
namespace {

TEST(Switches, OneRowEach) {
  uint32_t seen = 0;
  std::map<std::string, uint32_t> bits;
  for (int32_t i = 0; const kda_switch_info* row = kda_switch(i); ++i) {
    EXPECT_EQ(row->bit & (row->bit - 1), 0u);
    EXPECT_EQ(seen & row->bit, 0u);
    seen |= row->bit;
    bits[row->name] = row->bit;
    EXPECT_STRNE(row->stage, "");
    EXPECT_STRNE(row->effect, "");
  }
  EXPECT_EQ(seen, KDA_SWITCHES_ALL);
  EXPECT_EQ(bits["safe_gate"], KDA_SWITCH_SAFE_GATE);
  EXPECT_EQ(bits["head_block"], KDA_SWITCH_HEAD_BLOCK);
  EXPECT_EQ(kda_switch(-1), nullptr);
}

// A switch whose needs are off falls back, and nothing else does.
TEST(Switches, NeedsAreEnforced) {
  std::map<std::string, uint32_t> bits;
  for (int32_t i = 0; const kda_switch_info* row = kda_switch(i); ++i) bits[row->name] = row->bit;
  for (int32_t i = 0; const kda_switch_info* row = kda_switch(i); ++i) {
    const std::string needs = std::string(",") + row->needs + ",";
    for (const auto& [name, bit] : bits) {
      if (bit == row->bit) continue;
      SmallCase small;
      small.options.switches_off = bit;
      Plan plan;
      ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
      const bool needed = needs.find("," + name + ",") != std::string::npos;
      EXPECT_EQ((plan.Info().switches & row->bit) == 0, needed) << row->name << " without " << name;
    }
  }
}

TEST(Rungs, FromNoneToAll) {
  const char* name;
  uint32_t on, before = 0;
  std::vector<std::string> names;
  int32_t count = 0;
  for (; kda_rung(count, &name, &on) != 0; ++count) {
    names.push_back(name);
    EXPECT_EQ(on & before, before) << name;
    const uint32_t added = on & ~before;
    EXPECT_EQ(added & (added - 1), 0u) << name;
    EXPECT_EQ(added == 0, count == 0) << name;
    before = on;
  }
  EXPECT_EQ(before, KDA_SWITCHES_ALL);
  EXPECT_EQ(names, (std::vector<std::string>{"original", "port", "fuse", "unified_layout",
                                             "flat_grid", "optimized"}));
  EXPECT_EQ(kda_rung(-1, &name, &on), 0);
  EXPECT_EQ(kda_rung(0, nullptr, nullptr), 1);
}

// For each limit, how to make the small case have a value of it. A row without an entry here is
// checked elsewhere, as said.
const std::map<std::string, std::function<void(SmallCase*, double)>>& Setters() {
  using S = SmallCase;
  const auto tokens = [](S* s, std::initializer_list<kda_tensor*> tensors, int axis, double x) {
    (void)s;
    for (kda_tensor* t : tensors) t->shape[axis] = static_cast<int64_t>(x);
  };
  static const std::map<std::string, std::function<void(S*, double)>> setters = {
      {"heads",
       [=](S* s, double x) {
         kda_problem& p = s->problem;
         tokens(s, {&p.q, &p.k, &p.v, &p.g, &p.o, &p.beta}, 2, x);
         p.A_log.rank = p.dt_bias.rank = p.initial_state.rank = p.final_state.rank = 0;
       }},
      {"value_heads",
       [=](S* s, double x) {
         kda_problem& p = s->problem;
         tokens(s, {&p.q, &p.k}, 2, 1);
         tokens(s, {&p.v, &p.g, &p.o, &p.beta}, 2, x);
         p.A_log.rank = p.dt_bias.rank = p.initial_state.rank = p.final_state.rank = 0;
       }},
      {"dim_k",
       [=](S* s, double x) {
         kda_problem& p = s->problem;
         tokens(s, {&p.q, &p.k, &p.g}, 3, x);
         p.dt_bias.rank = p.initial_state.rank = p.final_state.rank = 0;
       }},
      {"dim_v",
       [=](S* s, double x) {
         kda_problem& p = s->problem;
         tokens(s, {&p.v, &p.o}, 3, x);
         p.initial_state.rank = p.final_state.rank = 0;
       }},
      {"scale", [](S* s, double x) { s->problem.scale = x; }},
      {"lower_bound", [](S* s, double x) { s->problem.lower_bound = x; }},
      {"threads", [](S* s, double x) { s->options.threads = static_cast<int32_t>(x); }},
      {"checkpoint_every",
       [](S* s, double x) {
         s->problem.checkpoint_every = static_cast<int64_t>(x);
         if (x > 0) s->problem.checkpoints = Dense(KDA_F32, {0, 4, 4, 3});
       }},
  };
  return setters;
}

kda_status StatusOf(const std::string& limit, double value) {
  SmallCase small;
  small.options.executor.run = [](void*, int32_t, kda_task, void*) {};  // no threads are started
  small.options.flags = KDA_OPTION_CALLER_WORKSPACE;
  Setters().at(limit)(&small, value);
  Plan plan;
  return Plan::Create(small.problem, small.options, &plan).code();
}

TEST(Limits, TheValidatorAgrees) {
  // Sizes whose largest value needs more memory than a test has are checked from above only.
  const std::map<std::string, const char*> elsewhere = {{"batch", "Limits.Sizes"},
                                                        {"tokens", "Limits.Sizes"},
                                                        {"sequences", "Limits.Sizes"},
                                                        {"token_heads", "Limits.Sizes"},
                                                        {"struct_size", "Structs.ImpossibleSizes"}};
  int32_t count = 0;
  for (; const kda_limit_info* row = kda_limit(count); ++count) {
    SCOPED_TRACE(row->name);
    EXPECT_LE(row->min, row->max);
    EXPECT_STRNE(row->note, "");
    if (elsewhere.count(row->name) != 0) continue;
    ASSERT_EQ(Setters().count(row->name), 1u);
    EXPECT_EQ(StatusOf(row->name, row->min), KDA_OK);
    EXPECT_EQ(StatusOf(row->name, row->max), KDA_OK);
    const bool whole = std::string(row->name) != "scale" && std::string(row->name) != "lower_bound";
    const double below = whole ? row->min - 1 : std::nextafter(row->min, -INFINITY);
    const double above = whole ? row->max + 1 : std::nextafter(row->max, INFINITY);
    EXPECT_NE(StatusOf(row->name, below), KDA_OK);
    if (std::string(row->name) != "checkpoint_every") {  // its largest is the type's
      EXPECT_NE(StatusOf(row->name, above), KDA_OK);
    }
  }
  EXPECT_EQ(count, 13);
  EXPECT_EQ(kda_limit(-1), nullptr);
}

TEST(Limits, Sizes) {
  const auto set = [](SmallCase* s, int64_t b, int64_t t) {
    kda_problem& p = s->problem;
    for (kda_tensor* x : {&p.q, &p.k, &p.v, &p.g, &p.o, &p.beta}) {
      x->shape[0] = b;
      x->shape[1] = t;
    }
  };
  ExpectRefused({
      {"batch",
       [=](auto* s) { set(s, INT64_C(2147483648), 0); },
       KDA_ERROR_SHAPE,
       "q",
       {"batch is 2147483648", "2147483647"}},
      {"tokens",
       [=](auto* s) { set(s, 1, INT64_C(2147483647) * 64 + 1); },
       KDA_ERROR_SHAPE,
       "q",
       {"tokens is 137438953409", "137438953408"}},
      {"token_heads",
       [=](auto* s) { set(s, 1024, INT64_C(1) << 33); },
       KDA_ERROR_OVERFLOW,
       "v",
       {"token_heads is 35184372088832", "17592186044416"}},
  });
}

}  // namespace
}  // namespace kda::test
