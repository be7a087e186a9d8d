#include "tpu/hlo/evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace kda::tpu::hlo {

namespace {

using ir::Array;

[[noreturn]] void Refuse(const std::string& what) { throw ir::EvaluationError(what); }

int64_t BytesOf(DType dtype) { return dtype == DType::kI1 ? 1 : ir::BitsOf(dtype) / 8; }

Shape Strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return strides;
}

void CopyElements(const Array& from, int64_t source, Array* to, int64_t target, int64_t count) {
  const int64_t size = BytesOf(from.dtype());
  std::memcpy(static_cast<char*>(to->data()) + target * size,
              static_cast<const char*>(from.data()) + source * size,
              static_cast<size_t>(count * size));
}

// Visits every index of `shape`, in row-major order.
class Walk {
 public:
  explicit Walk(const Shape& shape)
      : shape_(shape), at_(shape.size(), 0), left_(ir::ElementCount(shape)) {}
  bool Done() const { return left_ == 0; }
  const Shape& at() const { return at_; }
  void Next() {
    --left_;
    for (size_t i = shape_.size(); i-- > 0;) {
      if (++at_[i] < shape_[i]) return;
      at_[i] = 0;
    }
  }

 private:
  const Shape shape_;
  Shape at_;
  int64_t left_;
};

// out[i] = in[offset + sum_d i[d] strides[d]]
Array Strided(const Array& in, DType dtype, const Shape& shape, int64_t offset,
              const Shape& strides) {
  Array out(dtype, shape);
  int64_t n = 0;
  for (Walk walk(shape); !walk.Done(); walk.Next()) {
    int64_t at = offset;
    for (size_t d = 0; d < shape.size(); ++d) at += walk.at()[d] * strides[d];
    CopyElements(in, at, &out, n++, 1);
  }
  return out;
}

// Puts `part` into *whole, its element 0 at `starts`; what falls outside is left out.
void Place(const Array& part, const Shape& starts, Array* whole) {
  const Shape strides = Strides(whole->shape());
  int64_t n = 0;
  for (Walk walk(part.shape()); !walk.Done(); walk.Next(), ++n) {
    int64_t at = 0;
    bool inside = true;
    for (size_t d = 0; d < starts.size(); ++d) {
      const int64_t i = walk.at()[d] + starts[d];
      inside = inside && i >= 0 && i < whole->shape()[d];
      at += i * strides[d];
    }
    if (inside) CopyElements(part, n, whole, at, 1);
  }
}

float Round(DType dtype, float value) {
  return dtype == DType::kBF16 ? ir::FromBF16(ir::ToBF16(value)) : value;
}

float FloatOp(Op op, float a, float b) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kRem:
      return std::fmod(a, b);
    case Op::kMin:
      return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
    case Op::kMax:
      return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
    case Op::kNegate:
      return -a;
    case Op::kExp:
      return std::exp(a);
    case Op::kLogistic:
      return 1 / (1 + std::exp(-a));
    default:
      Refuse("an operation floats do not have");
  }
}

int32_t IntOp(Op op, int32_t a, int32_t b) {
  const auto x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
  switch (op) {
    case Op::kAdd:
      return static_cast<int32_t>(x + y);
    case Op::kSub:
      return static_cast<int32_t>(x - y);
    case Op::kMul:
      return static_cast<int32_t>(x * y);
    case Op::kDiv:
      return b == 0 ? -1 : b == -1 ? static_cast<int32_t>(0u - x) : a / b;
    case Op::kRem:
      return b == 0 ? a : b == -1 ? 0 : a % b;
    case Op::kMin:
      return std::min(a, b);
    case Op::kMax:
      return std::max(a, b);
    case Op::kAnd:
      return a & b;
    case Op::kOr:
      return a | b;
    case Op::kNegate:
      return static_cast<int32_t>(0u - x);
    default:
      Refuse("an operation integers do not have");
  }
}

class Machine {
 public:
  Machine(const Module& module, const ir::EvaluateOptions& options)
      : m_(module), options_(options), values_(module.nodes().size()) {}

