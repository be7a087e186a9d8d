// Group C: the state on its way in, out and onwards.
#include <gtest/gtest.h>

#include <cmath>

#include "support/engine_test.h"
#include "support/generator.h"
#include "support/goldens.h"
#include "support/isas.h"
#include "support/parts.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

KDA_CASE(CaseC01);
KDA_CASE(CaseC02);
KDA_CASE(CaseC03);
KDA_CASE(CaseC04);
KDA_CASE(CaseC05);
KDA_CASE(CaseC06);
KDA_CASE(CaseC08);
KDA_CASE(CaseC14);
KDA_CASE(Decode);

// (a) One element of the state, read by a query: T tokens of which only the first asks.
Case ReadOneElement(int64_t T, int64_t query) {
  Case c = Zeros(T, 1);
  c.scale = 1;
  c.S0.assign(128 * 128, 0.0);
  c.State(0, 0, 3, 97) = 1;
  c.Q(0, 0, query) = 1;
  return c;
}

// (b) One element written by a key and a value.
Case WriteOneElement(int64_t T) {
  Case c = Zeros(T, 1);
  c.scale = 1;
  c.Key(0, 0, 5) = 1;
  c.Value(0, 0, 9) = 1;
  c.Beta(0, 0) = 1;
  return c;
}

void ExpectOnly(const std::vector<double>& x, size_t at) {
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], i == at ? 1 : 0) << i;
}

TEST_P(CaseC01, Layout) {
  for (kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
    for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
      for (int64_t T : {1, 65}) {
        for (const Config& config : ConfigsFor(mode)) {
          SCOPED_TRACE(config.Name() + " T " + std::to_string(T));
          Case c = ReadOneElement(T, 3);
          c.order = order;
          c.mode = mode;
          const Result read = RunCase(c, config);
          ExpectOnly(read.o.values, 97);
          ExpectOnly(read.S.values, 3 * 128 + 97);
          c = ReadOneElement(T, 97);
          c.order = order;
          c.mode = mode;
          for (double x : RunCase(c, config).o.values) ASSERT_EQ(x, 0);
          c = WriteOneElement(T);
          c.order = order;
          c.mode = mode;
          c.checkpoint_every = T;
          const Result written = RunCase(c, config);
          ExpectOnly(written.S.values, 5 * 128 + 9);
          ExpectOnly(written.checkpoints.values, 5 * 128 + 9);
        }
      }
    }
  }
}

// What one backend leaves another continues.
TEST_P(CaseC01, EveryPairOfBackends) {
  const Case c = StdK();
  const Oracle oracle = Solve(c);
  for (const Engine& engine : Engines()) {
    if (engine.backend == KDA_BACKEND_CPU && !WhyNot(engine.isa).empty()) continue;
    Config other;
    other.backend = engine.backend;
    other.isa = engine.isa;
    const Result first = RunCase(Slice(c, 0, 100, 0), Base());
    Case rest = AsDecode(Slice(c, 100, 130, -1));
    rest.S0 = first.S.values;
    const Result second = RunCase(rest, other);
    EXPECT_LE(ErrorOf(second.S.values, oracle.S).rel_f, ProductsError(first.info.products))
        << engine.name;
  }
}

TEST_P(CaseC01, RectangularStatesInBothOrders) {
  for (kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
    for (kda_dtype dtype : {KDA_F32, KDA_BF16}) {
      Case c = Standard(Std(41, 90, 2).Dims(64, 128).Packed({0, 0, 90}));
      c.order = order;
      c.checkpoint_every = 30;
      c.dtypes.initial = c.dtypes.final = c.dtypes.checkpoints = dtype;
      for (double& x : c.S0) x = reference::Round(dtype, x);
      ExpectRight(c);
      c.mode = KDA_DECODE;
      ExpectRight(c, {Base()});
    }
  }
}

