#include "tpu/ir/evaluate_machine.h"

#include <algorithm>

namespace kda::tpu::ir::evaluate {

namespace {

constexpr char kInput[] = "an input";

std::string Listed(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "(" + text + ")";
}

bool AliasesAnOutput(const Program& program, size_t argument) {
  for (const auto& alias : program.aliases) {
    if (static_cast<size_t>(alias.first) == argument) return true;
  }
  return false;
}

uint32_t ConstantBits(const Node& node) {
  switch (node.type.dtype) {
    case DType::kF32:
      return ToBits(static_cast<float>(node.number));
    case DType::kBF16:
      return static_cast<uint32_t>(ToBF16(static_cast<float>(node.number))) << 16;
    case DType::kI1:
      return node.number != 0 ? 1 : 0;
    default:
      return static_cast<uint32_t>(static_cast<int64_t>(node.number));
  }
}

Array ArrayOf(const Type& type, const uint32_t* values) {
  Array array(type.dtype, type.shape);
  for (int64_t i = 0; i < array.size(); ++i) {
    switch (type.dtype) {
      case DType::kF32:
        array.f32()[i] = ToFloat(values[i]);
        break;
      case DType::kBF16:
        array.bf16()[i] = static_cast<uint16_t>(values[i] >> 16);
        break;
      default:
        array.Set(i, static_cast<int32_t>(values[i]));
    }
  }
  return array;
}

}  // namespace

Machine::Machine(const Program& p, const EvaluateOptions& o)
    : program(p),
      options(o),
      layout(p),
      memories(o.check_unwritten, o.check_races),
      copies(&memories, o.copies == EvaluateOptions::Copies::kAtStart),
      views(p.nodes.size()),
      code(p.blocks.size()),
      places(p.arguments.size()),
      step(p.grid.size(), 0) {
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    for (int node : program.blocks[b].nodes) {
      if (At(node).op != Op::kIota) code[b].push_back(Translate(node));
    }
  }
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    if (node.op == Op::kConstant) {
      std::fill_n(Value(static_cast<int>(i)), ElementCount(node.type.shape), ConstantBits(node));
    } else if (node.op == Op::kIota) {
      const Instruction iota = Translate(static_cast<int>(i));
      if (iota.run != nullptr) iota.run(*this, iota);
    }
  }
}

Instruction Machine::Translate(int node) {
  const Node& n = At(node);
  Instruction i;
  i.node = node;
  i.count = ElementCount(n.type.shape);
  if (n.has_result && !n.type.IsMemory()) i.out = Value(node);
  for (size_t k = 0; k < n.operands.size() && k < 3; ++k) {
    const int operand = n.operands[k];
    if (operand >= 0 && !At(operand).type.IsMemory()) i.in[k] = Value(operand);
  }
  if (layout.Shares(node)) return i;
  i.run = MatMulRun(n);
  if (i.run == nullptr) i.run = AccessRun(n);
  if (i.run == nullptr) i.run = VectorRun(program, n);
  if (i.run == nullptr) i.run = ElementwiseRun(program, n, &i);
  if (i.run == nullptr) throw Fault("cannot run " + Describe(program, node));
  return i;
}

// --- Arguments ---

void Machine::Bind(const std::vector<Array>& arguments) {
  for (size_t a = 0; a < program.arguments.size(); ++a) {
    const Argument& argument = program.arguments[a];
    Place& place = places[a];
    const bool given = argument.role == Role::kPrefetch || argument.role == Role::kInput;
    if (given || argument.role == Role::kOutput) {
      const char* const fixed = given && !AliasesAnOutput(program, a) ? kInput : nullptr;
      place.array = memories.Add(argument.name, argument.array, fixed);
      if (given) memories.Import(place.array, arguments[a]);
    }
    if (argument.role == Role::kOutput) {
      const int output =
          static_cast<int>(a) - program.Count(Role::kPrefetch) - program.Count(Role::kInput);
      for (const auto& alias : program.aliases) {
        if (alias.second == output) place.array = places[static_cast<size_t>(alias.first)].array;
      }
    }
    place.window = place.array;
    if (argument.window.present || argument.role == Role::kScratch) {
      const bool input = argument.role == Role::kInput;
      place.window = memories.Add(argument.name, argument.memory, input ? kInput : nullptr);
      if (input && argument.window.pipelined) {
        place.ahead = memories.Add(argument.name, argument.memory, kInput);
      }
    }
    ViewOf(argument.node) = memories.Whole(place.window);
  }
}

std::vector<Array> Machine::Outputs() const {
  std::vector<Array> outputs;
  for (size_t a = 0; a < program.arguments.size(); ++a) {
    if (program.arguments[a].role == Role::kOutput) {
      outputs.push_back(memories.Export(places[a].array));
    }
  }
  return outputs;
}

// --- Steps ---

bool Machine::NextStep(std::vector<int64_t>* at) const {
  for (size_t d = at->size(); d-- > 0;) {
    if (++(*at)[d] < program.grid[d]) return true;
    (*at)[d] = 0;
  }
  return false;
}

