#include "tpu/hlo/printer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tpu/ir/printer.h"

namespace kda::tpu::hlo {

namespace {

std::string List(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

std::string I64Array(const std::vector<int64_t>& numbers) {
  return "array<i64" + std::string(numbers.empty() ? "" : ": ") + List(numbers) + ">";
}

std::string Literal(DType dtype, double number) {
  if (dtype == DType::kI1) return number != 0 ? "true" : "false";
  if (dtype == DType::kI32) return std::to_string(static_cast<int64_t>(number));
  char text[16];
  const auto value = static_cast<float>(number);
  if (dtype == DType::kBF16) {
    std::snprintf(text, sizeof text, "0x%04X", ir::ToBF16(value));
  } else {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    std::snprintf(text, sizeof text, "0x%08X", bits);
  }
  return text;
}

// Nested as a dense attribute of that shape wants it.
std::string Nested(const Type& type, const std::vector<double>& numbers, size_t dimension,
                   size_t* next) {
  if (dimension == type.shape.size()) return Literal(type.dtype, numbers[(*next)++]);
  std::string text = "[";
  for (int64_t i = 0; i < type.shape[dimension]; ++i) {
    text += (i == 0 ? "" : ", ") + Nested(type, numbers, dimension + 1, next);
  }
  return text + "]";
}

std::string Base64(const std::string& bytes) {
  static const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[word >> (18 - 6 * j) & 63u];
    }
  }
  return text;
}

// A string as an MLIR attribute.
std::string Quoted(const std::string& bytes) {
  std::string text = "\"";
  for (char c : bytes) text += c == '"' ? std::string("\\22") : std::string(1, c);
  return text + "\"";
}

std::string BackendConfig(const ir::Program& program, bool locations, bool pin_windows) {
  std::string text = "{\"custom_call_config\": {\"body\": \"" +
                     Base64(ir::Print(program, locations)) + "\", \"needs_layout_passes\": true";
  if (!program.bounds_checks) text += ", \"disable_bounds_checks\": true";
  // Arrays that a kernel addresses in HBM itself: XLA may else have moved them to VMEM. So it may
  // those that are seen through windows, where nothing forbids it.
  std::string inputs, outputs;
  int input = 0, output = 0;
  const bool many = program.Count(ir::Role::kOutput) > 1;
  for (const ir::Argument& a : program.arguments) {
    const bool window = a.window.present && a.memory.space == ir::Space::kVmem;
    const bool pinned = a.memory.space == ir::Space::kHbm || (pin_windows && window);
    if (a.role == ir::Role::kPrefetch) ++input;
    if (a.role == ir::Role::kInput) {
      if (pinned) {
        inputs += std::string(inputs.empty() ? "" : ", ") +
                  "{\"operand_index\": " + std::to_string(input) + ", \"color\": 0}";
      }
      ++input;
    }
    if (a.role == ir::Role::kOutput) {
      if (pinned) {
        outputs += std::string(outputs.empty() ? "" : ", ") + "{\"color\": 0" +
                   (many ? ", \"shape_index\": [" + std::to_string(output) + "]}" : "}");
      }
      ++output;
    }
  }
  if (!outputs.empty()) text += ", \"output_memory_space_colors\": [" + outputs + "]";
  if (!inputs.empty()) text += ", \"input_memory_space_colors\": [" + inputs + "]";
  text += "}";
  if (program.vmem_limit > 0) {
    text += ", \"scoped_memory_configs\": [{\"memory_space\": 1, \"offset\": 0, \"size\": " +
            std::to_string(program.vmem_limit) + "}]";
  }
  return text + "}";
}

const char* Mnemonic(Op op) {
  switch (op) {
    case Op::kAdd:
      return "add";
    case Op::kSub:
      return "subtract";
    case Op::kMul:
      return "multiply";
    case Op::kDiv:
      return "divide";
    case Op::kRem:
      return "remainder";
    case Op::kMin:
      return "minimum";
    case Op::kMax:
      return "maximum";
    case Op::kAnd:
      return "and";
    case Op::kOr:
      return "or";
    case Op::kNegate:
      return "negate";
    case Op::kExp:
      return "exponential";
    case Op::kLogistic:
      return "logistic";
    default:
      return nullptr;
  }
}

// Dimensions 0 .. rank - 1 but `without`, moved up by `shift`.
std::vector<int64_t> Others(size_t rank, int64_t without, int64_t shift) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < static_cast<int64_t>(rank); ++i) {
    if (i != without) dims.push_back(i + shift);
  }
  return dims;
}

class Printer {
 public:
  Printer(const Module& module, bool locations) : m_(module), locations_(locations) {}