void ExpectParts(const Case& c, const std::vector<Part>& parts, const Config& config,
                 const Oracle& oracle) {
  const Result result = RunInParts(c, parts, config);
  const double limit = ProductsError(result.info.products);
  EXPECT_LE(ErrorOf(result.o.values, oracle.o).rel_f, limit);
  EXPECT_LE(ErrorOf(result.S.values, oracle.S).rel_f, limit);
}

TEST_P(CaseC02, SplitAnywhere) {
  const Case c = StdF();
  const Oracle oracle = Solve(c);
  for (const Config& config : {Base(), Base().Off(KDA_SWITCHES_ALL)}) {
    for (int64_t s : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 150, 199}) {
      SCOPED_TRACE(config.Name() + " at " + std::to_string(s));
      ExpectParts(c, {{s, KDA_PREFILL}, {200 - s, KDA_PREFILL}}, config, oracle);
    }
    ExpectParts(c, {{64, KDA_PREFILL}, {1, KDA_PREFILL}, {135, KDA_PREFILL}}, config, oracle);
    ExpectParts(c, {{1, KDA_PREFILL}, {198, KDA_PREFILL}, {1, KDA_PREFILL}}, config, oracle);
  }
  ExpectParts(c, OneByOne(200, KDA_PREFILL), Base(), oracle);
}

TEST_P(CaseC03, PrefillThenDecode) {
  const Case c = StdK();
  const Oracle oracle = Solve(c);
  for (int64_t s : {0, 1, 63, 64, 130}) {
    SCOPED_TRACE(s);
    std::vector<Part> parts = {{s, KDA_PREFILL}};
    for (const Part& p : OneByOne(130 - s, KDA_DECODE)) parts.push_back(p);
    ExpectParts(c, parts, Base(), oracle);
  }
}

TEST_P(CaseC03, AFreshSequenceIgnoresWhatItsSlotHolds) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case c = Standard(Std(4, 3, 3).Packed({0, 1, 3}));
    c.mode = mode;
    c.pool = 2;
    c.slots = {1, 0};
    c.has_initial = {0, 1};
    std::fill(c.S0.begin() + 3 * 128 * 128, c.S0.end(), kNan);
    const auto configs = ConfigsFor(mode);
    ExpectRight(c, configs);
    c.in_place = true;
    ExpectRight(c, configs);
  }
}

TEST_P(CaseC04, AbsentInitialStateIsZeros) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    for (kda_dtype dtype : {KDA_F32, KDA_BF16}) {
      Case given = StdB();
      given.mode = mode;
      given.dtypes.initial = dtype;
      Case absent = given;
      std::fill(given.S0.begin(), given.S0.end(), 0.0);
      absent.S0.clear();
      const auto configs = ConfigsFor(mode);
      for (const Config& config : configs) {
        EXPECT_TRUE(SameBits(RunCase(given, config), RunCase(absent, config))) << config.Name();
      }
    }
  }
}

// Inputs are compared with what was written after every run of every test; here: in place.
TEST_P(CaseC05, InPlaceGivesTheSameBits) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    for (kda_dtype dtype : {KDA_F32, KDA_BF16}) {
      for (kda_state_order order : {KDA_STATE_KV, KDA_STATE_VK}) {
        Case apart = StdB();
        apart.mode = mode;
        apart.order = order;
        apart.dtypes.initial = apart.dtypes.final = dtype;
        for (double& x : apart.S0) x = reference::Round(dtype, x);
        Case in_place = apart;
        in_place.in_place = true;
        const auto configs = ConfigsFor(mode);
        for (const Config& config : configs) {
          EXPECT_TRUE(SameBits(RunCase(apart, config), RunCase(in_place, config))) << config.Name();
        }
      }
    }
  }
}

TEST_P(CaseC06, StateDtypes) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    for (kda_dtype initial : {KDA_F32, KDA_BF16}) {
      for (kda_dtype final : {KDA_F32, KDA_BF16}) {
        Case c = Standard(Std(6, 70, 2).Packed({0, 1, 70}));
        c.mode = mode;
        c.dtypes.initial = initial;
        c.dtypes.final = final;
        for (double& x : c.S0) x = reference::Round(initial, x);
        ExpectRight(c, ConfigsFor(mode));
      }
    }
  }
}

