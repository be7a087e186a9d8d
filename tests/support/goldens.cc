#include "support/goldens.h"

#include <cmath>

#include "support/generator.h"

namespace kda::test {

Case StdA() { return Standard(Std(1, 70, 2).Packed({0, 70})); }

Case StdA0() { return Standard(Std(1, 70, 2).Packed({0, 70}).NoState()); }

Case StdA1() {
  Case c = StdA();
  c.A_log.clear();
  return c;
}

Case StdA2() {
  Case c = StdA();
  c.dt_bias.clear();
  return c;
}

Case StdB() { return Standard(Std(1, 70, 2).Packed({0, 0, 5, 21, 70})); }

Case StdC() {
  Case c = Standard(Std(2, 70, 2));
  c.gate = KDA_GATE_SOFTPLUS;
  c.A_log = {F32(std::log(8.3)), F32(std::log(201.0))};
  for (size_t i = 0; i < c.g.size(); ++i) {
    const double d = static_cast<double>(i % 128);
    c.g[i] = Bf16(-14 + 20 * d / 127 + 0.5 * Normal(2, kTagG, i));
  }
  return c;
}

Case StdD() { return Standard(Std(3, 128, 16).Packed({0, 61, 128}).In(Regime::kSat)); }

Case CorrelatedKeys(double common, double G, double beta) {
  Case c = Standard(Std(7, 64, 1).NoState());
  SetLogGate(&c, G);
  SetBeta(&c, beta);
  for (size_t t = 0; t < 64; ++t) {
    double y[128], sum = 0;
    for (size_t d = 0; d < 128; ++d) {
      y[d] = Normal(7, kTagK, 128 * t + d) / std::sqrt(128.0) + (d == 0 ? common : 0);
      sum += y[d] * y[d];
    }
    for (size_t d = 0; d < 128; ++d) c.k[128 * t + d] = Bf16(y[d] / std::sqrt(sum));
  }
  return c;
}

Case StdE() { return CorrelatedKeys(3, -0.01, 0.95); }

Case StdF() { return Standard(Std(4, 200, 3).Packed({0, 200})); }

Case StdG() { return Standard(Std(5, 33, 2).ValueHeads(4).Packed({0, 12, 33})); }

Case StdH() {
  Case c = Standard(Std(6, 40, 1).NoState());
  SetLogGate(&c, -0.05);
  c.qk_l2norm = true;
  for (size_t i = 0; i < c.q.size(); ++i) {
    c.q[i] = Bf16(1e-3 * Bf16(Normal(6, kTagQ, i)));
    c.k[i] = Bf16(1e-3 * Bf16(Normal(6, kTagK, i)));
  }
  return c;
}

Case StdI() {
  Case c = Standard(Std(8, 4096, 1));
  SetLogGate(&c, -8e-5);
  SetBeta(&c, 0);
  return c;
}

Case StdJ() {
  Case c = Standard(Std(9, 4096, 1));
  SetLogGate(&c, -1e-3);
  return c;
}

Case StdK() { return Standard(Std(10, 130, 2)); }

Case StdK128() { return Slice(StdK(), 0, 128, 0); }

Case StdL() {
  Case c = Standard(Std(12, 64, 1));
  SetLogGate(&c, -40);
  for (size_t i = 0; i < c.g.size(); i += 2) c.g[i] = F32(-0.001);
  return c;
}

namespace {

// The single elements of golden L were made with a gate of -0.001 in fp64, which no stored dtype
// holds; its norms and probes with the fp32 gate.
Case StdLInF64() {
  Case c = StdL();
  for (size_t i = 0; i < c.g.size(); i += 2) c.g[i] = -0.001;
  return c;
}

}  // namespace

const std::vector<Golden>& Goldens() {
  static const std::vector<Golden>* const goldens = new std::vector<Golden>{
      {"A",
       StdA,
       1.74977235645,
       -1.07568641559,
       33.3076595516,
       -13.0005530579,
       {0.0181432669238, -0.0141694097814, -0.00749087424452},
       {-0.169751231943, -0.170295173976, 0.272856563716}},
      {"A0", StdA0, 1.68622319297, -0.920809979206, 33.0095518374, -17.4665058876, {}, {}},
      {"A1", StdA1, 1.81082836191, -1.20108972967, 34.7354348606, -12.7637005355, {}, {}},
      {"A2", StdA2, 1.75059684848, -1.16928063217, 33.2703947603, -12.4756434942, {}, {}},
      {"B",
       StdB,
       1.51939159821,
       -0.955245074939,
       46.4536080753,
       -22.3058407569,
       {0.0179698793565, -0.0129026409923, -0.00892993714562},
       {0.0238418597728, -0.0675577670336, -0.19721698761}},
      {"C",
       StdC,
       1.92278491462,
       0.165017044543,
       36.1463325501,
       -10.6023720505,
       {-0.00500997968333, 0.0494852313875, 0.00343985356163},
       {0.356748479594, -0.248558627951, -0.460943673609}},
      {"D",
       StdD,
       2.19777910253,
       0.61884449912,
       39.4905105212,
       28.9621532267,
       {0.0022583330495, 0.00105010944181, 0.006501612329},
       {0.0117236827587, -0.00185268330243, -0.000228175294856}},
      {"E",
       StdE,
       1.43892192534,
       0.434777749611,
       28.4120609246,
       -1.06146951283,
       {-0.034127488924, 0.00668361846897, 0.00106450391149},
       {1.72993837587, -0.817393070821, 0.375160582256}},
      {"F",
       StdF,
       3.72706951847,
       -2.88712304886,
       40.0582699461,
       -14.5756412214,
       {-0.00170929627591, -0.0165330047329, 0.00740202915104},
       {-0.166629742987, 0.53378719684, -0.225537341263}},
      {"G",
       StdG,
       1.22804003012,
       0.309068179136,
       44.4854719889,
       -6.41257320024,
       {-0.000751426208659, -0.0147191285359, -0.000806765462024},
       {-0.0592033436991, 0.0768572225069, -0.304647255451}},
      {"H",
       StdH,
       0.855500164505,
       0.547503007596,
       19.804570882,
       -13.6125692664,
       {-0.00813414484101, 0.00477354299345, -0.017954940399},
       {-0.0359501562188, -0.107573423335, -0.0458087154431}},
      {"I", StdI, 5.4631804799, 2.33445303709, 9.19562616753, 2.11825901653, {}, {}},
      {"J",
       StdJ,
       34.7858674877,
       36.8101839816,
       69.7040062451,
       -60.9933233146,
       {-0.000456925447623, -0.0456231066592, 0.0153451577312},
       {0.06897993043, 0.133475259263, -0.0977263515789}},
      {"K",
       StdK,
       2.89517867909,
       0.915786567779,
       39.6227716846,
       19.3556190198,
       {0.00944665611811, -0.0308623671537, 0.00860840457216},
       {0.175762283925, 0.274437751994, 0.134853399348}},
      {"K128", StdK128, 0, 0, 39.6111044776, 13.5231730748, {}, {0.155060021221}},
      {"L", StdL, 1.52207894538, -0.789730114899, 31.0216733308, 11.8979067216, {}, {}},
      {"LInF64",
       StdLInF64,
       0,
       0,
       0,
       0,
       {0.0118047716939, 0.0128548095999, 0.0239896792599},
       {0.202774211722, -0.191492943721, -0.277564359176}},
  };
  return *goldens;
}

}  // namespace kda::test