  std::string Text() {
    std::string head = "module @" + m_.name() +
                       " attributes {mhlo.num_partitions = " + std::to_string(m_.partitions) +
                       " : i32, mhlo.num_replicas = 1 : i32} {\n  func.func public @main(";
    for (size_t i = 0; i < m_.inputs().size(); ++i) {
      const Port& p = m_.inputs()[i];
      head += (i == 0 ? "" : ", ") + Name(p.node) + (m_.partitions > 1 ? "_whole" : "") + ": " +
              ToString(m_.Whole(p)) + Attributes(p, false);
    }
    std::string types, names, body;
    if (m_.partitions > 1) {
      for (const Port& p : m_.inputs()) body += PartOf(p);
    }
    for (size_t i = 0; i < m_.nodes().size(); ++i) Print(static_cast<int>(i), &body);
    for (const Port& p : m_.outputs()) {
      const std::string type = ToString(m_.Whole(p));
      head += types.empty() ? ") -> (" : ", ";
      head += type + Attributes(p, true);
      types += (types.empty() ? "" : ", ") + type;
      if (m_.partitions > 1) body += WholeOf(p);
      names +=
          (names.empty() ? "" : ", ") + (m_.partitions > 1 ? "%whole_" + p.name : Name(p.node));
    }
    return head + ") {\n" + body + "    return " + names + " : " + types + "\n  }\n}\n";
  }

 private:
  // As GSPMD has it: what lies between these two custom calls is one chip's program.
  std::string PartOf(const Port& p) const {
    const std::string name = Name(p.node), type = ToString(m_.Whole(p));
    return "    " + name + "_split = stablehlo.custom_call @Sharding(" + name +
           "_whole) {mhlo.sharding = \"" + Sharding(p) + "\"} : (" + type + ") -> " + type +
           "\n    " + name + " = stablehlo.custom_call @SPMDFullToShardShape(" + name +
           "_split) {mhlo.sharding = \"{manual}\"} : (" + type + ") -> " + TypeOf(p.node) + "\n";
  }

  std::string WholeOf(const Port& p) const {
    const std::string part = TypeOf(p.node);
    return "    %part_" + p.name + " = stablehlo.custom_call @Sharding(" + Name(p.node) +
           ") {mhlo.sharding = \"{manual}\"} : (" + part + ") -> " + part + "\n    %whole_" +
           p.name + " = stablehlo.custom_call @SPMDShardToFullShape(%part_" + p.name +
           ") {mhlo.sharding = \"" + Sharding(p) + "\"} : (" + part + ") -> " +
           ToString(m_.Whole(p)) + "\n";
  }

  std::string Sharding(const Port& p) const {
    if (p.split < 0) return "{replicated}";
    const std::string count = std::to_string(m_.partitions);
    std::vector<int64_t> parts(m_.At(p.node).type.shape.size(), 1);
    parts[static_cast<size_t>(p.split)] = m_.partitions;
    std::string text;
    for (int64_t n : parts) text += (text.empty() ? "" : ",") + std::to_string(n);
    return "{devices=[" + text + "]<=[" + count + "]}";
  }

  std::string Attributes(const Port& p, bool result) const {
    std::string text;
    if (result) text = "jax.result_info = \"" + p.name + "\"";
    if (p.gives_to >= 0) text = "tf.aliasing_output = " + std::to_string(p.gives_to) + " : i32";
    if (m_.partitions > 1) {
      text += (text.empty() ? "" : ", ") + ("mhlo.sharding = \"" + Sharding(p) + "\"");
    }
    return text.empty() ? "" : " {" + text + "}";
  }

  std::string Name(int node) const {
    const Node& n = m_.At(node);
    if (n.op == Op::kInput) return "%" + m_.inputs()[static_cast<size_t>(n.ints[0])].name;
    if (n.op == Op::kResult) {
      const Kernel& kernel = m_.kernels()[static_cast<size_t>(m_.At(n.operands[0]).ints[0])];
      const bool many = kernel.program.Count(ir::Role::kOutput) > 1;
      return "%" + std::to_string(n.operands[0]) + (many ? "#" + std::to_string(n.ints[0]) : "");
    }
    return "%" + std::to_string(node);
  }

  std::string TypeOf(int node) const { return ToString(m_.At(node).type); }

  std::string Names(const Node& n) const {
    std::string text;
    for (int operand : n.operands) text += (text.empty() ? "" : ", ") + Name(operand);
    return text;
  }

  std::string Types(const Node& n) const {
    std::string text;
    for (int operand : n.operands) text += (text.empty() ? "" : ", ") + TypeOf(operand);
    return "(" + text + ")";
  }

  void Print(int node, std::string* out) const {
    const Node& n = m_.At(node);
    if (n.op == Op::kInput || n.op == Op::kResult) return;
    *out += "    %" + std::to_string(node);
    if (n.op == Op::kKernel) return PrintKernel(n, out);
    *out += " = " + Expression(n) + "\n";
  }

