#include "tpu/schedule/hlo.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

namespace kda::tpu {
namespace {
using std::string_view;

// Position after the ')' that closes the '(' at `open`; npos: there is none.
size_t AfterClosing(string_view text, size_t open) {
  int depth = 0;
  for (size_t at = open; at < text.size(); ++at) {
    if (text[at] == '(') ++depth;
    if (text[at] == ')' && --depth == 0) return at + 1;
  }
  return string_view::npos;
}

// Every "%name" of `text`.
std::vector<std::string> Names(string_view text) {
  std::vector<std::string> names;
  for (size_t at = 0; (at = text.find('%', at)) != string_view::npos;) {
    const size_t end = std::min(text.find_first_of(" ,(){}", at), text.size());
    names.emplace_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return names;
}

// Without "body":"...", which is most of a kernel's line.
std::string WithoutBody(string_view text) {
  static constexpr char kKey[] = "\"body\":\"";
  const size_t begin = text.find(kKey);
  if (begin == string_view::npos) return std::string(text);
  const size_t end = text.find('"', begin + sizeof kKey - 1);
  if (end == string_view::npos) return std::string(text.substr(0, begin));
  return std::string(text.substr(0, begin)) + std::string(text.substr(end + 1));
}

// "  ROOT %name = shape opcode(arguments), attributes"
bool ParseOp(string_view line, HloOp* op) {
  size_t at = line.find_first_not_of(' ');
  if (at == string_view::npos || at == 0) return false;
  if (line.substr(at, 5) == "ROOT ") at += 5;
  const size_t equals = line.find(" = ", at);
  if (at >= line.size() || line[at] != '%' || equals == string_view::npos) return false;
  op->name = line.substr(at + 1, equals - at - 1);
  at = equals + 3;
  if (at >= line.size()) return false;
  const size_t end = line[at] == '(' ? AfterClosing(line, at) : line.find(' ', at);
  if (end == string_view::npos) return false;
  op->result = line.substr(at, end - at);
  at = line.find_first_not_of(' ', end);
  if (at == string_view::npos) return false;
  const size_t open = line.find('(', at);
  if (open == string_view::npos) return false;
  op->opcode = line.substr(at, open - at);
  const size_t close = AfterClosing(line, open);
  if (close == string_view::npos) return false;
  op->arguments = line.substr(open + 1, close - open - 2);
  // Constants hold no names, and much text.
  if (op->opcode == "constant") {
    if (op->arguments.size() > 32) op->arguments.clear();
  } else {
    op->operands = Names(op->arguments);
  }
  op->attributes = WithoutBody(line.substr(close));
  return true;
}

// "ENTRY %main.8 (Arg_0: ...) -> ... {" -> "main.8"
bool ParseHeader(string_view line, std::string* name, bool* entry) {
  if (line.empty() || line.back() != '{' || line[0] == ' ') return false;
  *entry = line.substr(0, 6) == "ENTRY ";
  const size_t percent = line.find('%');
  if (percent != (*entry ? 6U : 0U)) return false;
  const size_t space = line.find(' ', percent);
  if (space == string_view::npos) return false;
  *name = line.substr(percent + 1, space - percent - 1);
  return true;
}

int64_t DtypeBits(string_view name) {
  static constexpr struct {
    const char* name;
    int bits;
  } kBits[] = {{"pred", 8}, {"bf16", 16}, {"f16", 16}, {"s16", 16}, {"u16", 16}, {"s4", 4},
               {"u4", 4},   {"s64", 64},  {"u64", 64}, {"f64", 64}, {"f32", 32}, {"s32", 32},
               {"u32", 32}, {"s8", 8},    {"u8", 8},   {"token", 0}};
  for (const auto& dtype : kBits) {
    if (name == dtype.name) return dtype.bits;
  }
  return name.substr(0, 2) == "f8" ? 8 : 0;
}

std::vector<int64_t> Numbers(string_view text) {
  std::vector<int64_t> numbers;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string number(text.substr(at, end - at));
    if (!number.empty()) numbers.push_back(strtoll(number.c_str(), nullptr, 10));
    at = end + 1;
  }
  return numbers;
}

// Text from elsewhere may hold any number: the largest instead of an overflow.
int64_t Sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int64_t Twice(int64_t a) { return Sum(a, a); }

struct Array {
  int64_t bits = 0;
  std::vector<int64_t> dims;
  string_view layout;  // "1,0:T(8,128)S(1)"
};

// The arrays of a shape, "(bf16[8,128]{1,0:T(8,128)}, s32[])".
std::vector<Array> Arrays(string_view shape) {
  std::vector<Array> arrays;
  for (size_t at = 0; (at = shape.find('[', at)) != string_view::npos;) {
    size_t begin = at;
    while (begin > 0 && isalnum(static_cast<unsigned char>(shape[begin - 1])) != 0) --begin;
    const size_t close = shape.find(']', at);
    if (close == string_view::npos) break;
    Array array;
    array.bits = DtypeBits(shape.substr(begin, at - begin));
    array.dims = Numbers(shape.substr(at + 1, close - at - 1));
    at = close + 1;
    if (at < shape.size() && shape[at] == '{') {
      const size_t end = shape.find('}', at);
      if (end == string_view::npos) break;
      array.layout = shape.substr(at + 1, end - at - 1);
      at = end;
    }
    arrays.push_back(array);
  }
  return arrays;
}

int64_t ArrayBytes(const Array& array) {
  const size_t space = array.layout.find("S(");
  if (space != string_view::npos && array.layout.substr(space, 4) != "S(0)") return 0;
  std::vector<int64_t> dims = array.dims;
  const std::vector<int64_t> order = Numbers(array.layout.substr(0, array.layout.find(':')));
  const size_t tile = array.layout.find("T(");
  if (tile != string_view::npos && order.size() == dims.size()) {
    const size_t close = std::min(array.layout.find(')', tile), array.layout.size());
    const std::vector<int64_t> tiles = Numbers(array.layout.substr(tile + 2, close - tile - 2));
    // The last number tiles the minor dimension, order[0], and so on outwards.
    for (size_t i = 0; i < tiles.size() && i < order.size(); ++i) {
      const int64_t t = tiles[tiles.size() - 1 - i];
      const auto dim = static_cast<size_t>(order[i]);
      if (t > 0 && dim < dims.size() && tiles.size() > 1) dims[dim] = Sum(dims[dim], t - 1) / t * t;
    }
  }
  int64_t bits = array.bits;
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(bits, dim, &bits)) return 0;
  }
  return std::max<int64_t>(0, bits / 8);
}