  Arrays Run(const Arrays& inputs) {
    for (size_t i = 0; i < m_.nodes().size(); ++i) {
      const Node& n = m_.nodes()[i];
      if (n.op == Op::kKernel) {
        RunKernel(n, static_cast<int>(i));
      } else if (n.op == Op::kInput) {
        values_[i] = Given(inputs, m_.inputs()[static_cast<size_t>(n.ints[0])], n.type);
      } else if (n.op != Op::kResult) {
        values_[i] = Compute(n);
      }
    }
    Arrays outputs;
    for (const Port& p : m_.outputs()) outputs[p.name] = values_[static_cast<size_t>(p.node)];
    return outputs;
  }

 private:
  static Array Given(const Arrays& inputs, const Port& port, const Type& type) {
    const auto found = inputs.find(port.name);
    if (found == inputs.end()) Refuse("input " + port.name + " is missing");
    const Array& a = found->second;
    if (a.dtype() != type.dtype || a.shape() != type.shape) {
      Refuse("input " + port.name + " is " + ToString(Type{a.dtype(), a.shape()}) + ", not " +
             ToString(type));
    }
    return a;
  }

  const Array& In(const Node& n, size_t i) const {
    return values_[static_cast<size_t>(n.operands[i])];
  }

  void RunKernel(const Node& n, int node) {
    const Kernel& kernel = m_.kernels()[static_cast<size_t>(n.ints[0])];
    std::vector<Array> arguments;
    for (size_t i = 0; i < n.operands.size(); ++i) arguments.push_back(In(n, i));
    std::vector<Array> results = ir::Evaluate(kernel.program, arguments, options_);
    for (size_t i = static_cast<size_t>(node); i < m_.nodes().size(); ++i) {
      const Node& result = m_.nodes()[i];
      if (result.op != Op::kResult || result.operands[0] != node) continue;
      values_[i] = results[static_cast<size_t>(result.ints[0])];
    }
  }

  Array Compute(const Node& n) const {
    switch (n.op) {
      case Op::kConstant:
        return Array::Full(n.type.dtype, n.type.shape, n.number);
      case Op::kLiteral: {
        Array out(n.type.dtype, n.type.shape);
        for (int64_t i = 0; i < out.size(); ++i) out.Set(i, n.numbers[static_cast<size_t>(i)]);
        return out;
      }
      case Op::kIota: {
        Array out(DType::kI32, n.type.shape);
        int64_t at = 0;
        for (Walk walk(n.type.shape); !walk.Done(); walk.Next()) {
          out.i32()[at++] = static_cast<int32_t>(walk.at()[static_cast<size_t>(n.ints[0])]);
        }
        return out;
      }
      case Op::kTranspose:
      case Op::kReshape:
      case Op::kBroadcast:
      case Op::kSlice:
        return Move(n);
      case Op::kPad: {
        Array out = Array::Full(n.type.dtype, n.type.shape, In(n, 1).Get(0));
        const Shape low(n.ints.begin(), n.ints.begin() + static_cast<int64_t>(n.ints.size() / 2));
        Place(In(n, 0), low, &out);
        return out;
      }
      case Op::kConcat: {
        Array out(n.type.dtype, n.type.shape);
        Shape starts(n.type.shape.size(), 0);
        const auto d = static_cast<size_t>(n.ints[0]);
        for (size_t i = 0; i < n.operands.size(); ++i) {
          Place(In(n, i), starts, &out);
          starts[d] += In(n, i).shape()[d];
        }
        return out;
      }
      case Op::kGather:
        return Gather(n);
      case Op::kScatter:
        return Scatter(n);
      case Op::kReduceSum:
      case Op::kCumSum:
        return Reduce(n);
      default:
        return Elementwise(n);
    }
  }

  Array Move(const Node& n) const {
    const Array& x = In(n, 0);
    const Shape from = Strides(x.shape());
    Shape strides(n.type.shape.size(), 0);
    int64_t offset = 0;
    switch (n.op) {
      case Op::kTranspose:
        for (size_t i = 0; i < strides.size(); ++i) {
          strides[i] = from[static_cast<size_t>(n.ints[i])];
        }
        break;
      case Op::kBroadcast:
        for (size_t i = 0; i < n.ints.size(); ++i) {
          if (x.shape()[i] > 1) strides[static_cast<size_t>(n.ints[i])] = from[i];
        }
        break;
      case Op::kSlice:
        strides = from;
        for (size_t i = 0; i < from.size(); ++i) offset += n.ints[i] * from[i];
        break;
      default:
        strides = Strides(n.type.shape);
    }
    return Strided(x, n.type.dtype, n.type.shape, offset, strides);
  }

