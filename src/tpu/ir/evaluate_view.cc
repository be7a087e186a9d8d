// Views of memory: slices, dimensions dropped, other dtypes and shapes of the same words.
#include <algorithm>

#include "tpu/ir/evaluate_memory.h"

namespace kda::tpu::ir::evaluate {

namespace {

Shape ShapeOf(const View& view) { return Shape(view.size, view.size + view.rank); }

// The same words, each with both its rows, as i32; false where the view does not hold whole pairs.
bool AsWords(const View& view, View* words) {
  if (view.packed != view.rank - 2 || view.packed < 0 || view.half != 0 ||
      view.size[view.packed] % 2 != 0) {
    return false;
  }
  *words = view;
  words->dtype = DType::kI32;
  words->size[view.packed] /= 2;
  words->packed = -1;
  return true;
}

// Strides of `shape` over the elements of `view` in row-major order, without moving any: each run
// of dimensions of one that matches a run of the other must lie evenly in the old one.
bool Restride(const View& view, const Shape& shape, View* out) {
  Shape sizes, strides;
  for (int i = 0; i < view.rank; ++i) {
    if (view.size[i] == 1) continue;
    sizes.push_back(view.size[i]);
    strides.push_back(view.stride[i]);
  }
  *out = view;
  out->rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), out->size);
  size_t from = 0, to = 0;
  while (from < sizes.size() || to < shape.size()) {
    size_t from_end = from, to_end = to;
    int64_t have = 1, want = 1;
    do {
      if (have <= want && from_end < sizes.size()) {
        have *= sizes[from_end++];
      } else if (to_end < shape.size()) {
        want *= shape[to_end++];
      } else {
        return false;
      }
    } while (have != want);
    for (size_t i = from; i + 1 < from_end; ++i) {
      if (strides[i] != strides[i + 1] * sizes[i + 1]) return false;
    }
    int64_t stride = from_end > from ? strides[from_end - 1] : 1;
    for (size_t i = to_end; i > to; --i) {
      out->stride[i - 1] = stride;
      stride *= shape[i - 1];
    }
    from = from_end;
    to = to_end;
  }
  return true;
}

}  // namespace

int64_t View::Count() const {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= size[i];
  return count;
}

int64_t WordCount(const Type& type) {
  Shape shape = type.shape;
  if (type.dtype == DType::kBF16 && shape.size() >= 2) {
    int64_t& rows = shape[shape.size() - 2];
    rows = (rows + 1) / 2;
  }
  return ElementCount(shape);
}

View WholeView(int memory, const Type& type) {
  if (type.shape.size() > static_cast<size_t>(kMaxRank))
    throw Fault("memory of more dimensions than known");
  View view;
  view.memory = memory;
  view.dtype = type.dtype;
  view.rank = static_cast<int>(type.shape.size());
  if (type.dtype == DType::kBF16 && view.rank >= 2) view.packed = view.rank - 2;
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.size[i] = type.shape[static_cast<size_t>(i)];
    view.stride[i] = stride;
    stride *= i == view.packed ? (view.size[i] + 1) / 2 : view.size[i];
  }
  return view;
}

View SliceOf(const View& view, const int64_t* starts, const int64_t* sizes) {
  View part = view;
  for (int i = 0; i < view.rank; ++i) {
    if (starts[i] < 0 || sizes[i] < 0 || starts[i] + sizes[i] > view.size[i]) {
      throw Fault("out of bounds: [" + std::to_string(starts[i]) + ", " +
                  std::to_string(starts[i] + sizes[i]) + ") of dimension " + std::to_string(i) +
                  " of " + ToString(ShapeOf(view)));
    }
    part.size[i] = sizes[i];
    int64_t start = starts[i];
    if (i == view.packed) {
      start += view.half;
      part.half = static_cast<int>(start % 2);
      start /= 2;
    }
    part.offset += start * view.stride[i];
  }
  return part;
}

View SqueezeOf(const View& view, const std::vector<int64_t>& dropped) {
  View part = view;
  part.rank = 0;
  part.packed = -1;  // if that one goes, its element keeps its half
  for (int i = 0; i < view.rank; ++i) {
    if (dropped[static_cast<size_t>(i)] != 0) {
      if (view.size[i] != 1) throw Fault("squeezes a dimension of " + std::to_string(view.size[i]));
      continue;
    }
    if (i == view.packed) part.packed = part.rank;
    part.size[part.rank] = view.size[i];
    part.stride[part.rank++] = view.stride[i];
  }
  return part;
}

View BitcastOf(const View& view, DType dtype) {
  View cast = view;
  if (BitsOf(view.dtype) == BitsOf(dtype)) {
    cast.dtype = dtype;
    return cast;
  }
  if (dtype == DType::kBF16) {
    if (view.rank < 2) throw Fault("bf16 of words needs a matrix");
    cast.dtype = dtype;
    cast.packed = view.rank - 2;
    cast.half = 0;
    cast.size[cast.packed] *= 2;
    return cast;
  }
  if (!AsWords(view, &cast)) {
    throw Fault(
        "words of bf16 " + ToString(ShapeOf(view)) +
        " need whole pairs of rows: it begins at an odd row, has an odd number, or its rows "
        "are no longer its second-last dimension");
  }
  cast.dtype = dtype;
  return cast;
}

View ReshapeOf(const View& view, const Shape& shape) {
  const std::string what =
      ToString(view.dtype) + " " + ToString(ShapeOf(view)) + " to " + ToString(shape) + ": ";
  if (shape.size() > static_cast<size_t>(kMaxRank)) throw Fault(what + "too many dimensions");
  View out;
  if (view.packed < 0) {
    if (!Restride(view, shape, &out)) throw Fault(what + "its elements do not lie in a row");
    return out;
  }
  // Rows of bf16 stay rows, in pairs.
  View words;
  Shape halved = shape;
  const bool rows_stay = shape.size() >= 2 && shape.back() == view.size[view.rank - 1] &&
                         shape[shape.size() - 2] % 2 == 0;
  if (rows_stay) halved[shape.size() - 2] /= 2;
  if (!rows_stay || !AsWords(view, &words))
    throw Fault(what + "pairs of rows would not stay pairs");
  if (!Restride(words, halved, &out)) throw Fault(what + "its elements do not lie in a row");
  return BitcastOf(out, DType::kBF16);
}

}  // namespace kda::tpu::ir::evaluate