  static std::string Layout(size_t rank) {
    std::vector<int64_t> order;
    for (size_t i = rank; i-- > 0;) order.push_back(static_cast<int64_t>(i));
    const std::string dims = rank == 0 ? "" : rank == 1 ? "0" : "[" + List(order) + "]";
    return "dense<" + dims + "> : tensor<" + std::to_string(rank) + "xindex>";
  }

  void PrintKernel(const Node& n, std::string* out) const {
    const ir::Program& program = m_.kernels()[static_cast<size_t>(n.ints[0])].program;
    const int results = program.Count(ir::Role::kOutput);
    std::string operand_layouts, result_layouts, types, aliases;
    for (int operand : n.operands) {
      operand_layouts +=
          (operand_layouts.empty() ? "" : ", ") + Layout(m_.At(operand).type.shape.size());
    }
    for (int i = 0; i < results; ++i) {
      const ir::Type& array = program.Get(ir::Role::kOutput, i).array;
      result_layouts += (i == 0 ? "" : ", ") + Layout(array.shape.size());
      types += (i == 0 ? "" : ", ") + ToString(Type{array.dtype, array.shape});
    }
    for (const auto& [input, output] : program.aliases) {
      aliases += std::string(aliases.empty() ? "" : ", ") +
                 "#stablehlo.output_operand_alias<output_tuple_indices = [" +
                 (results > 1 ? std::to_string(output) : "") +
                 "], operand_index = " + std::to_string(input) + ", operand_tuple_indices = []>";
    }
    if (results > 1) *out += ":" + std::to_string(results);
    *out += " = stablehlo.custom_call @tpu_custom_call(" + Names(n) +
            ") {backend_config = " + Quoted(BackendConfig(program, locations_, m_.pin_windows)) +
            (program.side_effects ? ", has_side_effect = true" : "") + ", kernel_name = \"" +
            program.name + "\", " + (m_.partitions > 1 ? "mhlo.sharding = \"{manual}\", " : "") +
            "operand_layouts = [" + operand_layouts + "], " +
            (aliases.empty() ? "" : "output_operand_aliases = [" + aliases + "], ") +
            "result_layouts = [" + result_layouts + "]} : " + Types(n) + " -> " +
            (results > 1 ? "(" + types + ")" : types) + " loc(\"" + program.name + "\")\n";
  }

