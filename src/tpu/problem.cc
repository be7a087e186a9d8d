#include "tpu/problem.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "core/limits.h"

namespace kda::tpu {

Refusal::Refusal(const std::string& kernel_name, const std::string& argument_name,
                 const std::string& value_text, const std::string& allowed_text)
    : ir::BuildError(kernel_name + ": " + argument_name + " is " + value_text + ", but must be " +
                     allowed_text),
      kernel(kernel_name),
      argument(argument_name),
      value(value_text),
      allowed(allowed_text) {}

void Refuse(const std::string& kernel, const std::string& argument, const std::string& value,
            const std::string& allowed) {
  throw Refusal(kernel, argument, value, allowed);
}

void RefuseOutside(const char* kernel, const char* argument, int64_t value, int64_t least,
                   int64_t most) {
  if (value >= least && value <= most) return;
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  Refuse(kernel, argument, std::to_string(value), least == most ? std::to_string(least) : range);
}

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

namespace {

void CheckSizes(const TpuProblem& p, const KernelTakes& takes) {
  const char* const kernel = takes.kernel;
  if (p.heads < 1 || p.heads % takes.head_multiple != 0) {
    Refuse(kernel, "heads", std::to_string(p.heads),
           takes.head_multiple == 1
               ? "at least 1"
               : "a positive multiple of " + std::to_string(takes.head_multiple));
  }
  RefuseOutside(kernel, "heads", p.heads, 1, kMostHeads);
  RefuseOutside(kernel, "tokens", p.tokens, 1, kMostTokens);
  RefuseOutside(kernel, "sequences", p.sequences, 1, kMostTokens);
  RefuseOutside(kernel, "sequences x heads", p.sequences * p.heads, 1, kMostTokens);
  RefuseOutside(kernel, "slots", p.slots, 0, takes.slots ? kMostTokens : 0);
  RefuseOutside(kernel, "slots x heads", p.slots * p.heads, 0, kMostTokens);
  RefuseOutside(kernel, "checkpoint_every", p.checkpoint_every, 0,
                takes.checkpoints ? p.tokens : 0);
  RefuseOutside(kernel, "vmem_bytes", p.vmem_bytes, 1, kMostVmemBytes);
}

void CheckLengths(const TpuProblem& p, const KernelTakes& takes) {
  const char* const kernel = takes.kernel;
  const auto count = static_cast<int64_t>(p.lengths.size());
  if (count != p.sequences) {
    Refuse(kernel, "the number of lengths", std::to_string(count),
           std::to_string(p.sequences) + ", one for each sequence");
  }
  int64_t left = p.tokens;
  for (size_t n = 0; n < p.lengths.size(); ++n) {
    RefuseOutside(kernel, ("lengths[" + std::to_string(n) + "]").c_str(), p.lengths[n], 0, left);
    left -= p.lengths[n];
  }
  if (!takes.one_token) return;
  for (size_t n = 0; n < p.lengths.size(); ++n) {
    if (p.lengths[n] == 1) continue;
    Refuse(kernel, "lengths[" + std::to_string(n) + "]", std::to_string(p.lengths[n]),
           "1 token of each sequence");
  }
  if (p.tokens != p.sequences) {
    Refuse(kernel, "tokens", std::to_string(p.tokens),
           std::to_string(p.sequences) + ", one token per sequence");
  }
}

void CheckNumbers(const TpuProblem& p, const KernelTakes& takes) {
  const char* const kernel = takes.kernel;
  if (p.gate != KDA_GATE_BOUNDED && p.gate != KDA_GATE_SOFTPLUS && p.gate != KDA_GATE_LOG) {
    Refuse(kernel, "gate", std::to_string(static_cast<int>(p.gate)), "bounded, softplus or log");
  }
  const kda_limit_info& bound = core::LimitOf(core::Limit::kLowerBound);
  if (p.gate == KDA_GATE_BOUNDED && !(p.lower_bound >= bound.min && p.lower_bound <= bound.max)) {
    Refuse(kernel, "lower_bound", Text(p.lower_bound),
           "at least " + Text(bound.min) + " and at most " + Text(bound.max));
  }
  if (!(std::fabs(p.scale) <= std::numeric_limits<float>::max())) {
    Refuse(kernel, "scale", Text(p.scale), "a finite fp32 number");
  }
  if (p.precise && !takes.precise) Refuse(kernel, "precise", "1", "0: it is mega's");
  const auto is_float = [](ir::DType dtype) {
    return dtype == ir::DType::kBF16 || dtype == ir::DType::kF32;
  };
  if (p.gate_dtype != ir::DType::kBF16 && !(takes.fp32_gate && is_float(p.gate_dtype))) {
    Refuse(kernel, "gate_dtype", ir::ToString(p.gate_dtype),
           takes.fp32_gate ? "bf16 or f32" : "bf16");
  }
  if (!is_float(p.beta_dtype)) {
    Refuse(kernel, "beta_dtype", ir::ToString(p.beta_dtype), "bf16 or f32");
  }
}

}  // namespace

void CheckProblem(const TpuProblem& problem, const KernelTakes& takes) {
  CheckSizes(problem, takes);
  CheckLengths(problem, takes);
  CheckNumbers(problem, takes);
}

void CheckVmem(const char* kernel, const ir::Program& program) {
  const int64_t bytes = program.VmemBytes();
  if (bytes <= program.vmem_limit) return;
  Refuse(kernel, "the VMEM it takes", std::to_string(bytes) + " bytes",
         "at most " + std::to_string(program.vmem_limit));
}

}  // namespace kda::tpu
