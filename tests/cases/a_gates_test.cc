// Group A and D: the gate itself, read back through a state of ones, and its ends.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/recurrence.h"
#include "support/engine_test.h"
#include "support/generator.h"
#include "support/goldens.h"

namespace kda::test {
namespace {

KDA_CASE(CaseA09);
KDA_CASE(CaseA10);
KDA_CASE(CaseA11);
KDA_CASE(CaseA21);
KDA_CASE(CaseD15);

// One token and beta 0: S[c, c] becomes exp(G of channel c), o[c] scale times that.
Case GateProbe(kda_gate gate, const std::vector<double>& x) {
  const int64_t n = static_cast<int64_t>(x.size());
  Case c = Zeros(1, 1, n, n);
  StoreAsF32(&c);
  c.gate = gate;
  c.g = x;
  c.A_log = {0};
  c.q.assign(x.size(), 1.0);
  c.S0.assign(x.size() * x.size(), 0.0);
  for (int64_t i = 0; i < n; ++i) c.State(0, 0, i, i) = 1;
  return c;
}

// exp(G) with G off by 1e-6 of itself and the result rounded to fp32; a result below the normal
// numbers may be flushed.
void ExpectDecay(double decay, double G) {
  const double expected = std::exp(G);
  const double magnitude = expected == 0 ? 0 : std::fabs(G);
  EXPECT_NEAR(decay, expected, expected * 1e-6 * (1 + magnitude) + 0x1p-126) << "G " << G;
}

void ExpectDecays(const Case& c, const Config& config, const std::vector<double>& G) {
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    // Decode has no solver to force.
    if (mode == KDA_DECODE && config.solver != KDA_SOLVER_AUTO) continue;
    Case run = c;
    run.mode = mode;
    const Result result = RunCase(run, config);
    for (size_t i = 0; i < G.size(); ++i) {
      SCOPED_TRACE(config.Name() + " x " + std::to_string(c.g[i]));
      ASSERT_EQ(result.S.values.size(), G.size() * G.size());
      ExpectDecay(result.S.values[i * G.size() + i], G[i]);
      ExpectDecay(result.o.values[i] / c.Scale(), G[i]);
    }
  }
}

// The gates x, one per channel and turning with the tokens, over whole chunks: every span of G.
Case GateSweep(kda_gate gate, const std::vector<double>& x, double A_log) {
  Case c = Standard(Std(31, 150, 2));
  c.gate = gate;
  c.dtypes.g = KDA_F32;
  c.dt_bias.clear();
  c.A_log.assign(2, A_log);
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 128; ++d) {
        c.G(t, h, d) = F32(x[static_cast<size_t>(d + (d % 3 == 0 ? t : 0)) % x.size()]);
      }
    }
  }
  return c;
}

// exp(A_log) overflows where softplus underflows, or the other way round; the product does neither.
TEST_P(CaseA09, OverflowTimesUnderflow) {
  const struct {
    double A_log, x, G;
  } rows[] = {{95, -150, -std::exp(-55.0)},
              {88.8, -120, -std::exp(-31.2)},
              {-120, 1e6, -std::exp(-120.0) * 1e6}};
  for (const auto& row : rows) {
    const double A_log = F32(row.A_log);
    Case c = GateProbe(KDA_GATE_SOFTPLUS, {row.x, row.x, row.x});
    c.A_log = {A_log};
    const double G = reference::LogDecay({KDA_GATE_SOFTPLUS, 0}, row.x, A_log);
    EXPECT_NEAR(G, row.G, 1e-4 * std::fabs(row.G));
    for (const Config& config : Configs()) ExpectDecays(c, config, {G, G, G});
    ExpectRight(GateSweep(KDA_GATE_SOFTPLUS, {row.x, row.x - 3, row.x / 2}, A_log));
  }
}

// The product of the two must be right where it matters, not only where it vanishes.
TEST_P(CaseA09, ModerateDecayFromExtremeFactors) {
  for (double A_log : {80.0, 95.0, 150.0}) {
    // G = -exp(A_log + x) for such x: -e^-2, -1, -e.
    const std::vector<double> x = {-A_log - 2, -A_log, -A_log + 1};
    Case c = GateProbe(KDA_GATE_SOFTPLUS, x);
    c.A_log = {A_log};
    for (const Config& config : Configs()) {
      ExpectDecays(c, config, {-std::exp(-2.0), -1, -std::exp(1.0)});
    }
    ExpectRight(GateSweep(KDA_GATE_SOFTPLUS, x, A_log));
  }
}