bool Slices(const std::string& opcode) {
  return opcode == "dynamic-slice" || opcode == "slice" || opcode == "gather";
}

const std::string* ShapeOf(const HloComputation& computation, const std::string& name) {
  const HloOp* op = computation.Find(name);
  return op != nullptr ? &op->result : nullptr;
}

// As large as `shape` is, were it in HBM: what counts for a slice of an operand that is.
int64_t BytesAnywhere(const std::string& shape) {
  std::string text = shape;
  for (size_t at = 0; (at = text.find("S(", at)) != std::string::npos; at += 2) text[at] = '_';
  return HbmBytes(text);
}

// What a fusion reads of parameter `number`, whose shape takes `all` bytes.
int64_t ParameterBytes(const HloComputation& body, size_t number, int64_t all) {
  std::string name;
  for (const HloOp& op : body.ops) {
    if (op.opcode == "parameter" && op.arguments == std::to_string(number)) name = op.name;
  }
  int64_t sliced = 0;
  bool used = false;
  for (const HloOp& op : body.ops) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (op.operands[i] != name) continue;
      used = true;
      if (Slices(op.opcode) && i == 0) {
        sliced = Sum(sliced, BytesAnywhere(op.result));
      } else if (op.opcode == "dynamic-update-slice" && i == 0) {
        // updated in place: its other parts are not touched
      } else {
        return all;
      }
    }
  }
  return used ? std::min(all, sliced) : 0;
}

// What a fusion writes: the update alone where its root updates a parameter in place.
int64_t ResultBytes(const HloModule& module, const HloOp& op) {
  const int64_t all = HbmBytes(op.result);
  const HloComputation* body = module.Find(Attribute(op, "calls"));
  const HloOp* root = body != nullptr ? body->Root() : &op;
  const HloComputation* scope = body;
  if (root == nullptr || root->opcode != "dynamic-update-slice" || scope == nullptr ||
      root->operands.size() < 2) {
    return all;
  }
  const std::string* update = ShapeOf(*scope, root->operands[1]);
  return update != nullptr ? std::min(all, BytesAnywhere(*update)) : all;
}

