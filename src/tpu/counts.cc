#include "tpu/counts.h"

#include <numeric>
#include <string>
#include <vector>

#include "tpu/hlo/evaluator.h"
#include "tpu/ir/array.h"

namespace kda::tpu {

namespace {

// What is known of an input before there is any data.
ir::Array Known(const std::string& name, const TpuProblem& problem) {
  const auto count = static_cast<int32_t>(problem.sequences);
  std::vector<int32_t> values;
  if (name == "cu_seqlens") {
    int64_t token = 0;  // at most T (CheckProblem)
    values = {0};
    for (int64_t length : problem.lengths) {
      token += length;
      values.push_back(static_cast<int32_t>(token));
    }
  } else if (name == "initial_slots" || name == "final_slots") {
    values.resize(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 0);
  } else {
    return {};
  }
  return ir::Array::I32({static_cast<int64_t>(values.size())}, values);
}

// A module of the nodes that some of another's depend on.
class Part {
 public:
  explicit Part(const hlo::Module& whole)
      : whole_(whole), needed_(whole.nodes().size(), false), part_(whole.name()) {}

  void Need(int node) {
    if (needed_[static_cast<size_t>(node)]) return;
    needed_[static_cast<size_t>(node)] = true;
    for (int operand : whole_.At(node).operands) Need(operand);
  }

  // The values of `wanted`, which are needed; empty where they depend on more than `inputs`.
  std::vector<ir::Array> Evaluate(const std::vector<int>& wanted, const TpuProblem& problem) {
    std::vector<hlo::Value> copies(whole_.nodes().size());
    hlo::Arrays inputs;
    for (size_t i = 0; i < copies.size(); ++i) {
      if (needed_[i]) copies[i] = Copy(static_cast<int>(i), copies, problem, &inputs);
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      const hlo::Value value = copies[static_cast<size_t>(wanted[i])];
      if (value.valid()) part_.Output(std::to_string(i), value);
    }
    const hlo::Arrays outputs = hlo::Evaluate(part_, inputs);
    std::vector<ir::Array> values(wanted.size());
    for (const auto& [name, value] : outputs) values[std::stoul(name)] = value;
    return values;
  }

 private:
  // Not valid where it cannot be known.
  hlo::Value Copy(int index, const std::vector<hlo::Value>& copies, const TpuProblem& problem,
                  hlo::Arrays* inputs) {
    const hlo::Node& node = whole_.At(index);
    std::vector<hlo::Value> operands;
    for (int operand : node.operands) {
      operands.push_back(copies[static_cast<size_t>(operand)]);
      if (!operands.back().valid()) return {};
    }
    switch (node.op) {
      case hlo::Op::kInput: {
        const std::string& name = whole_.inputs()[static_cast<size_t>(node.ints[0])].name;
        const ir::Array value = Known(name, problem);
        if (value.empty()) return {};
        (*inputs)[name] = value;
        return part_.Input(name, node.type);
      }
      case hlo::Op::kLiteral:
        return part_.Literal(node.type, node.numbers);
      case hlo::Op::kKernel:
      case hlo::Op::kResult:
        return {};
      default:
        return part_.Emit(node.op, node.type, operands, node.ints, node.number);
    }
  }

  const hlo::Module& whole_;
  std::vector<bool> needed_;
  hlo::Module part_;
};

}  // namespace

ir::Counts CountProgram(const ir::Program& program, const TpuProblem& problem) {
  std::vector<ir::Array> arguments;
  for (const ir::Argument& argument : program.arguments) {
    if (argument.role == ir::Role::kPrefetch) arguments.push_back(Known(argument.name, problem));
  }
  return ir::Count(program, arguments);
}

KernelCounts CountsOf(const ir::Counts& counts) {
  KernelCounts result;
  result.steps = counts.steps;
  result.hbm_bytes = counts.BytesIn() + counts.BytesOut();
  for (const ir::Branch& branch : counts.branches) {
    if (!branch.label.empty()) result.lines[branch.node] = static_cast<double>(branch.taken);
  }
  return result;
}

CountsByKernel CountModule(const hlo::Module& module, const TpuProblem& problem) {
  CountsByKernel result;
  for (const hlo::Node& node : module.nodes()) {
    if (node.op != hlo::Op::kKernel) continue;
    const ir::Program& program = module.kernels()[static_cast<size_t>(node.ints[0])].program;
    const auto prefetched = static_cast<size_t>(program.Count(ir::Role::kPrefetch));
    const std::vector<int> wanted(node.operands.begin(),
                                  node.operands.begin() + static_cast<int64_t>(prefetched));
    Part part(module);
    for (int operand : wanted) part.Need(operand);
    result[program.name] = CountsOf(ir::Count(program, part.Evaluate(wanted, problem)));
  }
  return result;
}

}  // namespace kda::tpu
