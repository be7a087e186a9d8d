#include "tpu/ir/program.h"

#include <algorithm>

#include "tpu/ir/refuse.h"

namespace kda::tpu::ir {

namespace {

Shape TileShape(const Type& type) {
  // Tiles in VMEM are 8 x 128 words; bf16 packs two rows into one.
  const int64_t rows = type.dtype == DType::kBF16 ? 16 : 8;
  return {rows, 128};
}

int64_t PaddedBytes(const Type& type) {
  Shape shape = type.shape;
  const Shape tile = TileShape(type);
  const auto pad = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  if (!shape.empty()) shape.back() = pad(shape.back(), tile[1]);
  if (shape.size() > 1) {
    int64_t& rows = shape[shape.size() - 2];
    // Fewer rows than a tile take a smaller one, down to one word row.
    int64_t unit = type.dtype == DType::kBF16 ? 2 : 1;
    while (unit < tile[0] && unit < rows) unit *= 2;
    rows = pad(rows, unit);
  }
  return ElementCount(shape) * BitsOf(type.dtype) / 8;
}

}  // namespace

const Argument& Program::Get(Role role, int position) const {
  for (const Argument& a : arguments) {
    if (a.role == role && position-- == 0) return a;
  }
  Refuse("no such argument");
}

int Program::Count(Role role) const {
  int count = 0;
  for (const Argument& a : arguments) count += a.role == role ? 1 : 0;
  return count;
}

int64_t Program::VmemBytes() const {
  int64_t bytes = 0;
  for (const Argument& a : arguments) {
    if (a.memory.space != Space::kVmem) continue;
    bytes += PaddedBytes(a.memory) * (a.window.present && a.window.pipelined ? 2 : 1);
  }
  return bytes;
}

}  // namespace kda::tpu::ir
