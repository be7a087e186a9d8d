#include "tpu/ir/printer.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace kda::tpu::ir {

namespace {

std::string Hex(uint32_t bits, int digits) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%0*X", digits, bits);
  return text;
}

// The literal of a constant, without its type.
std::string Literal(DType dtype, double number) {
  if (dtype == DType::kI1) return number != 0 ? "true" : "false";
  if (dtype == DType::kI32) return std::to_string(static_cast<int64_t>(number));
  const auto value = static_cast<float>(number);
  if (dtype == DType::kBF16) return Hex(ToBF16(value), 4);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return Hex(bits, 8);
}

std::string List(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

std::string Array(const char* type, const std::vector<int64_t>& numbers) {
  return std::string("array<") + type + (numbers.empty() ? "" : ": ") + List(numbers) + ">";
}

const char* Mnemonic(Op op, bool floating) {
  switch (op) {
    case Op::kAdd:
      return floating ? "arith.addf" : "arith.addi";
    case Op::kSub:
      return floating ? "arith.subf" : "arith.subi";
    case Op::kMul:
      return floating ? "arith.mulf" : "arith.muli";
    case Op::kDiv:
      return floating ? "arith.divf" : "arith.divsi";
    case Op::kRem:
      return "arith.remsi";
    case Op::kMin:
      return floating ? "arith.minimumf" : "arith.minsi";
    case Op::kMax:
      return floating ? "arith.maximumf" : "arith.maxsi";
    case Op::kAnd:
      return "arith.andi";
    case Op::kOr:
      return "arith.ori";
    case Op::kXor:
      return "arith.xori";
    case Op::kShiftLeft:
      return "arith.shli";
    case Op::kShiftRight:
      return "arith.shrui";
    case Op::kExp2:
      return "math.exp2";
    case Op::kLog:
      return "math.log";
    case Op::kTanh:
      return "math.tanh";
    case Op::kRsqrt:
      return "math.rsqrt";
    case Op::kAbs:
      return "math.absf";
    default:
      return nullptr;
  }
}

const char* Predicate(Comparison comparison, bool floating) {
  static const char* const kNames[][2] = {{"eq", "oeq"},  {"ne", "une"},  {"slt", "olt"},
                                          {"sle", "ole"}, {"sgt", "ogt"}, {"sge", "oge"}};
  return kNames[static_cast<int64_t>(comparison)][floating ? 1 : 0];
}

class Printer {
 public:
  Printer(const Program& program, bool locations) : p_(program), locations_(locations) {}

  std::string Module() {
    std::string text = "module attributes {stable_mosaic.version = 15 : i64} {\n" + Kernel();
    for (size_t i = 0; i < p_.arguments.size(); ++i) {
      if (p_.arguments[i].window.present) text += WindowMap(static_cast<int>(i));
    }
    return text + "}\n";
  }

 private:
  const Node& At(int node) const { return p_.nodes[static_cast<size_t>(node)]; }

  // --- Functions ---

  std::string GridArguments() const {
    std::string text;
    for (size_t i = 0; i < p_.grid.size(); ++i) {
      text += (i == 0 ? "%g" : ", %g") + std::to_string(i) + ": i32";
    }
    return text;
  }

  std::string Kernel() {
    std::string header = "  func.func @" + p_.name + "(" + GridArguments();
    std::string windows;
    for (const Argument& a : p_.arguments) {
      header += (header.back() == '(' ? "" : ", ") + Name(a.node) + ": " + ToString(a.memory);
      if (a.role == Role::kInput || a.role == Role::kOutput) {
        windows += (windows.empty() ? "" : ", ") + WindowParameters(a);
      }
    }
    std::string semantics;
    for (size_t i = 0; i < p_.grid.size(); ++i) {
      semantics += i == 0 ? "" : ", ";
      semantics += "#tpu.dimension_semantics<arbitrary>";
    }
    header += ") attributes {dimension_semantics = [" + semantics +
              "], iteration_bounds = " + Array("i64", p_.grid) +
              ", scalar_prefetch = " + std::to_string(p_.Count(Role::kPrefetch)) +
              " : i64, scratch_operands = " + std::to_string(p_.Count(Role::kScratch)) +
              " : i64, tpu.core_type = #tpu.core_type<tc>, window_params = [" + windows + "]} {\n";
    std::string body;
    StartFunction();
    PrintBlock(p_.body, 2, &body);
    return header + constants_ + body + "    return\n  }\n";
  }

  std::string WindowParameters(const Argument& a) const {
    if (!a.window.present) return "{}";
    const size_t index = static_cast<size_t>(At(a.node).ints[0]);
    std::string text = "{";
    if (!a.window.pipelined && a.memory.space == Space::kVmem) {
      text += "pipeline_mode = #tpu.pipeline_mode<synchronous>, ";
    }
    return text + "transform_indices = @window_" + std::to_string(index) +
           ", window_bounds = " + Array("i64", a.memory.shape) + "}";
  }

  std::string WindowMap(int index) {
    const Argument& argument = p_.arguments[static_cast<size_t>(index)];
    std::string header = "  func.func @window_" + std::to_string(index) + "(" + GridArguments();
    for (const Argument& a : p_.arguments) {
      if (a.role != Role::kPrefetch) continue;
      header += (header.back() == '(' ? "" : ", ") + Name(a.node) + ": " + ToString(a.memory);
    }
    std::string body, results, types;
    StartFunction();
    PrintBlock(argument.window.block, 2, &body);
    for (int node : argument.window.results) {
      results += (results.empty() ? "" : ", ") + Name(node);
      types += types.empty() ? "i32" : ", i32";
    }
    return header + ") -> (" + types + ") {\n" + constants_ + body + "    return " + results +
           " : " + types + "\n  }\n";
  }

  // --- Names and constants, which stand at the head of their function ---

  void StartFunction() {
    constants_.clear();
    known_.clear();
    fresh_ = 0;
  }

  std::string Constant(const std::string& literal, const std::string& type) {
    const std::string key = literal + " : " + type;
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
    std::string name = "%c" + std::to_string(known_.size());
    known_[key] = name;
    constants_ += "    " + name + " = arith.constant " +
                  (type == "i1" ? literal : literal + " : " + type) + "\n";
    return name;
  }

  std::string Splat(const Type& type, double number) {
    const std::string literal = Literal(type.dtype, number);
    return Constant(type.shape.empty() ? literal : "dense<" + literal + ">", ToString(type));
  }

  std::string Name(int node) {
    const Node& n = At(node);
    if (n.op == Op::kConstant) return Splat(n.type, n.number);
    if (n.op == Op::kGridIndex) return "%g" + std::to_string(n.ints[0]);
    if (n.op == Op::kArgument) return "%" + p_.arguments[static_cast<size_t>(n.ints[0])].name;
    return "%" + std::to_string(node);
  }

  // --- Operations ---

  // The location names the label and, to tell apart loops and ifs that share one, the node.
  void Line(const std::string& text, int node, int depth, std::string* out) {
    out->append(2 * static_cast<size_t>(depth), ' ');
    *out += text;
    const int label = node < 0 ? 0 : At(node).label;
    if (locations_ && label != 0) {
      *out +=
          " loc(\"" + p_.labels[static_cast<size_t>(label)] + "\":" + std::to_string(node) + ":1)";
    }
    *out += '\n';
  }

  void PrintBlock(int block, int depth, std::string* out) {
    for (int node : p_.blocks[static_cast<size_t>(block)].nodes) PrintNode(node, depth, out);
  }

  // Operands [from, from + count) of a memory operation as MLIR indices.
  std::string Indices(int node, size_t from, size_t count, int depth, std::string* out) {
    const Node& n = At(node);
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      const int operand = n.operands[from + i];
      std::string name;
      if (operand < 0) {
        name = Constant(std::to_string(n.ints[i]), "index");
      } else {
        name = "%i" + std::to_string(fresh_++);
        Line(name + " = arith.index_cast " + Name(operand) + " : i32 to index", node, depth, out);
      }
      text += (i == 0 ? "" : ", ") + name;
    }
    return "[" + text + "]";
  }

  void PrintNode(int node, int depth, std::string* out) {
    const Node& n = At(node);
    switch (n.op) {
      case Op::kIf:
        Line("scf.if " + Name(n.operands[0]) + " {", -1, depth, out);
        PrintBlock(n.blocks[0], depth + 1, out);
        if (n.blocks.size() > 1) {
          Line("} else {", -1, depth, out);
          PrintBlock(n.blocks[1], depth + 1, out);
        }
        return Line("}", node, depth, out);
      case Op::kFor: {
        const std::string index = Name(p_.blocks[static_cast<size_t>(n.blocks[0])].arguments[0]);
        Line("scf.for " + index + " = " + Name(n.operands[0]) + " to " + Name(n.operands[1]) +
                 " step " + Name(n.operands[2]) + " : i32 {",
             -1, depth, out);
        PrintBlock(n.blocks[0], depth + 1, out);
        return Line("}", node, depth, out);
      }
      case Op::kStore:
      case Op::kStridedStore:
      case Op::kLoad:
      case Op::kStridedLoad:
        return PrintMemory(node, depth, out);
      case Op::kRefSlice: {
        std::string starts;
        for (size_t i = 1; i < n.operands.size(); ++i) {
          const int operand = n.operands[i];
          starts += i == 1 ? "" : ", ";
          starts += operand < 0 ? Constant(std::to_string(n.ints[i - 1]), "i32") : Name(operand);
        }
        return Line(Name(node) + " = tpu.memref_slice " + Name(n.operands[0]) + "[" + starts +
                        "] : " + Arrow(n, " -> "),
                    node, depth, out);
      }
      case Op::kEnqueueDma:
        return Line("tpu.enqueue_dma source(" + Typed(n.operands[0]) + ") target(" +
                        Typed(n.operands[1]) + ") target_semaphore(" + Typed(n.operands[2]) + ")",
                    node, depth, out);
      case Op::kWaitDma:
        return Line("tpu.wait_dma2 semaphore(" + Typed(n.operands[0]) + ") src(" +
                        Typed(n.operands[1]) + ") dst(" + Typed(n.operands[2]) + ")",
                    node, depth, out);
      case Op::kGridIndex:
      case Op::kBlockArgument:
        return;
      case Op::kConvert:
        return PrintConvert(node, depth, out);
      default:
        return Line(Name(node) + " = " + Expression(n), node, depth, out);
    }
  }

  std::string Typed(int node) { return Name(node) + " : " + ToString(At(node).type); }

  std::string Arrow(const Node& n, const char* arrow) {
    return ToString(At(n.operands[0]).type) + arrow + ToString(n.type);
  }

  void PrintMemory(int node, int depth, std::string* out) {
    const Node& n = At(node);
    const bool store = n.op == Op::kStore || n.op == Op::kStridedStore;
    const bool strided = n.op == Op::kStridedLoad || n.op == Op::kStridedStore;
    const size_t ref_at = store ? 1 : 0;
    const int ref = n.operands[ref_at];
    const std::string memory = ToString(At(ref).type);
    const size_t rank = At(ref).type.shape.size();
    const std::string place = Name(ref) + Indices(node, ref_at + 1, rank, depth, out);
    const std::string value = store ? Name(n.operands[0]) : Name(node);
    const Type& type = store ? At(n.operands[0]).type : n.type;
    std::string text;
    if (strided) {
      const std::vector<int64_t> strides(n.ints.begin() + static_cast<int64_t>(rank), n.ints.end());
      const std::string attributes = " {strides = " + Array("i32", strides) + "} : ";
      text = store ? "tpu.strided_store " + place + ", " + value + attributes + memory + ", " +
                         ToString(type)
                   : value + " = tpu.strided_load " + place + attributes + memory + ", " +
                         ToString(type);
    } else if (At(ref).type.space == Space::kSmem) {
      text = store ? "memref.store " + value + ", " + place + " : " + memory
                   : value + " = memref.load " + place + " : " + memory;
    } else {
      text = store ? "tpu.vector_store " + place + ", " + value +
                         " {strides = array<i32>} : " + memory + ", " + ToString(type) + ","
                   : value + " = vector.load " + place + " : " + memory + ", " + ToString(type);
    }
    Line(text, node, depth, out);
  }

  void PrintConvert(int node, int depth, std::string* out) {
    const Node& n = At(node);
    const Type& from = At(n.operands[0]).type;
    std::string source = Name(n.operands[0]);
    Type have = from;
    int steps = 0;
    const auto step = [&](const char* op, DType to, bool last) {
      Type next = have;
      next.dtype = to;
      const std::string name =
          last ? Name(node) : "%w" + std::to_string(node) + "_" + std::to_string(steps++);
      Line(name + " = " + op + " " + source + " : " + ToString(have) + " to " + ToString(next),
           node, depth, out);
      source = name;
      have = next;
    };
    if (have.dtype == DType::kI1) step("arith.extui", DType::kI32, n.type.dtype == DType::kI32);
    if (have.dtype == DType::kBF16) step("arith.extf", DType::kF32, n.type.dtype == DType::kF32);
    if (have.dtype == n.type.dtype) return;
    if (have.dtype == DType::kI32) step("arith.sitofp", DType::kF32, n.type.dtype == DType::kF32);
    if (have.dtype == n.type.dtype) return;
    if (n.type.dtype == DType::kBF16) return step("arith.truncf", DType::kBF16, true);
    step("arith.fptosi", DType::kI32, true);
  }

  std::string Expression(const Node& n) {
    const Type& first = n.operands.empty() ? n.type : At(n.operands[0]).type;
    const bool floating = IsFloat(first.dtype);
    const char* const mnemonic = Mnemonic(n.op, floating);
    if (mnemonic != nullptr) {
      std::string text = std::string(mnemonic) + " " + Name(n.operands[0]);
      if (n.operands.size() > 1) text += ", " + Name(n.operands[1]);
      return text + " : " + ToString(n.type);
    }
    const std::string a = n.operands.empty() ? "" : Name(n.operands[0]);
    switch (n.op) {
      case Op::kIota:
        return "tpu.iota {dimensions = " + Array("i32", n.ints) + "} : " + ToString(n.type);
      case Op::kCompare:
        return std::string(floating ? "arith.cmpf " : "arith.cmpi ") +
               Predicate(static_cast<Comparison>(n.ints[0]), floating) + ", " + a + ", " +
               Name(n.operands[1]) + " : " + ToString(first);
      case Op::kSelect:
        return "arith.select " + a + ", " + Name(n.operands[1]) + ", " + Name(n.operands[2]) +
               " : " + (first.shape.empty() ? "" : ToString(first) + ", ") + ToString(n.type);
      case Op::kAssumeMultiple:
        return "tpu.assume_multiple " + a + ", " + std::to_string(n.ints[0]) + " : i32";
      case Op::kReciprocal:
        return "tpu.reciprocal " + a + " {approx = " + (n.ints[0] != 0 ? "true" : "false") +
               "} : " + Arrow(n, " -> ");
      case Op::kBitcast:
        if (first.shape.empty()) return "arith.bitcast " + a + " : " + Arrow(n, " to ");
        return "tpu.bitcast " + a + " : " + Arrow(n, " -> ");
      case Op::kBroadcast:
        return "vector.broadcast " + a + " : " + Arrow(n, " to ");
      case Op::kShapeCast:
        return "vector.shape_cast " + a + " : " + Arrow(n, " to ");
      case Op::kSlice: {
        const auto middle = n.ints.begin() + static_cast<int64_t>(first.shape.size());
        return "vector.extract_strided_slice " + a + " offsets = [" +
               List({n.ints.begin(), middle}) + "], sizes = [" + List({middle, n.ints.end()}) +
               "], strides = [" + List(std::vector<int64_t>(first.shape.size(), 1)) +
               "] : " + Arrow(n, " to ");
      }
      case Op::kConcat: {
        std::string names, types;
        for (int operand : n.operands) {
          names += (names.empty() ? "" : ", ") + Name(operand);
          types += (types.empty() ? "" : ", ") + ToString(At(operand).type);
        }
        return "tpu.concatenate " + names + " in " + std::to_string(n.ints[0]) + " : " + types +
               " -> " + ToString(n.type);
      }
      case Op::kRotate:
        return "tpu.dynamic_rotate " + a + " by " + Name(n.operands[1]) + " dim " +
               std::to_string(n.ints[0]) + " : " + ToString(first) + ", i32 -> " + ToString(n.type);
      case Op::kTranspose:
        return "tpu.transpose " + a + ", [" + List(n.ints) + "] : " + Arrow(n, " -> ");
      case Op::kReduceSum:
      case Op::kReduceMax: {
        const bool sum = n.op == Op::kReduceSum;
        const std::string start = Splat(n.type, sum ? 0.0 : -1.0 / 0.0);
        return std::string("vector.multi_reduction <") + (sum ? "add" : "maximumf") + ">, " + a +
               ", " + start + " [" + std::to_string(n.ints[0]) + "] : " + Arrow(n, " to ");
      }
      case Op::kMatMul:
        return MatMul(n);
      case Op::kPackPair:
        return "tpu.pack_elementwise " + a + ", " + Name(n.operands[1]) +
               " {target_type = bf16} : " + ToString(first) + ", " + ToString(first) + " -> " +
               ToString(n.type);
      case Op::kRefSqueeze:
        return "tpu.memref_squeeze " + a + " : " + Arrow(n, " -> ");
      case Op::kRefBitcast:
        return "tpu.memref_bitcast " + a + " : " + Arrow(n, " -> ");
      case Op::kRefReshape:
        return "tpu.memref_reshape " + a + " : " + Arrow(n, " -> ");
      default:
        throw BuildError("the printer does not know an operation");
    }
  }

  std::string MatMul(const Node& n) {
    const bool ta = n.ints[0] != 0, tb = n.ints[1] != 0;
    const std::string a = ta ? "0" : "1", b = tb ? "1" : "0";
    const std::string free_a = ta ? "1" : "0", free_b = tb ? "0" : "1";
    const bool full = At(n.operands[0]).type.dtype == DType::kF32 &&
                      static_cast<Precision>(n.ints[2]) == Precision::kF32;
    std::string types;
    for (int operand : n.operands) {
      types += (types.empty() ? "" : ", ") + ToString(At(operand).type);
    }
    return "tpu.matmul " + Name(n.operands[0]) + ", " + Name(n.operands[1]) + ", " +
           Name(n.operands[2]) + " {dimension_numbers = #tpu.dot_dimension_numbers<[" + a + "], [" +
           b + "], [" + free_a + "], [" + free_b + "], [0, " + free_a + ", 1, " + free_b +
           "], [], []>, " + (full ? "precision = #tpu.contract_precision<fp32>, " : "") +
           "transpose_lhs_hint = false} : " + types + " -> " + ToString(n.type);
  }

  const Program& p_;
  const bool locations_;
  std::string constants_;
  std::map<std::string, std::string> known_;
  int fresh_ = 0;
};

}  // namespace

std::string Print(const Program& program, bool locations) {
  return Printer(program, locations).Module();
}

}  // namespace kda::tpu::ir
