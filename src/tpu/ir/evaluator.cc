#include "tpu/ir/evaluator.h"

#include "core/float_mode.h"
#include "tpu/ir/evaluate_machine.h"

namespace kda::tpu::ir {

namespace evaluate {

namespace {

const char* NameOf(Op op) {
  static const char* const kNames[] = {"Argument",   "GridIndex",   "BlockArgument",
                                       "Constant",   "Iota",        "Add",
                                       "Sub",        "Mul",         "Div",
                                       "Rem",        "Min",         "Max",
                                       "And",        "Or",          "Xor",
                                       "ShiftLeft",  "ShiftRight",  "Compare",
                                       "Select",     "Exp2",        "Log",
                                       "Tanh",       "Rsqrt",       "Abs",
                                       "Reciprocal", "Convert",     "AssumeMultiple",
                                       "Bitcast",    "Broadcast",   "ShapeCast",
                                       "Slice",      "Concat",      "Rotate",
                                       "Transpose",  "ReduceSum",   "ReduceMax",
                                       "MatMul",     "PackPair",    "Load",
                                       "Store",      "StridedLoad", "StridedStore",
                                       "RefSlice",   "RefSqueeze",  "RefBitcast",
                                       "RefReshape", "EnqueueDma",  "WaitDma",
                                       "If",         "For"};
  static_assert(sizeof kNames / sizeof *kNames == static_cast<size_t>(Op::kFor) + 1);
  return kNames[static_cast<size_t>(op)];
}

}  // namespace

std::string Describe(const Program& program, int node) {
  const Node& n = program.nodes[static_cast<size_t>(node)];
  const std::string& label = program.labels[static_cast<size_t>(n.label)];
  return std::string(NameOf(n.op)) + (label.empty() ? "" : " (" + label + ")") + ", node " +
         std::to_string(node);
}

namespace {

// Subnormals are zero while it lives.
class FlushSubnormals {
  using Control = core::FloatControl;

 public:
  FlushSubnormals() : saved_(Control::Read()) { Control::Write(saved_ | Control::kFlush); }
  ~FlushSubnormals() { Control::Write(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  Control::Word saved_;
};

void CheckArguments(const Program& program, const std::vector<Array>& arguments) {
  const int wanted = program.Count(Role::kPrefetch) + program.Count(Role::kInput);
  if (arguments.size() != static_cast<size_t>(wanted)) {
    throw EvaluationError("kernel " + program.name + ": " + std::to_string(arguments.size()) +
                          " arguments for " + std::to_string(wanted));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = program.arguments[i];
    if (arguments[i].dtype() != argument.array.dtype ||
        arguments[i].shape() != argument.array.shape) {
      throw EvaluationError("kernel " + program.name + ": argument " + argument.name + " is " +
                            ToString(argument.array.dtype) + " " + ToString(argument.array.shape) +
                            ", not " + ToString(arguments[i].dtype()) + " " +
                            ToString(arguments[i].shape()));
    }
  }
}

std::string Where(const Machine& machine) {
  std::string text = "kernel " + machine.program.name + ", ";
  if (machine.current != nullptr) {
    text += Describe(machine.program, machine.current->node);
  } else {
    text += machine.doing;
  }
  std::string step;
  for (int64_t s : machine.step) step += (step.empty() ? "" : ", ") + std::to_string(s);
  return text + (step.empty() ? "" : ", grid step (" + step + ")") + ": ";
}

}  // namespace

}  // namespace evaluate

std::vector<Array> Evaluate(const Program& program, const std::vector<Array>& arguments,
                            const EvaluateOptions& options) {
  evaluate::CheckArguments(program, arguments);
  try {
    evaluate::Machine machine(program, options);
    const evaluate::FlushSubnormals flush;
    try {
      machine.Bind(arguments);
      machine.Run();
    } catch (const evaluate::Fault& fault) {
      throw EvaluationError(evaluate::Where(machine) + fault.what());
    }
    return machine.Outputs();
  } catch (const evaluate::Fault& fault) {
    throw EvaluationError("kernel " + program.name + ": " + fault.what());
  }
}

}  // namespace kda::tpu::ir
