#include "tpu/ir/counter.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "tpu/ir/counter_work.h"
#include "tpu/ir/evaluate_machine.h"
#include "tpu/ir/evaluate_scalar.h"

namespace kda::tpu::ir {

namespace {

using evaluate::Fault;
using evaluate::View;

using Scalar = std::optional<int32_t>;  // empty: unknown

bool IsIntegerScalar(const Node& node) {
  return node.has_result && node.type.IsScalar() &&
         (node.type.dtype == DType::kI32 || node.type.dtype == DType::kI1);
}

// As the evaluator computes it; empty where the operation is none of integers.
Scalar Binary(const Node& node, int32_t a, int32_t b) {
  const auto x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
  using namespace evaluate;  // NOLINT(google-build-using-namespace): of what follows alone
  switch (node.op) {
    case Op::kAdd:
      return Signed(AddI::Apply(x, y));
    case Op::kSub:
      return Signed(SubI::Apply(x, y));
    case Op::kMul:
      return Signed(MulI::Apply(x, y));
    case Op::kDiv:
      return Signed(DivI::Apply(x, y));
    case Op::kRem:
      return Signed(RemI::Apply(x, y));
    case Op::kMin:
      return Signed(MinI::Apply(x, y));
    case Op::kMax:
      return Signed(MaxI::Apply(x, y));
    case Op::kAnd:
      return Signed(And::Apply(x, y));
    case Op::kOr:
      return Signed(Or::Apply(x, y));
    case Op::kXor:
      return Signed(Xor::Apply(x, y));
    case Op::kShiftLeft:
      return Signed(ShiftLeftI::Apply(x, y));
    case Op::kShiftRight:
      return Signed(ShiftRightI::Apply(x, y));
    case Op::kCompare:
      return Holds(static_cast<Comparison>(node.ints[0]), a, b) ? 1 : 0;
    default:
      return std::nullopt;
  }
}

class Counter {
 public:
  Counter(const Program& program, const CountOptions& options)
      : p_(program),
        options_(options),
        needed_(program.nodes.size(), false),
        scalars_(program.nodes.size()),
        views_(program.nodes.size()),
        lists_(program.blocks.size()),
        taken_(program.nodes.size(), 0),
        reached_(program.nodes.size(), 0),
        step_(program.grid.size(), 0),
        memories_(program.arguments.size()),
        windows_(program.arguments.size()),
        index_(program.arguments.size()) {
    counts_.block_runs.assign(program.blocks.size(), 0);
    FindNeeded();
  }

  Counts Run(const std::vector<Array>& arguments) {
    Bind(arguments);
    RefuseAtOnce();
    bool more = true;
    while (more) {
      for (size_t a = 0; a < p_.arguments.size(); ++a) MoveWindow(a);
      RunBlock(p_.body);
      ++counts_.steps;
      current_ = -1;
      more = false;
      for (size_t d = step_.size(); d-- > 0 && !more;) {
        more = ++step_[d] < p_.grid[d];
        if (!more) step_[d] = 0;
      }
    }
    Total();
    return std::move(counts_);
  }

  std::string Where() const {
    std::string text = "counting kernel " + p_.name + ", ";
    text += current_ >= 0 ? evaluate::Describe(p_, current_) : "its windows";
    for (size_t d = 0; d < step_.size(); ++d) {
      text += (d == 0 ? ", grid step (" : ", ") + std::to_string(step_[d]);
    }
    return text + (step_.empty() ? ": " : "): ");
  }

 private:
  const Node& At(int node) const { return p_.nodes[static_cast<size_t>(node)]; }

  // --- What control flow and index maps depend on ---

  void Need(int node, std::vector<int>* todo) {
    if (node < 0 || needed_[static_cast<size_t>(node)]) return;
    needed_[static_cast<size_t>(node)] = true;
    todo->push_back(node);
  }

  bool IsSmem(int node) const { return At(node).type.space == Space::kSmem; }

  void FindNeeded() {
    std::vector<int> todo;
    for (size_t i = 0; i < p_.nodes.size(); ++i) {
      const Node& node = p_.nodes[i];
      const bool writes_smem =
          (node.op == Op::kStore || node.op == Op::kEnqueueDma) && IsSmem(node.operands[1]);
      if (node.op == Op::kIf || node.op == Op::kFor || writes_smem) {
        Need(static_cast<int>(i), &todo);
      }
    }
    for (const Argument& a : p_.arguments) {
      for (int node : a.window.results) Need(node, &todo);
    }
    while (!todo.empty()) {
      const Node& node = At(todo.back());
      todo.pop_back();
      for (int operand : node.operands) Need(operand, &todo);
    }
    for (size_t b = 0; b < p_.blocks.size(); ++b) {
      for (int node : p_.blocks[b].nodes) {
        if (needed_[static_cast<size_t>(node)]) lists_[b].push_back(node);
      }
    }
  }

