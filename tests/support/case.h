// A test case: a problem with its values in fp64, in plain [B, T, H, D] order whatever dtypes and
// strides it will be stored with. Tests read and change the fields as they like.
#ifndef KDA_TESTS_SUPPORT_CASE_H_
#define KDA_TESTS_SUPPORT_CASE_H_

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "kda/kda.h"

namespace kda::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Dtypes {
  kda_dtype qk = KDA_BF16, v = KDA_BF16, g = KDA_BF16, beta = KDA_BF16, o = KDA_F32;
  kda_dtype initial = KDA_F32, final = KDA_F32, checkpoints = KDA_F32;
};

// How a tensor lies in memory. All strides 0: dense.
struct Layout {
  std::array<int64_t, 4> stride = {0, 0, 0, 0};  // in elements, in the order of the shape
  int64_t shift = 0;                             // elements its base is moved off alignment
};
// What lies around inputs and between their strided elements.
inline constexpr unsigned char kBandNan = 0xFF;   // a NaN in every dtype
inline constexpr unsigned char kBandHuge = 0x7F;  // 3.4e38 in fp32 and bf16

struct Layouts {
  Layout q, k, v, g, beta, A_log, dt_bias, o, initial, final;
};

struct Case {
  int64_t B = 1, T = 0, H = 1, HV = 1, K = 128, V = 128;
  kda_mode mode = KDA_PREFILL;
  kda_gate gate = KDA_GATE_LOG;
  kda_state_order order = KDA_STATE_KV;
  double lower_bound = 0;
  double scale = KDA_DEFAULT_SCALE;
  bool beta_logits = false;
  bool qk_l2norm = false;
  bool want_state = true;  // final_state asked for
  bool in_place = false;   // final_state is the buffer of initial_state
  Dtypes dtypes;
  Layouts layouts;
  unsigned char input_band = kBandNan;

  std::vector<int64_t> cu;  // empty: absent
  std::vector<double> q, k, v, g, beta;
  std::vector<double> A_log, dt_bias;  // empty: absent
  std::vector<double> S0;              // [states, HV, K, V]; empty: absent
  int64_t pool = 0;                    // rows of the state pool, with `slots`
  std::vector<int64_t> slots;          // empty: absent
  std::vector<int64_t> has_initial;    // empty: absent
  int64_t checkpoint_every = 0;
  std::vector<int64_t> checkpoint_offsets, checkpoint_tokens;

  int64_t Sequences() const;
  int64_t States() const { return slots.empty() ? Sequences() : pool; }
  int64_t First(int64_t n) const;  // row of sequence n in [0, B * T)
  int64_t Length(int64_t n) const;
  int64_t Checkpoints() const;  // rows
  double Scale() const;
  // What a state is rounded to after every token: decode over a window gives what as many calls
  // would. F32 where it is not rounded by more than the arithmetic is.
  kda_dtype KeptDtype() const;

  // Element of row t in [0, B * T).
  double& Q(int64_t t, int64_t h, int64_t d) { return q[Index(t, h, d, H, K)]; }
  double& Key(int64_t t, int64_t h, int64_t d) { return k[Index(t, h, d, H, K)]; }
  double& Value(int64_t t, int64_t h, int64_t d) { return v[Index(t, h, d, HV, V)]; }
  double& G(int64_t t, int64_t h, int64_t d) { return g[Index(t, h, d, HV, K)]; }
  double& Beta(int64_t t, int64_t h) { return beta[Index(t, h, 0, HV, 1)]; }
  double& State(int64_t n, int64_t h, int64_t c, int64_t j) {
    return S0[static_cast<size_t>(((n * HV + h) * K + c) * V + j)];
  }

 private:
  static size_t Index(int64_t t, int64_t h, int64_t d, int64_t heads, int64_t dim) {
    return static_cast<size_t>((t * heads + h) * dim + d);
  }
};

// A case of zeros: no decay, no state.
Case Zeros(int64_t T, int64_t H, int64_t K = 128, int64_t V = 128);

enum class Regime {
  kMix,   // bounded, every speed of decay across the channels
  kSat,   // bounded, every gate at the bound
  kSlow,  // bounded, slow everywhere
  kZero,  // log gate, no decay
  kNorm   // bounded, N(0, 1): hides most faults, never alone
};
inline constexpr Regime kRegimes[] = {Regime::kMix, Regime::kSat, Regime::kSlow};

// The standard inputs. q and k are unit vectors, beta are logits, lower_bound is -5.
struct Std {
  uint64_t seed = 1;
  int64_t T = 70, H = 2;
  int64_t HV = 0;  // 0: H
  int64_t K = 128, V = 128;
  std::vector<int64_t> cu;
  Regime regime = Regime::kMix;
  bool state = true;
  kda_dtype dtype = KDA_BF16;  // what q, k, v, g and beta are rounded to and stored in

  Std(uint64_t seed, int64_t T, int64_t H) : seed(seed), T(T), H(H) {}
  Std& ValueHeads(int64_t n) { return HV = n, *this; }
  Std& Dims(int64_t k, int64_t v) { return K = k, V = v, *this; }
  Std& Packed(std::vector<int64_t> offsets) { return cu = std::move(offsets), *this; }
  Std& In(Regime r) { return regime = r, *this; }
  Std& NoState() { return state = false, *this; }
  Std& As(kda_dtype d) { return dtype = d, *this; }
};
Case Standard(const Std& std);

// Log gates `G` everywhere, in fp32; A_log and dt_bias are dropped.
void SetLogGate(Case* c, double G);
// Activated betas, in fp32.
void SetBeta(Case* c, double beta);

// Everything as fp32 (values unchanged).
void StoreAsF32(Case* c);

// Offsets of sequences with these lengths.
std::vector<int64_t> Offsets(const std::vector<int64_t>& lengths);

// The same in KDA_DECODE mode.
Case AsDecode(Case c);

// Tokens [first, last) as one sequence, starting from `state` (row of S0; -1: none).
Case Slice(const Case& c, int64_t first, int64_t last, int64_t state);
// Sequence n alone.
Case Alone(const Case& c, int64_t n);
// All sequences of `parts` packed one after the other. The parts agree in everything but
// tokens and initial states; A_log and dt_bias are the first's.
Case Pack(const std::vector<Case>& parts);

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_CASE_H_
