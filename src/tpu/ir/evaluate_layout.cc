#include <algorithm>

#include "tpu/ir/evaluate_machine.h"

namespace kda::tpu::ir::evaluate {

namespace {

constexpr int64_t kGranule = 16;  // words: buffers begin at cache lines

int64_t Rounded(int64_t count) { return (count + kGranule - 1) / kGranule * kGranule; }

bool IsThereFromTheStart(Op op) { return op == Op::kConstant || op == Op::kIota; }

// Whether the elements cut out of `shape` lie in a row, and where it begins.
bool SliceInARow(const Node& node, const Shape& shape, int64_t* shift) {
  const size_t rank = shape.size();
  size_t whole = rank;  // dimensions from here on are whole
  while (whole > 0 && node.ints[rank + whole - 1] == shape[whole - 1]) --whole;
  for (size_t i = 0; i + 1 < whole; ++i) {
    if (node.ints[rank + i] != 1) return false;
  }
  *shift = 0;
  for (size_t i = 0; i < rank; ++i) *shift = *shift * shape[i] + node.ints[i];
  return true;
}

bool KeepsOrder(const std::vector<int64_t>& permutation, const Shape& shape) {
  int64_t before = -1;
  for (int64_t p : permutation) {
    if (shape[static_cast<size_t>(p)] == 1) continue;
    if (p < before) return false;
    before = p;
  }
  return true;
}

// Whether the result has the bits of operand 0, `shift` elements in.
bool SharesBits(const Program& program, const Node& node, int64_t* shift) {
  *shift = 0;
  if (node.operands.empty() || node.type.IsMemory() || !node.has_result) return false;
  const Type& from = program.nodes[static_cast<size_t>(node.operands[0])].type;
  switch (node.op) {
    case Op::kShapeCast:
      return true;
    case Op::kBitcast:
      return BitsOf(from.dtype) == BitsOf(node.type.dtype);
    case Op::kConvert:
      return from.dtype == node.type.dtype ||
             (from.dtype == DType::kBF16 && node.type.dtype == DType::kF32) ||
             (from.dtype == DType::kI1 && node.type.dtype == DType::kI32);
    case Op::kBroadcast:
      return ElementCount(from.shape) == ElementCount(node.type.shape);
    case Op::kTranspose:
      return KeepsOrder(node.ints, from.shape);
    case Op::kSlice:
      return SliceInARow(node, from.shape, shift);
    default:
      return false;
  }
}

}  // namespace

Layout::Layout(const Program& program)
    : program_(program),
      share_of_(program.nodes.size(), -1),
      shift_(program.nodes.size(), 0),
      offset_(program.nodes.size(), -1),
      block_of_(program.nodes.size(), -1),
      last_use_(program.nodes.size(), -1),
      owner_position_(program.blocks.size(), -1) {
  FindShares();
  FindLastUses();
  LayOutConstants();
  LayOutBlock(program.body);
  for (const Argument& a : program.arguments) {
    if (a.window.present) LayOutBlock(a.window.block);
  }
  words_.assign(static_cast<size_t>(end_), kPoison);
}

uint32_t* Layout::At(int node) {
  if (node < 0) return nullptr;
  const int64_t offset = offset_[static_cast<size_t>(Root(node))];
  return offset < 0 ? nullptr : words_.data() + offset + shift_[static_cast<size_t>(node)];
}

int Layout::Root(int node) const {
  const int share = share_of_[static_cast<size_t>(node)];
  return share < 0 ? node : share;
}

void Layout::FindShares() {
  for (size_t i = 0; i < program_.nodes.size(); ++i) {
    int64_t shift = 0;
    if (!SharesBits(program_, program_.nodes[i], &shift)) continue;
    const int operand = program_.nodes[i].operands[0];
    share_of_[i] = Root(operand);
    shift_[i] = shift_[static_cast<size_t>(operand)] + shift;
  }
}

void Layout::FindLastUses() {
  for (size_t b = 0; b < program_.blocks.size(); ++b) {
    const Block& block = program_.blocks[b];
    for (size_t p = 0; p < block.nodes.size(); ++p) {
      const Node& node = program_.nodes[static_cast<size_t>(block.nodes[p])];
      if (!IsThereFromTheStart(node.op)) {
        block_of_[static_cast<size_t>(block.nodes[p])] = static_cast<int>(b);
      }
      for (int inner : node.blocks) {
        owner_position_[static_cast<size_t>(inner)] = static_cast<int>(p);
      }
    }
  }
  for (size_t b = 0; b < program_.blocks.size(); ++b) {
    const Block& block = program_.blocks[b];
    for (size_t p = 0; p < block.nodes.size(); ++p) {
      const Node& node = program_.nodes[static_cast<size_t>(block.nodes[p])];
      Use(block.nodes[p], static_cast<int>(b), static_cast<int>(p));
      for (int operand : node.operands) Use(operand, static_cast<int>(b), static_cast<int>(p));
    }
  }
  for (const Argument& a : program_.arguments) {
    if (!a.window.present) continue;
    const size_t end = program_.blocks[static_cast<size_t>(a.window.block)].nodes.size();
    for (int node : a.window.results) Use(node, a.window.block, static_cast<int>(end));
  }
}

// A use in an If or For counts as one by the If or For itself: loops come round again.
void Layout::Use(int node, int block, int position) {
  if (node < 0) return;
  const size_t root = static_cast<size_t>(Root(node));
  const int home = block_of_[root];
  if (home < 0) return;
  while (block != home && block >= 0) {
    position = owner_position_[static_cast<size_t>(block)];
    block = program_.blocks[static_cast<size_t>(block)].parent;
  }
  last_use_[root] = std::max(last_use_[root], position);
}

int64_t Layout::Take(int64_t count) {
  std::vector<int64_t>& free = free_[Rounded(count)];
  if (!free.empty()) {
    const int64_t offset = free.back();
    free.pop_back();
    return offset;
  }
  const int64_t offset = end_;
  end_ += Rounded(count);
  return offset;
}

void Layout::Give(int64_t offset, int64_t count) { free_[Rounded(count)].push_back(offset); }

// Constants of the same number share one buffer, the longest any of them needs.
void Layout::LayOutConstants() {
  std::map<std::pair<DType, uint64_t>, std::pair<int64_t, std::vector<size_t>>> constants;
  for (size_t i = 0; i < program_.nodes.size(); ++i) {
    const Node& node = program_.nodes[i];
    if (node.op == Op::kConstant) {
      uint64_t bits;
      std::memcpy(&bits, &node.number, sizeof bits);
      auto& constant = constants[{node.type.dtype, bits}];
      constant.first = std::max(constant.first, ElementCount(node.type.shape));
      constant.second.push_back(i);
    } else if (node.op == Op::kIota || node.op == Op::kBlockArgument) {
      offset_[i] = Take(ElementCount(node.type.shape));
    }
  }
  for (const auto& constant : constants) {
    const int64_t offset = Take(constant.second.first);
    for (size_t node : constant.second.second) offset_[node] = offset;
  }
}

void Layout::LayOutBlock(int block) {
  const std::vector<int>& nodes = program_.blocks[static_cast<size_t>(block)].nodes;
  std::vector<std::vector<int>> ends(nodes.size());  // values to give back, by position
  std::vector<int> left;                             // at the end of the block
  for (size_t p = 0; p < nodes.size(); ++p) {
    const size_t at = static_cast<size_t>(nodes[p]);
    const Node& node = program_.nodes[at];
    const bool placed = node.has_result && !node.type.IsMemory() && share_of_[at] < 0 &&
                        !IsThereFromTheStart(node.op);
    if (placed) {
      offset_[at] = Take(ElementCount(node.type.shape));
      const size_t last = static_cast<size_t>(last_use_[at]);
      (last < nodes.size() ? ends[last] : left).push_back(nodes[p]);
    }
    for (int inner : node.blocks) LayOutBlock(inner);
    for (int value : ends[p]) {
      const size_t v = static_cast<size_t>(value);
      Give(offset_[v], ElementCount(program_.nodes[v].type.shape));
    }
  }
  for (int value : left) {
    const size_t v = static_cast<size_t>(value);
    Give(offset_[v], ElementCount(program_.nodes[v].type.shape));
  }
}

}  // namespace kda::tpu::ir::evaluate
