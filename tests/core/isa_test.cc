// Instruction sets: forcing, and the cap KDA_MAX_ISA.
#include <stdlib.h>

#include <fstream>
#include <sstream>

#include "core/cpu_features.h"
#include "core/plan.h"
#include "small_case.h"

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
bool KernelLists(const std::vector<std::string>& flags) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    std::vector<std::string> have;
    for (std::string word; words >> word;) have.push_back(word);
    for (const std::string& flag : flags) {
      if (std::find(have.begin(), have.end(), flag) == have.end()) return false;
    }
    return true;
  }
  return false;
}

TEST(Isa, AgreesWithTheKernel) {
  if (!std::ifstream("/proc/cpuinfo")) GTEST_SKIP() << "no /proc/cpuinfo";
  const Cap none(nullptr);
  EXPECT_TRUE(core::IsaAvailable(KDA_ISA_BASELINE));
  const bool avx2 = KernelLists({"avx", "avx2", "fma", "f16c"});
  EXPECT_EQ(core::IsaAvailable(KDA_ISA_AVX2), avx2);
  EXPECT_EQ(core::IsaAvailable(KDA_ISA_AVX512),
            avx2 && KernelLists({"avx512f", "avx512bw", "avx512dq", "avx512vl"}));
}

TEST(Isa, CapIsRespected) {
  for (int32_t cap = KDA_ISA_BASELINE; cap <= KDA_ISA_AVX512; ++cap) {
    const Cap set(kda_isa_name(cap));
    const int32_t best = std::min(cap, static_cast<int32_t>(core::MachineIsa()));
    EXPECT_EQ(IsaThatRuns(), best);
    for (int32_t isa = KDA_ISA_BASELINE; isa <= KDA_ISA_AVX512; ++isa) {
      EXPECT_EQ(kda_isa_available(isa), isa <= best ? 1 : 0);
    }
  }
  const Cap empty("");
  EXPECT_EQ(IsaThatRuns(), core::MachineIsa());
}

TEST(Isa, NamesOutsideTheTable) {
  EXPECT_EQ(kda_isa_available(KDA_ISA_AUTO), 0);
  EXPECT_EQ(kda_isa_available(-1), 0);
  EXPECT_EQ(kda_isa_available(KDA_ISA_AVX512 + 1), 0);
}

TEST(Isa, UnknownCap) {
  const Cap set("avx1024");
  ExpectRefused({{"auto",
                  [](auto*) {},
                  KDA_ERROR_OPTION,
                  "KDA_MAX_ISA",
                  {"\"avx1024\"", "baseline, avx2 or avx512"}}});
  SmallCase forced;  // does not ask for a choice
  forced.options.isa = KDA_ISA_BASELINE;
  ExpectAccepted(&forced);
}

TEST(Isa, LongUnknownCap) {
  const Cap set(std::string(100000, 'x').c_str());
  ExpectRefused({{"auto", [](auto*) {}, KDA_ERROR_OPTION, "KDA_MAX_ISA", {"xxx", "baseline"}}});
}

TEST(Isa, ForcedAboveTheCap) {
  const Cap set("baseline");
  ExpectRefused({{"avx2",
                  [](auto* s) { s->options.isa = KDA_ISA_AVX2; },
                  KDA_ERROR_UNAVAILABLE,
                  "isa",
                  {"avx2 is forced", "the best here is baseline"}},
                 {"avx512",
                  [](auto* s) { s->options.isa = KDA_ISA_AVX512; },
                  KDA_ERROR_UNAVAILABLE,
                  "isa",
                  {"avx512 is forced", "the best here is baseline"}}});
}

TEST(Isa, ForcedIsWhatRuns) {
  const Cap none(nullptr);
  for (int32_t isa = KDA_ISA_BASELINE; isa <= KDA_ISA_AVX512; ++isa) {
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

}  // namespace
}  // namespace kda::test
