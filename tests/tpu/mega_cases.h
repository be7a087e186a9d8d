// Test cases (support/case.h) for the mega kernel: as arguments of its
// program, and what that gives.
#ifndef KDA_TESTS_TPU_MEGA_CASES_H_
#define KDA_TESTS_TPU_MEGA_CASES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/oracle.h"
#include "support/tolerance.h"
#include "tpu/ir/array.h"
#include "tpu/ir/evaluator.h"
#include "tpu/mega/mega.h"

namespace kda::test {

// How a case is run.
struct MegaRun {
  tpu::ir::EvaluateOptions::Copies copies = tpu::ir::EvaluateOptions::Copies::kAtWait;
  int64_t capacity = 0;              // tokens of the arrays, at least the case's; beyond: `poison`
  double poison = kNan;              // of those rows, and of beta's padding
  std::vector<int64_t> final_slots;  // empty: the case's slots, for both
  bool precise = false;              // TpuProblem::precise
  int unroll = 0;                    // MegaOptions::unroll; 0: as the defaults have it
  const tpu::MegaOptions* order = nullptr;  // instead of the defaults
};

struct MegaResult {
  tpu::ir::Array o;            // [capacity, H, 128]
  tpu::ir::Array S;            // [N or slots, H, 128, 128]; no elements: not asked for
  tpu::ir::Array checkpoints;  // [rows, H, 128, 128]
};

tpu::TpuProblem MegaProblem(const Case& c, const MegaRun& run = {});
std::vector<tpu::ir::Array> MegaArguments(const Case& c, const MegaRun& run = {});
MegaResult RunMega(const Case& c, const MegaRun& run = {});

// Against the recurrence: every element finite, o zero where no live sequence is, states and
// checkpoints that are not due untouched.
struct MegaErrors {
  double o = 0, S = 0, checkpoints = 0;  // relF
  double part = 0;                       // the largest of one head of one sequence
  double max_o = 0;                      // max |o - ref| / max |ref|
  std::string fault;                     // what is wrong beyond that; empty: nothing
};
MegaErrors ErrorsOf(const Case& c, const MegaResult& result, const Oracle& oracle);
// Runs, compares and records the errors; gives what the kernel gave.
MegaResult CheckMega(const Case& c, double limit = kTpuLimit, const MegaRun& run = {});

// Rows [first, first + rows) of the leading dimension, all heads or one, bit for bit.
std::vector<unsigned char> BitsOf(const tpu::ir::Array& a, int64_t first, int64_t rows,
                                  int64_t head = -1);
bool AllZero(const std::vector<unsigned char>& bits);
// Rows [first, first + rows) of `a` are those of `b` from `b_first` on.
bool SameRows(const tpu::ir::Array& a, int64_t first, int64_t rows, const tpu::ir::Array& b,
              int64_t b_first, int64_t head = -1);
// Everything the same.
testing::AssertionResult SameBits(const MegaResult& a, const MegaResult& b);

// --- Cases. g and beta are stored as the kernel takes them: g in bf16. ---

enum class MegaGate { kBounded, kSoftplus, kLog };
std::string Name(MegaGate gate);
std::string Name(Regime regime);

// Sequences of these lengths in a regime, whatever the gate; kZero: no decay.
Case MegaStandard(uint64_t seed, int64_t heads, const std::vector<int64_t>& lengths, MegaGate gate,
                  Regime regime = Regime::kMix);
// Cases of the same tokens and settings side by side, as heads of one.
Case SideBySide(const std::vector<Case>& parts);
Case WithHeads(const Case& c, int64_t heads);  // in turn
Case InBf16(Case c);                           // g rounded; beta too where it is not fp32
// The same raw gate for a whole head.
void SetGateOfHead(Case* c, int64_t head, double x);

// One key for all tokens, to which noise of 1 / common its size is added, and betas in a range:
// sums of many terms that all but cancel, as long as the gate G lets them.
struct Alike {
  double common = 1e4, G = -1e-3, least_beta = 0.05, most_beta = 0.95;
};
Case KeysAlike(uint64_t seed, int64_t tokens, MegaGate gate, const Alike& alike);

// Gates whose decay is nothing, -inf among them.
std::vector<Case> TotalWipes();
Case SoftplusTails();
Case GateParameters();  // exp(A_log) beside gates of moderate size

// A_log, g and dt_bias of eight heads, whose product is of moderate size while parts of it are not.
struct ExtremeGates {
  MegaGate gate;
  double a_log[8], x[8], bias[8];
};
std::vector<ExtremeGates> AllExtremeGates();
void SetGates(Case* c, const ExtremeGates& gates);  // of eight heads, of every token

}  // namespace kda::test

#endif  // KDA_TESTS_TPU_MEGA_CASES_H_