  // --- Arguments ---

  void Bind(const std::vector<Array>& arguments) {
    for (size_t i = 0; i < p_.nodes.size(); ++i) {
      if (p_.nodes[i].op == Op::kConstant && IsIntegerScalar(p_.nodes[i])) {
        scalars_[i] = static_cast<int32_t>(static_cast<int64_t>(p_.nodes[i].number));
      }
    }
    for (size_t a = 0; a < p_.arguments.size(); ++a) {
      const Argument& argument = p_.arguments[a];
      windows_[a] = {argument.name, argument.role == Role::kOutput, 0, 0};
      if (argument.memory.space != Space::kSmem) continue;
      std::vector<Scalar>& words = memories_[a];
      words.assign(static_cast<size_t>(evaluate::WordCount(argument.memory)), std::nullopt);
      views_[static_cast<size_t>(argument.node)] =
          evaluate::WholeView(static_cast<int>(a), argument.memory);
      if (argument.role == Role::kScratch || argument.role == Role::kOutput) continue;
      if (a >= arguments.size() || arguments[a].empty()) continue;
      if (arguments[a].dtype() != argument.array.dtype ||
          arguments[a].shape() != argument.array.shape) {
        throw Fault("argument " + argument.name + " is " + ToString(argument.array.dtype) + " " +
                    ToString(argument.array.shape));
      }
      if (argument.memory.dtype != DType::kI32 || argument.memory.shape != argument.array.shape) {
        continue;
      }
      for (size_t i = 0; i < words.size(); ++i) words[i] = arguments[a].i32()[i];
    }
  }

  // --- Windows ---

  void MoveWindow(size_t a) {
    const Argument& argument = p_.arguments[a];
    if (!argument.window.present) return;
    RunBlock(argument.window.block);
    current_ = -1;
    std::vector<int64_t> index;
    for (int node : argument.window.results) index.push_back(Known(node, "an index map"));
    if (index == index_[a]) return;
    index_[a] = index;
    const Shape &array = argument.array.shape, &block = argument.memory.shape;
    int64_t elements = 1;
    for (size_t d = 0; d < array.size(); ++d) {
      const int64_t start = index[d] * block[d];
      if (start < 0 || start >= array[d]) {
        throw Fault("the window of " + argument.name + " is out of bounds");
      }
      elements *= std::min(block[d], array[d] - start);
    }
    ++windows_[a].blocks;
    windows_[a].bytes += elements * BitsOf(argument.array.dtype) / 8;
  }

  // --- Scalars ---

  int32_t Known(int node, const char* what) const {
    const Scalar& scalar = scalars_[static_cast<size_t>(node)];
    if (!scalar) {
      throw Fault(std::string(what) +
                  " depends on a value that is not known: of an argument that was not given, of "
                  "VMEM, of a copy or of floating point");
    }
    return *scalar;
  }

  // What `times` runs of a block run at least, its loops of constant length included; no more than
  // one beyond what may be counted.
  int64_t LeastRuns(int block, int64_t times) const {
    const int64_t most = options_.most_block_runs;
    int64_t once = 1;
    for (int node : p_.blocks[static_cast<size_t>(block)].nodes) {
      if (At(node).op != Op::kFor) continue;
      int64_t range[3] = {};  // from, to, step
      bool constant = true;
      for (size_t i = 0; i < 3; ++i) {
        const Node& operand = At(At(node).operands[i]);
        constant = constant && operand.op == Op::kConstant;
        if (constant) range[i] = static_cast<int64_t>(operand.number);
      }
      if (!constant || range[2] <= 0 || range[0] >= range[1]) continue;
      const int64_t trips = (range[1] - range[0] + range[2] - 1) / range[2];
      once = std::min(once + LeastRuns(At(node).blocks[0], trips), most + 1);
    }
    return once > most / std::max<int64_t>(times, 1) ? most + 1 : once * times;
  }

  void RefuseAtOnce() {
    int64_t steps = 1;
    for (int64_t extent : p_.grid) {
      if (extent > 0 && steps > options_.most_block_runs / extent) RefuseTooMany();
      steps *= extent;
    }
    if (LeastRuns(p_.body, steps) > options_.most_block_runs) RefuseTooMany();
  }

  [[noreturn]] void RefuseTooMany() const {
    throw BuildError(p_.name + ": the blocks of code that it runs are more than " +
                     std::to_string(options_.most_block_runs) +
                     ", but must be at most as many to be counted: fewer tokens, sequences or "
                     "heads");
  }

