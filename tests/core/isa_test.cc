// Instruction sets: forcing, and the cap KDA_MAX_ISA.
#include "core/isa.h"

#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <sstream>

#include "core/cpu_features.h"
#include "core/validate.h"
#include "small_case.h"
#include "support/isas.h"

namespace kda::test {
namespace {

// Sets KDA_MAX_ISA and puts it back.
class Cap {
 public:
  explicit Cap(const char* value) {
    const char* before = getenv("KDA_MAX_ISA");
    had_ = before != nullptr;
    if (had_) before_ = before;
    if (value != nullptr) {
      setenv("KDA_MAX_ISA", value, 1);
    } else {
      unsetenv("KDA_MAX_ISA");
    }
  }
  ~Cap() {
    if (had_) {
      setenv("KDA_MAX_ISA", before_.c_str(), 1);
    } else {
      unsetenv("KDA_MAX_ISA");
    }
  }

 private:
  bool had_;
  std::string before_;
};

int32_t IsaThatRuns() {
  SmallCase small;
  Plan plan;
  const Status status = Plan::Create(small.problem, small.options, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan.Info().isa;
}

// The kernel's own list of what the processor and the system offer together.
std::vector<std::string> KernelsList() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    std::vector<std::string> have;
    for (std::string word; words >> word;) have.push_back(word);
    return have;
  }
  return {};
}

// Names of a mask's bits as the kernel has them.
std::vector<std::string> NamesOf(uint64_t features) {
  std::vector<std::string> names;
  for (uint64_t bit = 1; bit != 0; bit <<= 1) {
    const char* const name = core::CpuFeatureName(bit);
    if ((features & bit) != 0 && name != nullptr) names.emplace_back(name);
  }
  return names;
}

TEST(Isa, OneRowEach) {
  std::set<int32_t> ids;
  std::set<std::string> names, closed;
  std::string architecture;
  int32_t count = 0;
  for (; const kda_isa_info* row = kda_isa_row(count); ++count) {
    EXPECT_TRUE(ids.insert(row->isa).second) << row->name;
    EXPECT_TRUE(names.insert(row->name).second) << row->name;
    EXPECT_STREQ(kda_isa_name(row->isa), row->name);
    EXPECT_STRNE(row->needs, "");
    if (architecture == row->architecture) continue;
    architecture = row->architecture;
    EXPECT_TRUE(closed.insert(architecture).second) << architecture << " is in two places";
    EXPECT_EQ(core::Isas().rows[count].needs, 0u) << "the first of its architecture";
  }
  EXPECT_EQ(count, core::Isas().count);
  EXPECT_EQ(kda_isa_row(-1), nullptr);
  for (const core::Isa& isa : core::Isas()) {
    const bool of_this =
        std::string(isa.info.architecture) == core::Isas().First().info.architecture;
    EXPECT_EQ(isa.kernels != nullptr, of_this) << isa.info.name;
  }
}

TEST(Isa, AgreesWithTheKernel) {
  const std::vector<std::string> have = KernelsList();
  if (have.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const Cap none(nullptr);
  for (const core::Isa& isa : core::Isas()) {
    bool all = isa.kernels != nullptr;
    for (const std::string& name : NamesOf(isa.needs)) {
      all = all && std::find(have.begin(), have.end(), name) != have.end();
    }
    EXPECT_EQ(core::IsaAvailable(isa.info.isa), all) << isa.info.name;
  }
}

TEST(Isa, CapIsRespected) {
  for (const kda_isa cap : IsasOfBuild()) {
    const Cap set(kda_isa_name(cap));
    const core::IsaChoice here = core::IsasHere();
    EXPECT_EQ(IsaThatRuns(), here.Best().info.isa);
    EXPECT_EQ(here.cap, core::Isas().Find(cap));
    for (const core::Isa& isa : core::Isas()) {
      EXPECT_EQ(kda_isa_available(isa.info.isa), here.MachineHas(isa) && &isa <= here.cap ? 1 : 0);
    }
  }
  const Cap empty("");
  EXPECT_EQ(core::IsasHere().cap, nullptr);
  EXPECT_EQ(IsaThatRuns(), core::IsasHere().Best().info.isa);
}

TEST(Isa, NamesOutsideTheTable) {
  EXPECT_EQ(kda_isa_available(KDA_ISA_AUTO), 0);
  EXPECT_EQ(kda_isa_available(-1), 0);
  EXPECT_EQ(kda_isa_available(1000), 0);
}

// A table with all there can be: branches instead of a chain, one that is slow on some machines,
// another architecture.
TEST(Isa, ChoiceInAnyTable) {
  const auto* const here = core::Isas().First().kernels;
  constexpr uint64_t kBasic = 1, kWide = 2, kDot = 4, kFastDot = 8, kTiles = 16;
  const core::Isa rows[] = {
      {{1, "first", "a", ""}, 0, 0, here, nullptr},
      {{2, "basic", "a", ""}, kBasic, 0, here, nullptr},
      {{3, "wide", "a", ""}, kBasic | kWide, 0, here, nullptr},
      {{7, "dot", "a", ""}, kBasic | kWide | kDot, kFastDot, here, nullptr},
      {{5, "tiles", "a", ""}, kBasic | kTiles, 0, here, nullptr},
      {{6, "other", "b", ""}, 0, 0, nullptr, nullptr},
  };
  const core::IsaTable table = {rows, 6};
  const auto best = [&](uint64_t features, const char* cap) {
    const core::IsaChoice choice = {table, features, cap == nullptr ? nullptr : table.Named(cap)};
    return std::string(choice.Best().info.name);
  };
  const auto names = [&](uint64_t features, const char* cap) {
    return core::IsaChoice{table, features, cap == nullptr ? nullptr : table.Named(cap)}.Names();
  };
  constexpr uint64_t kAll = kBasic | kWide | kDot | kFastDot | kTiles;
  EXPECT_EQ(best(0, nullptr), "first");
  EXPECT_EQ(best(kWide, nullptr), "first");
  EXPECT_EQ(best(kBasic | kWide, nullptr), "wide");
  EXPECT_EQ(best(kBasic | kWide | kDot, nullptr), "wide");
  EXPECT_EQ(names(kBasic | kWide | kDot, nullptr), "first, basic, wide, dot");
  EXPECT_EQ(best(kBasic | kWide | kDot | kFastDot, nullptr), "dot");
  EXPECT_EQ(best(kBasic | kTiles, nullptr), "tiles");
  EXPECT_EQ(names(kBasic | kTiles, nullptr), "first, basic, tiles");
  EXPECT_EQ(best(kBasic | kTiles, "dot"), "basic");
  EXPECT_EQ(best(kAll, nullptr), "tiles");
  EXPECT_EQ(best(kAll, "dot"), "dot");
  EXPECT_EQ(best(kAll, "wide"), "wide");
  EXPECT_EQ(best(kAll & ~kFastDot, "dot"), "wide");
  EXPECT_EQ(best(kAll, "first"), "first");
  EXPECT_EQ(names(kAll, "first"), "first");
  EXPECT_EQ(table.Named("other"), nullptr);
  EXPECT_EQ(table.Find(6), &rows[5]);
  EXPECT_EQ(table.Find(4), nullptr);
}

TEST(Isa, UnknownCap) {
  const Cap set("avx1024");
  std::vector<std::string> words = {"\"avx1024\""};
  for (const kda_isa isa : IsasOfBuild()) words.emplace_back(kda_isa_name(isa));
  ExpectRefused({{"auto", [](auto*) {}, KDA_ERROR_OPTION, "KDA_MAX_ISA", words}});
  SmallCase forced;  // does not ask for a choice
  forced.options.isa = core::Isas().First().info.isa;
  ExpectAccepted(&forced);
}

TEST(Isa, CapOfAnotherArchitecture) {
  for (const core::Isa& isa : core::Isas()) {
    if (isa.kernels != nullptr) continue;
    const Cap set(isa.info.name);
    ExpectRefused({{"auto", [](auto*) {}, KDA_ERROR_OPTION, "KDA_MAX_ISA", {isa.info.name}}});
  }
}

TEST(Isa, LongUnknownCap) {
  const Cap set(std::string(100000, 'x').c_str());
  ExpectRefused({{"auto",
                  [](auto*) {},
                  KDA_ERROR_OPTION,
                  "KDA_MAX_ISA",
                  {"xxx", core::Isas().First().info.name}}});
}

TEST(Isa, ForcedAndUnavailable) {
  const std::string first = core::Isas().First().info.name;
  const Cap set(first.c_str());
  for (const core::Isa& isa : core::Isas()) {
    if (&isa == &core::Isas().First()) continue;
    ExpectRefused({{isa.info.name,
                    [&](auto* s) { s->options.isa = isa.info.isa; },
                    KDA_ERROR_UNAVAILABLE,
                    "isa",
                    {std::string(isa.info.name) + " is forced", "available here: " + first,
                     core::IsasHere().MachineHas(isa) ? "KDA_MAX_ISA is " + first
                                                      : "this machine does not have it"}}});
  }
}

TEST(Isa, ForcedIsWhatRuns) {
  const Cap none(nullptr);
  for (const kda_isa isa : IsasOfBuild()) {
    if (kda_isa_available(isa) == 0) continue;
    SmallCase small;
    small.options.isa = isa;
    Plan plan;
    ASSERT_TRUE(Plan::Create(small.problem, small.options, &plan).ok());
    EXPECT_EQ(plan.Info().isa, isa);
    EXPECT_NE(plan.Describe().find(std::string("cpu ") + kda_isa_name(isa) + ","),
              std::string::npos);
  }
}

int times_asked;

// Plans on a machine that has everything, whose system answers requests for the tile registers.
class Tiles : public ::testing::Test {
 protected:
  Tiles() : rows_(core::Isas().begin(), core::Isas().end()) {
    amx_ = rows_.data() + (core::Isas().Find(KDA_ISA_AMX) - core::Isas().begin());
    amx_->needs |= core::kAmxTile;  // not on the model
    small_.problem.q = small_.problem.k = Dense(KDA_BF16, {1, 6, 2, 32});
    small_.problem.v = Dense(KDA_BF16, {1, 6, 4, 3});
    small_.problem.g = Dense(KDA_F32, {1, 6, 4, 32});
    small_.problem.dt_bias = Dense(KDA_F32, {4, 32});
    small_.problem.initial_state = small_.problem.final_state = Dense(KDA_F32, {1, 4, 32, 3});
  }

  void SetUp() override {
    if (amx_->kernels == nullptr) GTEST_SKIP() << "this build has no amx";
  }

  kda_status Choose(bool granted) {
    times_asked = 0;
    core::IsaChoice here = {{rows_.data(), core::Isas().count}, ~uint64_t{0}, nullptr};
    here.ask_for_tiles =
        granted ? +[] { return ++times_asked > 0; } : +[] { return ++times_asked == 0; };
    plan_ = std::make_unique<kda_plan>();
    reasons_.clear();
    error_ = {};
    kda_status status = core::CheckProblem(small_.problem, plan_.get(), &error_);
    if (status == KDA_OK) {
      status = core::CheckOptions(small_.options, here, plan_.get(), &reasons_, &error_);
    }
    if (status == KDA_OK) {
      status = core::ChooseProducts(small_.options, here, plan_.get(), &reasons_, &error_);
    }
    return status;
  }

  SmallCase small_;
  std::vector<core::Isa> rows_;
  core::Isa* amx_;
  std::unique_ptr<kda_plan> plan_;
  std::string reasons_;
  kda_error error_;
};

TEST_F(Tiles, GrantedTheyAreUsed) {
  for (const kda_isa isa : {KDA_ISA_AUTO, KDA_ISA_AMX}) {
    small_.options.isa = isa;
    ASSERT_EQ(Choose(true), KDA_OK) << error_.message;
    EXPECT_EQ(times_asked, 1);
    EXPECT_EQ(plan_->execution.isa, KDA_ISA_AMX);
    EXPECT_TRUE(plan_->bf16_products);
    EXPECT_EQ(reasons_, "");
  }
}

TEST_F(Tiles, RefusedThePlanSaysWhy) {
  ASSERT_EQ(Choose(false), KDA_OK) << error_.message;
  EXPECT_EQ(times_asked, 1);
  EXPECT_EQ(plan_->execution.isa, KDA_ISA_AVX512_BF16);
  EXPECT_TRUE(plan_->bf16_products);
  EXPECT_EQ(reasons_, "; amx off: the system refuses this process the tile registers");
  rows_[static_cast<size_t>(core::Isas().Find(KDA_ISA_AVX512_BF16) - core::Isas().begin())]
      .auto_needs = core::kAmxTile;  // which avx512_bf16 then lacks, too
  ASSERT_EQ(Choose(false), KDA_OK) << error_.message;
  EXPECT_EQ(plan_->execution.isa, KDA_ISA_AVX512);
  EXPECT_FALSE(plan_->bf16_products);
}

TEST_F(Tiles, RefusedAndForced) {
  small_.options.isa = KDA_ISA_AMX;
  EXPECT_EQ(Choose(false), KDA_ERROR_UNAVAILABLE);
  EXPECT_STREQ(error_.argument, "isa");
  EXPECT_STREQ(error_.message,
               "isa: amx is forced, but the system refuses this process the tile registers; "
               "available here: baseline, avx2, avx512, avx512_bf16");
}

// What runs fp32 kernels asks for nothing, so that nothing can be refused.
TEST_F(Tiles, OnlyBf16ProductsAsk) {
  const struct {
    const char* name;
    std::function<void(SmallCase*)> change;
  } changes[] = {
      {"decode", [](auto* s) { s->problem.mode = KDA_DECODE; }},
      {"fp32", [](auto* s) { s->problem.q.dtype = s->problem.k.dtype = KDA_F32; }},
      {"fp16", [](auto* s) { s->problem.v.dtype = KDA_F16; }},
      {"K = 4",
       [](auto* s) {
         const SmallCase original;
         static_cast<kda_problem&>(s->problem) = original.problem;
         s->problem.q.dtype = s->problem.k.dtype = s->problem.v.dtype = KDA_BF16;
       }},
      {"fuse off", [](auto* s) { s->options.switches_off = KDA_SWITCH_FUSE; }},
      {"safe_gate off", [](auto* s) { s->options.switches_off = KDA_SWITCH_SAFE_GATE; }},
      {"neumann64", [](auto* s) { s->options.solver = KDA_SOLVER_NEUMANN64; }},
      {"avx512_bf16", [](auto* s) { s->options.isa = KDA_ISA_AVX512_BF16; }},
  };
  const kda_problem problem = small_.problem;
  const kda_options options = small_.options;
  for (const auto& change : changes) {
    for (const kda_isa isa : {KDA_ISA_AUTO, KDA_ISA_AMX}) {
      SCOPED_TRACE(change.name);
      static_cast<kda_problem&>(small_.problem) = problem;
      static_cast<kda_options&>(small_.options) = options;
      small_.options.isa = isa;
      change.change(&small_);
      ASSERT_EQ(Choose(false), KDA_OK) << error_.message;
      EXPECT_EQ(times_asked, 0);
      EXPECT_EQ(plan_->execution.isa,
                small_.options.isa == KDA_ISA_AUTO ? KDA_ISA_AMX : small_.options.isa);
      EXPECT_EQ(reasons_.find("amx"), std::string::npos) << reasons_;
    }
  }
}

}  // namespace
}  // namespace kda::test
