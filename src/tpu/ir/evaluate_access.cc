// Memory operations, copies and control flow.
#include "tpu/ir/evaluate_machine.h"

namespace kda::tpu::ir::evaluate {

namespace {

// The rectangle of `ref` that starts at the indices from operand `first` on, of `sizes`.
View Rectangle(Machine& machine, const Node& node, size_t first, int ref, const int64_t* sizes) {
  const View& base = machine.ViewOf(ref);
  int64_t starts[kMaxRank] = {};
  for (size_t d = 0; d < static_cast<size_t>(base.rank); ++d) {
    const int operand = node.operands[first + d];
    starts[d] = operand < 0 ? node.ints[d] : machine.Scalar(operand);
  }
  return SliceOf(base, starts, sizes);
}

constexpr int64_t kOnes[kMaxRank] = {1, 1, 1, 1, 1, 1, 1, 1};

// Sizes of what a load or store of `type` touches in its memory: all ones for a scalar.
const int64_t* SizesOf(const Type& type) { return type.shape.empty() ? kOnes : type.shape.data(); }

void Load(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  machine.memories.Load(Rectangle(machine, node, 1, node.operands[0], SizesOf(node.type)), i.out);
}

void Store(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const Type& type = machine.At(node.operands[0]).type;
  machine.memories.Store(Rectangle(machine, node, 2, node.operands[1], SizesOf(type)), i.in[0]);
}

View Strided(Machine& machine, const Node& node, size_t first, int ref, const Shape& shape) {
  int64_t spans[kMaxRank];
  const size_t rank = shape.size();
  for (size_t d = 0; d < rank; ++d) spans[d] = (shape[d] - 1) * node.ints[rank + d] + 1;
  View view = Rectangle(machine, node, first, ref, spans);
  for (size_t d = 0; d < rank; ++d) {
    const int64_t stride = node.ints[rank + d];
    if (static_cast<int>(d) == view.packed && stride != 1) {
      throw Fault("strides over rows of bf16, which lie in pairs");
    }
    view.size[d] = shape[d];
    view.stride[d] *= stride;
  }
  return view;
}

void StridedLoad(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  machine.memories.Load(Strided(machine, node, 1, node.operands[0], node.type.shape), i.out);
}

void StridedStore(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const Shape& shape = machine.At(node.operands[0]).type.shape;
  machine.memories.Store(Strided(machine, node, 2, node.operands[1], shape), i.in[0]);
}

// --- Views ---

void RefSlice(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  machine.ViewOf(i.node) = Rectangle(machine, node, 1, node.operands[0], SizesOf(node.type));
}

void RefSqueeze(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  machine.ViewOf(i.node) = SqueezeOf(machine.ViewOf(node.operands[0]), node.ints);
}

void RefBitcast(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  machine.ViewOf(i.node) = BitcastOf(machine.ViewOf(node.operands[0]), node.type.dtype);
}

void RefReshape(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  machine.ViewOf(i.node) = ReshapeOf(machine.ViewOf(node.operands[0]), node.type.shape);
}

// --- Copies ---

void EnqueueDma(Machine& machine, const Instruction& i) {
  const std::vector<int>& operands = machine.At(i.node).operands;
  machine.copies.Start(machine.ViewOf(operands[0]), machine.ViewOf(operands[1]),
                       machine.ViewOf(operands[2]), i.node);
}

void WaitDma(Machine& machine, const Instruction& i) {
  const std::vector<int>& operands = machine.At(i.node).operands;
  machine.copies.Wait(machine.ViewOf(operands[0]), machine.ViewOf(operands[2]).Bytes());
}

// --- Control ---

void GridIndex(Machine& machine, const Instruction& i) {
  const auto d = static_cast<size_t>(machine.At(i.node).ints[0]);
  i.out[0] = static_cast<uint32_t>(machine.step[d]);
}

void If(Machine& machine, const Instruction& i) {
  const std::vector<int>& blocks = machine.At(i.node).blocks;
  const size_t chosen = i.in[0][0] != 0 ? 0 : 1;
  if (chosen < blocks.size()) machine.RunBlock(blocks[chosen]);
}

void For(Machine& machine, const Instruction& i) {
  const Node& node = machine.At(i.node);
  const int64_t lower = machine.Scalar(node.operands[0]), upper = machine.Scalar(node.operands[1]);
  const int64_t step = machine.Scalar(node.operands[2]);
  if (step <= 0) throw Fault("a loop that steps by " + std::to_string(step));
  const int block = node.blocks[0];
  uint32_t* const index =
      machine.Value(machine.program.blocks[static_cast<size_t>(block)].arguments[0]);
  for (int64_t k = lower; k < upper; k += step) {
    *index = static_cast<uint32_t>(k);
    machine.RunBlock(block);
  }
}

}  // namespace

Instruction::Run AccessRun(const Node& node) {
  switch (node.op) {
    case Op::kLoad:
      return &Load;
    case Op::kStore:
      return &Store;
    case Op::kStridedLoad:
      return &StridedLoad;
    case Op::kStridedStore:
      return &StridedStore;
    case Op::kRefSlice:
      return &RefSlice;
    case Op::kRefSqueeze:
      return &RefSqueeze;
    case Op::kRefBitcast:
      return &RefBitcast;
    case Op::kRefReshape:
      return &RefReshape;
    case Op::kEnqueueDma:
      return &EnqueueDma;
    case Op::kWaitDma:
      return &WaitDma;
    case Op::kGridIndex:
      return &GridIndex;
    case Op::kIf:
      return &If;
    case Op::kFor:
      return &For;
    default:
      return nullptr;
  }
}

}  // namespace kda::tpu::ir::evaluate