const std::vector<double>& SoftplusTails() {
  static const std::vector<double>* const x = new std::vector<double>{
      -1e30, -200, -20.1, -1e-8, 0, 19.9, 20.1, 88, 89, 1000, 3e38, kInf, -kInf};
  return *x;
}

TEST_P(CaseA10, SoftplusTails) {
  std::vector<double> x = SoftplusTails(), G;
  for (double& value : x) {
    value = F32(value);
    G.push_back(value >= 30 ? -value : -std::log1p(std::exp(value)));
  }
  for (const Config& config : Configs()) ExpectDecays(GateProbe(KDA_GATE_SOFTPLUS, x), config, G);
}

TEST_P(CaseA10, SoftplusTailsInAChunk) {
  ExpectRight(GateSweep(KDA_GATE_SOFTPLUS, SoftplusTails(), 0));
}

const std::vector<double>& SigmoidTails() {
  static const std::vector<double>* const x =
      new std::vector<double>{-1e30, -104, -88, 0, 88, 104, 1e30, kInf, -kInf};
  return *x;
}

TEST_P(CaseA11, SigmoidTails) {
  std::vector<double> x = SigmoidTails(), G;
  for (double value : x) G.push_back(-5 * reference::Sigmoid(value));
  EXPECT_EQ(G.front(), 0);
  EXPECT_EQ(G[6], -5);
  Case c = GateProbe(KDA_GATE_BOUNDED, x);
  c.lower_bound = -5;
  for (const Config& config : Configs()) ExpectDecays(c, config, G);
}

TEST_P(CaseA11, SigmoidTailsInAChunk) {
  for (double A_log : {0.0, 5.0, 95.0, -95.0}) {
    Case c = GateSweep(KDA_GATE_BOUNDED, SigmoidTails(), A_log);
    c.lower_bound = -5;
    // A slope that overflows times an x of zero: still the middle of the sigmoid.
    ExpectRight(c);
  }
}

TEST_P(CaseA21, LowerBoundsBelowTheFastRoute) {
  for (double bound : {-6.0, -11.0, -11.2, -20.0, -88.0, -1000.0}) {
    SCOPED_TRACE(bound);
    Case c = Standard(Std(3, 128, 2).Packed({0, 128}).In(Regime::kSat));
    c.lower_bound = bound;
    ExpectRight(c);
    c = Standard(Std(3, 128, 2));
    c.lower_bound = bound;
    ExpectRight(c);
  }
}

TEST_P(CaseA21, ZeroLowerBoundMeansNoDecay) {
  for (double bound : {0.0, -0.0}) {
    Case c = Standard(Std(3, 100, 2));
    c.lower_bound = bound;
    Case log = c;
    SetLogGate(&log, 0);
    const Oracle oracle = Solve(log);
    for (const Config& config : Configs()) {
      EXPECT_TRUE(Matches(c, RunCase(c, config), oracle)) << config.Name();
    }
  }
}

TEST_P(CaseD15, GateTable) {
  const std::vector<double> x = {-30, -2, -0.25, 0, 1, 3, 30};
  const std::vector<double> bounded = {-4.79468150125e-26, -0.143175739169, -2.5, -3.11633487343,
                                       -4.62669106029,     -4.9928217171,   -5};
  const std::vector<double> softplus = {-2.41960960988e-13, -0.322651816747, -1.39582701153,
                                        -1.66323774299,     -3.02451375399,  -6.62130221451,
                                        -60.916019401};
  for (kda_gate gate : {KDA_GATE_BOUNDED, KDA_GATE_SOFTPLUS}) {
    const std::vector<double>& G = gate == KDA_GATE_BOUNDED ? bounded : softplus;
    Case c = GateProbe(gate, x);
    c.A_log = {0.7};  // stored as fp32: 2e-8 off, well inside the limit
    c.dt_bias.assign(x.size(), 0.25);
    c.lower_bound = gate == KDA_GATE_BOUNDED ? -5 : 0;
    for (const Config& config : Configs()) ExpectDecays(c, config, G);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(reference::LogDecay({gate, c.lower_bound}, x[i] + 0.25, 0.7), G[i],
                  1e-11 * std::fabs(G[i]));
    }
  }
}

}  // namespace
}  // namespace kda::test