  void RunBlock(int block) {
    ++counts_.block_runs[static_cast<size_t>(block)];
    if (++runs_ > options_.most_block_runs) RefuseTooMany();
    for (int node : lists_[static_cast<size_t>(block)]) {
      current_ = node;
      RunNode(node);
    }
  }

  void RunNode(int at) {
    const Node& node = At(at);
    switch (node.op) {
      case Op::kIf:
        return RunIf(at);
      case Op::kFor:
        return RunFor(at);
      case Op::kStore:
        return Store(node);
      case Op::kEnqueueDma:
        return Forget(views_[static_cast<size_t>(node.operands[1])]);
      case Op::kRefSlice:
      case Op::kRefSqueeze:
      case Op::kRefBitcast:
      case Op::kRefReshape:
        return Look(at);
      default:
        if (IsIntegerScalar(node)) scalars_[static_cast<size_t>(at)] = Compute(node);
    }
  }

  void RunIf(int at) {
    const Node& node = At(at);
    ++reached_[static_cast<size_t>(at)];
    if (Known(node.operands[0], "an If") != 0) {
      ++taken_[static_cast<size_t>(at)];
      RunBlock(node.blocks[0]);
    } else if (node.blocks.size() > 1) {
      RunBlock(node.blocks[1]);
    }
  }

  void RunFor(int at) {
    const Node& node = At(at);
    ++reached_[static_cast<size_t>(at)];
    const int64_t lower = Known(node.operands[0], "a loop"),
                  upper = Known(node.operands[1], "a loop");
    const int64_t step = Known(node.operands[2], "a loop");
    if (step <= 0) throw Fault("a loop that steps by " + std::to_string(step));
    const int block = node.blocks[0];
    const int index = p_.blocks[static_cast<size_t>(block)].arguments[0];
    for (int64_t i = lower; i < upper; i += step) {
      ++taken_[static_cast<size_t>(at)];
      scalars_[static_cast<size_t>(index)] = static_cast<int32_t>(i);
      RunBlock(block);
    }
  }

  Scalar Compute(const Node& node) {
    if (node.op == Op::kLoad) return Load(node);
    if (node.op == Op::kGridIndex) {
      return static_cast<int32_t>(step_[static_cast<size_t>(node.ints[0])]);
    }
    std::vector<Scalar> operands;
    for (int operand : node.operands) {
      if (!IsIntegerScalar(At(operand))) return std::nullopt;
      operands.push_back(scalars_[static_cast<size_t>(operand)]);
    }
    if (node.op == Op::kSelect && operands[0]) return operands[*operands[0] != 0 ? 1 : 2];
    for (const Scalar& operand : operands) {  // one zero decides an "and"
      if (node.op == Op::kAnd && operand && *operand == 0) return 0;
    }
    for (const Scalar& operand : operands) {
      if (!operand) return std::nullopt;
    }
    if (node.op == Op::kConvert || node.op == Op::kAssumeMultiple) return operands[0];
    return operands.size() == 2 ? Binary(node, *operands[0], *operands[1]) : std::nullopt;
  }

  // --- SMEM ---

  // Of the element at the indices from operand `first` on; empty where one of them is unknown.
  std::optional<View> Rectangle(const Node& node, size_t first, int ref, const Shape& sizes) const {
    const View& base = views_[static_cast<size_t>(ref)];
    int64_t starts[evaluate::kMaxRank] = {}, ones[evaluate::kMaxRank];
    std::fill(ones, ones + evaluate::kMaxRank, 1);
    for (size_t d = 0; d < static_cast<size_t>(base.rank); ++d) {
      const int operand = node.operands[first + d];
      if (operand < 0) {
        starts[d] = node.ints[d];
        continue;
      }
      const Scalar& start = scalars_[static_cast<size_t>(operand)];
      if (!start) return std::nullopt;
      starts[d] = *start;
    }
    return evaluate::SliceOf(base, starts, sizes.empty() ? ones : sizes.data());
  }

  Scalar Load(const Node& node) const {
    const int ref = node.operands[0];
    if (!IsSmem(ref)) return std::nullopt;
    const std::optional<View> at = Rectangle(node, 1, ref, {});
    if (!at) return std::nullopt;
    return memories_[static_cast<size_t>(at->memory)][static_cast<size_t>(at->offset)];
  }

  void Store(const Node& node) {
    const int value = node.operands[0], ref = node.operands[1];
    const std::optional<View> at = Rectangle(node, 2, ref, {});
    if (!at) return Forget(views_[static_cast<size_t>(ref)]);
    memories_[static_cast<size_t>(at->memory)][static_cast<size_t>(at->offset)] =
        IsIntegerScalar(At(value)) ? scalars_[static_cast<size_t>(value)] : std::nullopt;
  }