void Machine::Run() {
  bool more = true;
  while (more) {
    std::vector<int64_t> next = step;
    more = NextStep(&next);
    BeginStep(more ? &next : nullptr);
    RunBlock(program.body);
    current = nullptr;
    step = next;
  }
  step.assign(program.grid.size(), 0);
  for (size_t a = 0; a < places.size(); ++a) {
    if (program.arguments[a].role != Role::kOutput) continue;
    doing = "the last write back of " + program.arguments[a].name;
    if (program.arguments[a].window.present) WriteBack(&places[a], program.arguments[a]);
  }
  for (Place& place : places) FinishWriteBack(&place);
  doing = "the end of the kernel";
  std::string what;
  const int unfinished = copies.Unfinished(&what);
  if (unfinished >= 0)
    throw Fault(what + "; " + Describe(program, unfinished) + " started the last");
}

void Machine::BeginStep(const std::vector<int64_t>* next) {
  for (const Role role : {Role::kOutput, Role::kInput}) {
    for (size_t a = 0; a < places.size(); ++a) {
      const Argument& argument = program.arguments[a];
      if (argument.role != role || !argument.window.present) continue;
      doing = "the window of " + argument.name;
      if (role == Role::kOutput) {
        BeginOutput(&places[a], argument);
      } else {
        BeginInput(&places[a], argument, next);
      }
      current = nullptr;
    }
  }
}

void Machine::BeginInput(Place* place, const Argument& argument, const std::vector<int64_t>* next) {
  if (place->is_reading) {
    memories.EndReading(place->reading);
    place->is_reading = false;
    Memory &now = memories.At(place->window), &then = memories.At(place->ahead);
    std::swap(now.words, then.words);
    std::swap(now.states, then.states);
    place->index = place->coming;
  } else {
    const std::vector<int64_t> index = BlockIndex(argument, step);
    if (index != place->index) {
      const View from = BlockView(*place, argument, index);
      memories.BeginReading(from);
      Fetch(from, place->window);
      memories.EndReading(from);
      place->index = index;
    }
  }
  if (next == nullptr || place->ahead < 0) return;
  place->coming = BlockIndex(argument, *next);
  if (place->coming == place->index) return;
  place->reading = BlockView(*place, argument, place->coming);
  place->is_reading = true;
  memories.BeginReading(place->reading);
  Fetch(place->reading, place->ahead);
}

void Machine::BeginOutput(Place* place, const Argument& argument) {
  const std::vector<int64_t> index = BlockIndex(argument, step);
  if (index == place->index) return;
  if (!place->index.empty()) WriteBack(place, argument);
  BlockView(*place, argument, index);  // is it one?
  memories.Poison(place->window, false);
  place->index = index;
}

// The block goes out while the next one is worked on; the one before has gone by then.
void Machine::WriteBack(Place* place, const Argument& argument) {
  FinishWriteBack(place);
  place->writing = BlockView(*place, argument, place->index);
  const int64_t zeros[kMaxRank] = {};
  const View from = SliceOf(memories.Whole(place->window), zeros, place->writing.size);
  memories.BeginReading(from);
  memories.EndReading(from);
  memories.BeginWriting(place->writing);
  memories.Move(from, place->writing);
  place->is_writing = true;
}

void Machine::FinishWriteBack(Place* place) {
  if (place->is_writing) memories.EndWriting(place->writing);
  place->is_writing = false;
}

std::vector<int64_t> Machine::BlockIndex(const Argument& argument, const std::vector<int64_t>& at) {
  const std::vector<int64_t> now = step;
  step = at;
  RunBlock(argument.window.block);
  current = nullptr;
  step = now;
  std::vector<int64_t> index;
  for (int node : argument.window.results) index.push_back(Scalar(node));
  return index;
}

// The part of a block that lies in its array.
View Machine::BlockView(const Place& place, const Argument& argument,
                        const std::vector<int64_t>& index) {
  const Shape &array = argument.array.shape, &block = argument.memory.shape;
  int64_t starts[kMaxRank], sizes[kMaxRank];
  for (size_t d = 0; d < array.size(); ++d) {
    starts[d] = index[d] * block[d];
    if (starts[d] < 0 || starts[d] >= array[d]) {
      throw Fault("out of bounds: block " + Listed(index) + " of " + ToString(block) +
                  " of an array of " + ToString(array));
    }
    sizes[d] = std::min(block[d], array[d] - starts[d]);
  }
  return SliceOf(memories.Whole(place.array), starts, sizes);
}

void Machine::Fetch(const View& from, int to) {
  memories.Poison(to, true);
  const int64_t zeros[kMaxRank] = {};
  memories.Move(from, SliceOf(memories.Whole(to), zeros, from.size));
}

void Machine::RunBlock(int block) {
  for (const Instruction& i : code[static_cast<size_t>(block)]) {
    current = &i;
    if (i.run != nullptr) i.run(*this, i);
    if (options.hook && i.out != nullptr) {
      options.hook(i.node, step, ArrayOf(At(i.node).type, i.out));
    }
  }
}

}  // namespace kda::tpu::ir::evaluate