// The state is wider than fp16 and must stay so.
TEST_P(CaseC06, LargeStatesSurvive) {
  for (double large : {65536.0, 1e30}) {
    for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
      Case c = Standard(Std(6, 70, 1));
      c.mode = mode;
      SetLogGate(&c, 0);
      SetBeta(&c, 0);
      c.State(0, 0, 7, 9) = F32(large);
      const auto configs = ConfigsFor(mode);
      for (const Config& config : configs) {
        EXPECT_EQ(RunCase(c, config).S.values[7 * 128 + 9], F32(large)) << config.Name();
      }
      ExpectRight(c, configs);
    }
  }
}

TEST_P(CaseC08, StateNotAskedFor) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case with = StdB();
    with.mode = mode;
    Case without = with;
    without.want_state = false;
    const auto configs = ConfigsFor(mode);
    for (const Config& config : configs) {
      const Result a = RunCase(with, config), b = RunCase(without, config);
      EXPECT_TRUE(SameBits(a.o.bits, b.o.bits)) << config.Name();
      EXPECT_TRUE(b.S.bits.empty());
    }
    without.S0.clear();
    ExpectRight(without, configs);
  }
}

// Runs of StdB and of longer problems on memory that held all sorts of things before.
TEST_P(CaseC14, OldMemoryNeverMatters) {
  std::vector<Case> cases = {StdB()};
  if (!FastTests()) {
    for (int64_t T : {771, 968, 1303}) cases.push_back(Standard(Std(14, T, 1)));
  }
  for (const Case& c : cases) {
    for (const Config& config : {Base().Threads(2), Base().Off(KDA_SWITCHES_ALL)}) {
      Runner runner(c, config);
      const Result first = runner.Run(0);
      for (unsigned char byte : {0x00, 0xFF, 0x7F, 0x3F, 0x80, 0xC2, 0x01, 0xA5, 0x55}) {
        EXPECT_TRUE(SameBits(first, runner.Run(byte))) << config.Name();
      }
    }
  }
}

// The workspace of one problem, as it was left, for another.
TEST_P(CaseC14, TheWorkspaceOfAnotherProblem) {
  const Case a = StdB(), b = StdG();
  Runner first(a, Base()), second(b, Base());
  const size_t size =
      std::max(first.plan().Info().workspace_size, second.plan().Info().workspace_size);
  Guarded shared(static_cast<int64_t>(size), 0, kOutputBand);
  const auto run = [&](Runner* runner) {
    Args args = runner->MakeArgs();
    args.workspace = shared.data();
    args.workspace_size = size;
    EXPECT_TRUE(runner->plan().Run(args).ok());
    return runner->Read();
  };
  const Result clean_a = first.Run(0), clean_b = second.Run(0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(SameBits(clean_a, run(&first)));
    EXPECT_TRUE(SameBits(clean_b, run(&second)));
  }
}

TEST_P(Decode, EveryGoldenTokenByToken) {
  for (const Golden& golden : Goldens()) {
    if (golden.name == "LInF64") continue;
    SCOPED_TRACE(golden.name);
    Case c = AsDecode(golden.make());
    ExpectRight(c, {Base()});
  }
}

TEST_P(Decode, OneTokenOfManySequences) {
  for (int64_t heads : {1, 2, 3, 8, 16, 24}) {
    const int64_t batch = 9;
    Case c = Standard(Std(51, batch, heads).Packed({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    c.B = batch;
    c.T = 1;
    c.cu.clear();
    c.mode = KDA_DECODE;
    ExpectRight(c, {Base(), Base().Threads(3)});
    c.dtypes.o = KDA_BF16;
    c.in_place = true;
    ExpectRight(c, {Base()});
  }
}

}  // namespace
}  // namespace kda::test