  // [outer, rows, inner] around the dimension of a gather or scatter.
  struct Around {
    int64_t outer = 1, rows = 1, inner = 1;
  };
  static Around Split(const Shape& shape, int64_t dimension) {
    Around around;
    for (size_t i = 0; i < shape.size(); ++i) {
      const auto d = static_cast<int64_t>(i);
      (d < dimension ? around.outer : d == dimension ? around.rows : around.inner) *= shape[i];
    }
    return around;
  }

  // Where row r of slice i lies in the gathered array, for one outer index.
  static int64_t RowOf(const Around& x, int64_t size, int64_t count, int64_t i, int64_t outer,
                       int64_t r) {
    if (size == 0) return (outer * count + i) * x.inner;
    return ((i * x.outer + outer) * size + r) * x.inner;
  }

  Array Gather(const Node& n) const {
    const Array& x = In(n, 0);
    const int64_t size = n.ints[1], count = In(n, 1).size(), rows = std::max<int64_t>(size, 1);
    const Around around = Split(x.shape(), n.ints[0]);
    Array out(n.type.dtype, n.type.shape);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t start = std::clamp<int64_t>(In(n, 1).i32()[i], 0, around.rows - rows);
      for (int64_t outer = 0; outer < around.outer; ++outer) {
        for (int64_t r = 0; r < rows; ++r) {
          CopyElements(x, (outer * around.rows + start + r) * around.inner, &out,
                       RowOf(around, size, count, i, outer, r), around.inner);
        }
      }
    }
    return out;
  }

  Array Scatter(const Node& n) const {
    Array out = In(n, 0);
    const Array& updates = In(n, 2);
    const int64_t count = In(n, 1).size();
    const Around around = Split(out.shape(), n.ints[0]);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = In(n, 1).i32()[i];
      if (row < 0 || row >= around.rows) continue;
      for (int64_t outer = 0; outer < around.outer; ++outer) {
        CopyElements(updates, (outer * count + i) * around.inner, &out,
                     (outer * around.rows + row) * around.inner, around.inner);
      }
    }
    return out;
  }

  Array Reduce(const Node& n) const {
    const Array& x = In(n, 0);
    const Around around = Split(x.shape(), n.ints[0]);
    const bool running = n.op == Op::kCumSum;
    Array out(n.type.dtype, n.type.shape);
    for (int64_t outer = 0; outer < around.outer; ++outer) {
      for (int64_t inner = 0; inner < around.inner; ++inner) {
        double sum = In(n, 1).Get(0);
        for (int64_t r = 0; r < around.rows; ++r) {
          const int64_t at = (outer * around.rows + r) * around.inner + inner;
          sum = Apply(Op::kAdd, n.type.dtype, sum, x.Get(at));
          if (running) out.Set(at, sum);
        }
        if (!running) out.Set(outer * around.inner + inner, sum);
      }
    }
    return out;
  }

  static double Apply(Op op, DType dtype, double a, double b) {
    if (!ir::IsFloat(dtype)) {
      return IntOp(op, static_cast<int32_t>(a), static_cast<int32_t>(b));
    }
    return Round(dtype, FloatOp(op, static_cast<float>(a), static_cast<float>(b)));
  }

  Array Elementwise(const Node& n) const {
    Array out(n.type.dtype, n.type.shape);
    const Array& a = In(n, 0);
    for (int64_t i = 0; i < out.size(); ++i) {
      switch (n.op) {
        case Op::kSelect:
          CopyElements(In(n, a.Get(i) != 0 ? 1 : 2), i, &out, i, 1);
          break;
        case Op::kCompare:
          out.Set(i, ir::Holds(static_cast<ir::Comparison>(n.ints[0]), a.Get(i), In(n, 1).Get(i)));
          break;
        case Op::kConvert:
          out.Set(i, a.Get(i));
          break;
        default:
          out.Set(i,
                  Apply(n.op, n.type.dtype, a.Get(i), n.operands.size() > 1 ? In(n, 1).Get(i) : 0));
      }
    }
    return out;
  }

  const Module& m_;
  const ir::EvaluateOptions& options_;
  std::vector<Array> values_;
};

}  // namespace

Arrays Evaluate(const Module& module, const Arrays& inputs, const ir::EvaluateOptions& options) {
  return Machine(module, options).Run(inputs);
}

}  // namespace kda::tpu::hlo
