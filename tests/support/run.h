// Runs a case through the library: every tensor between guard bands, outputs and workspace poisoned
// beforehand, everything that must not change checked afterwards.
#ifndef KDA_TESTS_SUPPORT_RUN_H_
#define KDA_TESTS_SUPPORT_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kda/kda.hpp"
#include "support/buffers.h"
#include "support/case.h"

namespace kda::test {

// How a case is run.
struct Config {
  kda_backend backend = KDA_BACKEND_CPU;
  kda_isa isa = KDA_ISA_AUTO;
  kda_solver solver = KDA_SOLVER_AUTO;
  int32_t threads = 1;
  uint32_t switches_off = 0;
  kda_executor executor = {nullptr, nullptr};

  Config Off(uint32_t switches) const;
  Config With(kda_solver s) const;
  Config Threads(int32_t n) const;
  std::string Name() const;
};

struct Result {
  kda::Status status;
  PlanInfo info;
  std::string description;
  Array o;            // [B, T, HV, V]
  Array S;            // [states, HV, K, V]; empty where not asked for
  Array checkpoints;  // [C, HV, K, V]
};

// The buffers of a case, and its plan under one configuration.
class Runner {
 public:
  // `edit` changes the problem last, for what a Case cannot say.
  Runner(const Case& c, const Config& config, const std::function<void(Problem*)>& edit = nullptr);

  const kda::Status& status() const { return status_; }  // of making the plan
  const kda::Plan& plan() const { return plan_; }
  const Problem& problem() const { return problem_; }
  Args MakeArgs() const;

  // Fills outputs and workspace with `byte`, runs, and expects guard bands and inputs intact.
  Result Run(unsigned char byte);
  // Runs and no more: for many threads at once, each with its own Runner.
  kda::Status RunOnly() const { return plan_.Run(MakeArgs()); }
  void Poison(unsigned char byte);
  Result Read() const;

  TensorBuffer& o() { return o_; }

 private:
  void MakeTensors();
  void CheckGuards() const;

  const Case c_;
  Problem problem_;
  kda::Plan plan_;
  kda::Status status_;
  TensorBuffer q_, k_, v_, g_, beta_, A_log_, dt_bias_, initial_, o_, final_, checkpoints_;
  Guarded workspace_;
};

// Runs `c` twice, with differently poisoned memory, and expects success and the same bits (once
// where the case is large or the backend is the reference).
Result RunCase(const Case& c, const Config& config);

inline constexpr unsigned char kPoisonNan = 0xFF;
inline constexpr unsigned char kPoisonHuge = 0x7F;

// Whether every element still holds the poison of RunCase's last pass.
bool IsPoison(const std::vector<uint32_t>& bits, kda_dtype dtype, unsigned char byte);

// Parts of results: rows [first, last) in [0, B * T) of o, all heads or one; one state.
std::vector<uint32_t> RowBits(const Case& c, const Array& o, int64_t first, int64_t last);
std::vector<uint32_t> RowBits(const Case& c, const Array& o, int64_t first, int64_t last,
                              int64_t head);
std::vector<uint32_t> StateBits(const Case& c, const Array& S, int64_t row);
std::vector<uint32_t> StateBits(const Case& c, const Array& S, int64_t row, int64_t head);
// The state as a case's S0 continues from it.
std::vector<double> StateValues(const Case& c, const Array& S, int64_t row);

}  // namespace kda::test

#endif  // KDA_TESTS_SUPPORT_RUN_H_