// Elements that one index of a gather fetches.
int64_t SliceElements(const HloOp& gather) {
  static constexpr char kKey[] = "slice_sizes={";
  const size_t at = gather.attributes.find(kKey);
  if (at == std::string::npos) return 1;
  const size_t begin = at + sizeof kKey - 1;
  const size_t end = std::min(gather.attributes.find('}', begin), gather.attributes.size());
  int64_t elements = 1;
  for (const int64_t size : Numbers(string_view(gather.attributes).substr(begin, end - begin))) {
    if (size > 0 && __builtin_mul_overflow(elements, size, &elements)) return 1;
  }
  return elements;
}

// An integer that `name` is bound to, through copies; in a loop's computations `init` are the
// operands of the tuple it started from, which belong to `outer`.
class Constants {
 public:
  Constants(const HloComputation& outer, const HloOp* init) : outer_(outer), init_(init) {}

  bool Value(const HloComputation& scope, const std::string& name, int64_t* value,
             int depth = 0) const {
    const HloOp* op = scope.Find(name);
    if (op == nullptr || depth > 16) return false;
    if (op->opcode == "constant") {
      char* end = nullptr;
      *value = strtoll(op->arguments.c_str(), &end, 10);
      return end != op->arguments.c_str();
    }
    if ((op->opcode == "copy" || op->opcode == "bitcast") && op->operands.size() == 1) {
      return Value(scope, op->operands[0], value, depth + 1);
    }
    int64_t index = 0;
    return &scope != &outer_ && Carried(scope, name, &index) && init_ != nullptr &&
           static_cast<size_t>(index) < init_->operands.size() &&
           Value(outer_, init_->operands[static_cast<size_t>(index)], value, depth + 1);
  }

  // Whether `name` is an element that the loop carries, and which.
  static bool Carried(const HloComputation& scope, const std::string& name, int64_t* index) {
    const HloOp* op = scope.Find(name);
    for (int i = 0; op != nullptr && op->opcode == "copy" && i < 16; ++i) {
      op = op->operands.size() == 1 ? scope.Find(op->operands[0]) : nullptr;
    }
    if (op == nullptr || op->opcode != "get-tuple-element" || op->operands.size() != 1)
      return false;
    const HloOp* tuple = scope.Find(op->operands[0]);
    if (tuple == nullptr || tuple->opcode != "parameter") return false;
    const std::string text = Attribute(*op, "index");
    *index = strtoll(text.c_str(), nullptr, 10);
    return !text.empty() && *index >= 0;
  }

 private:
  const HloComputation& outer_;
  const HloOp* init_;
};

}  // namespace

const HloOp* HloComputation::Find(const std::string& name) const {
  const auto it = index.find(name);
  return it == index.end() ? nullptr : &ops[it->second];
}

const HloComputation* HloModule::Find(const std::string& name) const {
  const auto it = computations.find(name);
  return it == computations.end() ? nullptr : &it->second;
}

HloModule ParseHlo(const std::string& text) {
  HloModule module;
  HloComputation* current = nullptr;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    const string_view line = string_view(text).substr(from, to - from);
    from = to + 1;
    std::string name;
    bool entry = false;
    HloOp op;
    if (ParseHeader(line, &name, &entry)) {
      current = &module.computations[name];
      if (entry) module.entry = name;
    } else if (current != nullptr && ParseOp(line, &op)) {
      current->index[op.name] = current->ops.size();
      current->ops.push_back(std::move(op));
    }
  }
  return module;
}

std::string Attribute(const HloOp& op, const std::string& key) {
  const std::string pattern = " " + key + "=";
  const size_t at = op.attributes.find(pattern);
  if (at == std::string::npos) return "";
  size_t begin = at + pattern.size();
  begin = std::min(op.attributes.find_first_not_of("%{", begin), op.attributes.size());
  const size_t end = std::min(op.attributes.find_first_of(", }", begin), op.attributes.size());
  return op.attributes.substr(begin, end - begin);
}

int64_t HbmBytes(const std::string& shape) {
  int64_t bytes = 0;
  for (const Array& array : Arrays(shape)) bytes = Sum(bytes, ArrayBytes(array));
  return bytes;
}

int64_t Elements(const std::string& shape) {
  const std::vector<Array> arrays = Arrays(shape);
  int64_t count = 1;
  if (arrays.empty()) return 0;
  for (const int64_t dim : arrays[0].dims) {
    if (__builtin_mul_overflow(count, dim, &count)) return 0;
  }
  return count;
}