  std::string Expression(const Node& n) const {
    const std::string result = ToString(n.type);
    if (const char* const mnemonic = Mnemonic(n.op)) {
      return std::string("stablehlo.") + mnemonic + " " + Names(n) + " : " + result;
    }
    const std::string arrow = " : " + Types(n) + " -> " + result;
    const std::string a = n.operands.empty() ? "" : Name(n.operands[0]);
    switch (n.op) {
      case Op::kConstant:
        return "stablehlo.constant dense<" + Literal(n.type.dtype, n.number) + "> : " + result;
      case Op::kLiteral: {
        size_t next = 0;
        return "stablehlo.constant dense<" + Nested(n.type, n.numbers, 0, &next) + "> : " + result;
      }
      case Op::kIota:
        return "stablehlo.iota dim = " + std::to_string(n.ints[0]) + " : " + result;
      case Op::kTranspose:
        return "stablehlo.transpose " + a + ", dims = [" + List(n.ints) + "]" + arrow;
      case Op::kReshape:
        return "stablehlo.reshape " + a + arrow;
      case Op::kConvert:
        return "stablehlo.convert " + a + arrow;
      case Op::kBroadcast:
        return "stablehlo.broadcast_in_dim " + a + ", dims = [" + List(n.ints) + "]" + arrow;
      case Op::kSlice: {
        std::string ranges;
        const size_t rank = n.ints.size() / 2;
        for (size_t i = 0; i < rank; ++i) {
          ranges += (i == 0 ? "" : ", ") + std::to_string(n.ints[i]) + ":" +
                    std::to_string(n.ints[rank + i]);
        }
        return "stablehlo.slice " + a + " [" + ranges + "]" + arrow;
      }
      case Op::kPad: {
        const auto middle = n.ints.begin() + static_cast<int64_t>(n.ints.size() / 2);
        return "stablehlo.pad " + Names(n) + ", low = [" + List({n.ints.begin(), middle}) +
               "], high = [" + List({middle, n.ints.end()}) + "], interior = [" +
               List(std::vector<int64_t>(n.ints.size() / 2, 0)) + "]" + arrow;
      }
      case Op::kConcat:
        return "stablehlo.concatenate " + Names(n) + ", dim = " + std::to_string(n.ints[0]) + arrow;
      case Op::kCompare: {
        static const char* const kNames[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
        const DType dtype = m_.At(n.operands[0]).type.dtype;
        return std::string("stablehlo.compare ") + kNames[n.ints[0]] + ", " + Names(n) + ", " +
               (ir::IsFloat(dtype)    ? "FLOAT"
                : dtype == DType::kI1 ? "UNSIGNED"
                                      : "SIGNED") +
               arrow;
      }
      case Op::kSelect:
        return "stablehlo.select " + Names(n) + " : " + TypeOf(n.operands[0]) + ", " + result;
      case Op::kGather:
        return Gather(n);
      case Op::kScatter:
        return Scatter(n);
      case Op::kReduceSum:
        return Reduce(n);
      case Op::kCumSum:
        return CumSum(n);
      default:
        throw ir::BuildError("the printer does not know an operation");
    }
  }

  std::string Gather(const Node& n) const {
    const Shape& shape = m_.At(n.operands[0]).type.shape;
    const int64_t dimension = n.ints[0], size = n.ints[1];
    Shape sizes = shape;
    sizes[static_cast<size_t>(dimension)] = std::max<int64_t>(size, 1);
    const std::string d = std::to_string(dimension);
    const std::string dims = size == 0
                                 ? "offset_dims = [" + List(Others(shape.size(), dimension, 0)) +
                                       "], collapsed_slice_dims = [" + d + "]"
                                 : "offset_dims = [" + List(Others(shape.size(), -1, 1)) + "]";
    return "\"stablehlo.gather\"(" + Names(n) + ") <{dimension_numbers = #stablehlo.gather<" +
           dims + ", start_index_map = [" + d +
           "], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = " +
           I64Array(sizes) + "}> : " + Types(n) + " -> " + ToString(n.type);
  }

  std::string Scatter(const Node& n) const {
    const size_t rank = n.type.shape.size();
    const std::string d = std::to_string(n.ints[0]);
    const std::string scalar = ToString(Type{n.type.dtype, {}});
    const std::string dims = "update_window_dims = [" + List(Others(rank, n.ints[0], 0)) +
                             "], inserted_window_dims = [" + d + "]";
    return "\"stablehlo.scatter\"(" + Names(n) +
           ") <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<" +
           dims + ", scatter_dims_to_operand_dims = [" + d +
           "], index_vector_dim = 1>, unique_indices = " + (n.ints[1] != 0 ? "true" : "false") +
           "}> ({\n    ^bb0(%_old: " + scalar + ", %_new: " + scalar +
           "):\n      stablehlo.return %_new : " + scalar + "\n    }) : " + Types(n) + " -> " +
           ToString(n.type);
  }

  std::string Reduce(const Node& n) const {
    const std::string scalar = ToString(Type{n.type.dtype, {}});
    return "\"stablehlo.reduce\"(" + Names(n) + ") <{dimensions = " + I64Array(n.ints) +
           "}> ({\n    ^bb0(%_x: " + scalar + ", %_y: " + scalar + "):\n      %_z = stablehlo.add" +
           " %_x, %_y : " + scalar + "\n      stablehlo.return %_z : " + scalar + "\n    }) : (" +
           TypeOf(n.operands[0]) + ", " + scalar + ") -> " + ToString(n.type);
  }

  std::string CumSum(const Node& n) const {
    const size_t rank = n.type.shape.size();
    const auto d = static_cast<size_t>(n.ints[0]);
    const std::vector<int64_t> ones(rank, 1);
    std::vector<int64_t> window = ones;
    window[d] = n.type.shape[d];
    std::string padding;
    for (size_t i = 0; i < rank; ++i) {
      padding += std::string(i == 0 ? "[" : ", [") + std::to_string(window[i] - 1) + ", 0]";
    }
    const std::string scalar = ToString(Type{n.type.dtype, {}});
    return "\"stablehlo.reduce_window\"(" + Names(n) + ") <{base_dilations = " + I64Array(ones) +
           ", padding = dense<[" + padding + "]> : tensor<" + std::to_string(rank) +
           "x2xi64>, window_dilations = " + I64Array(ones) +
           ", window_dimensions = " + I64Array(window) + ", window_strides = " + I64Array(ones) +
           "}> ({\n    ^bb0(%_x: " + scalar + ", %_y: " + scalar +
           "):\n      %_z = stablehlo.add " + "%_x, %_y : " + scalar +
           "\n      stablehlo.return %_z : " + scalar + "\n    }) : (" + TypeOf(n.operands[0]) +
           ", " + scalar + ") -> " + ToString(n.type);
  }

  const Module& m_;
  const bool locations_;
};

}  // namespace

std::string Print(const Module& module, bool locations) {
  return Printer(module, locations).Text();
}

}  // namespace kda::tpu::hlo
