// Test cases (support/case.h) as problems and arrays of TPU modules, and what such a module gives.
#ifndef KDA_TESTS_TPU_MODULE_CASE_H_
#define KDA_TESTS_TPU_MODULE_CASE_H_

#include <vector>

#include "support/case.h"
#include "tpu/hlo/evaluator.h"
#include "tpu/problem.h"

namespace kda::test {

// K = V = 128, B = 1. q, k, v are bf16, g and beta as the case says.
tpu::TpuProblem ProblemOf(const Case& c);

// Every array such a module may take, by name. What the case leaves of T is filled with NaN.
tpu::hlo::Arrays ArraysOf(const Case& c);

std::vector<double> Doubles(const tpu::ir::Array& a);
// Of states or checkpoints: rows that were not to be `written` are as `before` or, if that is
// empty, hold the NaN of memory that nothing was written to.
bool Untouched(const tpu::ir::Array& x, const std::vector<bool>& written,
               const std::vector<double>& before);

struct ModuleResult {
  std::vector<double> o, S;  // S empty: not asked for
  tpu::hlo::Arrays arrays;
};
ModuleResult RunModule(const tpu::hlo::Module& module, const Case& c);

}  // namespace kda::test

#endif  // KDA_TESTS_TPU_MODULE_CASE_H_