int64_t OperationBytes(const HloModule& module, const HloComputation& computation,
                       const HloOp& op) {
  const HloComputation* body = module.Find(Attribute(op, "calls"));
  int64_t bytes = ResultBytes(module, op);
  if (op.opcode == "dynamic-update-slice" && op.operands.size() >= 2) {
    const std::string* update = ShapeOf(computation, op.operands[1]);
    return update != nullptr ? Twice(BytesAnywhere(*update)) : bytes;
  }
  if (Slices(op.opcode)) return Sum(bytes, BytesAnywhere(op.result));
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const std::string* shape = ShapeOf(computation, op.operands[i]);
    if (shape == nullptr) continue;
    const int64_t all = HbmBytes(*shape);
    bytes = Sum(bytes, body != nullptr && all > 0 ? ParameterBytes(*body, i, all) : all);
  }
  return bytes;
}

RowMoves FindRowMoves(const HloModule& module, const HloComputation& computation, const HloOp& op) {
  std::vector<std::pair<const HloComputation*, const HloOp*>> todo = {{&computation, &op}};
  std::set<std::string> seen;
  RowMoves moves;
  while (!todo.empty()) {
    const auto [scope, current] = todo.back();
    todo.pop_back();
    if (current->opcode == "gather") {
      moves.opcode = current->opcode;
      moves.rows = Sum(moves.rows, Elements(current->result) / SliceElements(*current));
      moves.bytes = Sum(moves.bytes, Twice(BytesAnywhere(current->result)));
    } else if (current->opcode == "scatter" && current->operands.size() >= 3) {
      const std::string* indices = ShapeOf(*scope, current->operands[1]);
      const std::string* updates = ShapeOf(*scope, current->operands[2]);
      moves.opcode = current->opcode;
      if (indices != nullptr) moves.rows = Sum(moves.rows, Elements(*indices));
      if (updates != nullptr) moves.bytes = Sum(moves.bytes, Twice(BytesAnywhere(*updates)));
    }
    // A gather that the SparseCore takes over lies two calls deep, the inner one a call-start.
    for (const char* key : {"calls", "called_computations", "to_apply"}) {
      const std::string name = Attribute(*current, key);
      const HloComputation* body = module.Find(name);
      if (body == nullptr || !seen.insert(name).second) continue;
      for (const HloOp& inner : body->ops) todo.emplace_back(body, &inner);
    }
  }
  return moves;
}

int64_t WhileTrips(const HloModule& module, const HloComputation& computation, const HloOp& op) {
  const HloComputation* condition = module.Find(Attribute(op, "condition"));
  const HloComputation* body = module.Find(Attribute(op, "body"));
  if (condition == nullptr || body == nullptr || op.operands.size() != 1) return 0;
  const Constants constants(computation, computation.Find(op.operands[0]));
  const HloOp* test = condition->Root();
  const HloOp* next = body->Root();
  if (test == nullptr || test->opcode != "compare" || test->operands.size() != 2 ||
      Attribute(*test, "direction") != "LT" || next == nullptr || next->opcode != "tuple") {
    return 0;
  }
  int64_t index = 0, bound = 0, step = 0, initial = 0, carried = 0;
  if (!Constants::Carried(*condition, test->operands[0], &index) ||
      !constants.Value(*condition, test->operands[1], &bound) ||
      !constants.Value(*condition, test->operands[0], &initial) ||
      static_cast<size_t>(index) >= next->operands.size()) {
    return 0;
  }
  const HloOp* add = body->Find(next->operands[static_cast<size_t>(index)]);
  if (add == nullptr || add->opcode != "add" || add->operands.size() != 2) return 0;
  for (const int side : {0, 1}) {
    const std::string& counter = add->operands[static_cast<size_t>(side)];
    const std::string& constant = add->operands[static_cast<size_t>(1 - side)];
    if (Constants::Carried(*body, counter, &carried) && carried == index &&
        constants.Value(*body, constant, &step) && step > 0) {
      int64_t span = 0;
      const bool known = bound > initial && !__builtin_sub_overflow(bound, initial, &span);
      return known ? (span - 1) / step + 1 : 0;
    }
  }
  return 0;
}

}  // namespace kda::tpu