  // Something unknown was written somewhere in the view: nothing of its memory is known any more.
  void Forget(const View& view) {
    std::vector<Scalar>& words = memories_[static_cast<size_t>(view.memory)];
    std::fill(words.begin(), words.end(), std::nullopt);
  }

  void Look(int at) {
    if (!IsSmem(at)) return;
    const Node& node = At(at);
    const View& base = views_[static_cast<size_t>(node.operands[0])];
    View& view = views_[static_cast<size_t>(at)];
    switch (node.op) {
      case Op::kRefSlice: {
        const std::optional<View> part = Rectangle(node, 1, node.operands[0], node.type.shape);
        if (!part) throw Fault("a part of SMEM begins at an unknown place");
        view = *part;
        return;
      }
      case Op::kRefSqueeze:
        view = evaluate::SqueezeOf(base, node.ints);
        return;
      case Op::kRefBitcast:
        view = evaluate::BitcastOf(base, node.type.dtype);
        return;
      default:
        view = evaluate::ReshapeOf(base, node.type.shape);
    }
  }

  // --- Sums ---

  void Total() {
    for (size_t b = 0; b < p_.blocks.size(); ++b) {
      if (counts_.block_runs[b] == 0) continue;
      for (int at : p_.blocks[b].nodes) {
        const Node& node = At(at);
        const Work work = WorkOf(p_, node, options_);
        if (work == Work{}) continue;
        counts_.by_label[p_.labels[static_cast<size_t>(node.label)]].Add(work,
                                                                         counts_.block_runs[b]);
      }
    }
    for (const auto& label : counts_.by_label) counts_.total.Add(label.second);
    for (size_t i = 0; i < p_.nodes.size(); ++i) {
      const Node& node = p_.nodes[i];
      if (node.op != Op::kIf && node.op != Op::kFor) continue;
      const bool loop = node.op == Op::kFor;
      counts_.branches.push_back({static_cast<int>(i), p_.labels[static_cast<size_t>(node.label)],
                                  loop, reached_[i], taken_[i],
                                  !loop && node.blocks.size() > 1 ? reached_[i] - taken_[i] : 0});
    }
    for (size_t a = 0; a < windows_.size(); ++a) {
      if (p_.arguments[a].window.present) counts_.windows.push_back(windows_[a]);
    }
    counts_.vmem_bytes = p_.VmemBytes();
  }

  const Program& p_;
  const CountOptions& options_;
  std::vector<bool> needed_;
  std::vector<Scalar> scalars_;
  std::vector<View> views_;
  std::vector<std::vector<int>> lists_;  // per block: what is run
  std::vector<int64_t> taken_, reached_;
  std::vector<int64_t> step_;
  std::vector<std::vector<Scalar>> memories_;  // per argument: of SMEM its words
  std::vector<WindowTraffic> windows_;
  std::vector<std::vector<int64_t>> index_;
  int current_ = -1;
  int64_t runs_ = 0;  // of blocks
  Counts counts_;
};

}  // namespace

void Work::Add(const Work& o, int64_t times) {
  matmul_flops += o.matmul_flops * times;
  elementwise += o.elementwise * times;
  transcendentals += o.transcendentals * times;
  mxu_rows += o.mxu_rows * times;
  mxu_weights += o.mxu_weights * times;
  loaded += o.loaded * times;
  stored += o.stored * times;
  copied_in += o.copied_in * times;
  copied_out += o.copied_out * times;
}

bool Work::operator==(const Work& o) const {
  const auto all = [](const Work& w) {
    return std::tie(w.matmul_flops, w.elementwise, w.transcendentals, w.mxu_rows, w.mxu_weights,
                    w.loaded, w.stored, w.copied_in, w.copied_out);
  };
  return all(*this) == all(o);
}

int64_t Counts::BytesIn() const {
  int64_t bytes = total.copied_in;
  for (const WindowTraffic& w : windows) bytes += w.output ? 0 : w.bytes;
  return bytes;
}

int64_t Counts::BytesOut() const {
  int64_t bytes = total.copied_out;
  for (const WindowTraffic& w : windows) bytes += w.output ? w.bytes : 0;
  return bytes;
}

Counts Count(const Program& program, const std::vector<Array>& arguments,
             const CountOptions& options) {
  Counter counter(program, options);
  try {
    return counter.Run(arguments);
  } catch (const Fault& fault) {
    throw EvaluationError(counter.Where() + fault.what());
  }
}

}  // namespace kda::tpu::ir
