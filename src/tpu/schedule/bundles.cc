#include "tpu/schedule/bundles.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "tpu/schedule/blocks.h"

namespace kda::tpu {
namespace {
using std::string_view;

bool StartsWith(string_view text, const char* prefix) {
  return text.substr(0, strlen(prefix)) == prefix;
}
bool Contains(string_view text, const char* part) { return text.find(part) != string_view::npos; }

// Calls `line` for each line, without its end.
template <typename F>
void ForLines(string_view text, const F& line) {
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    line(text.substr(from, to - from));
    from = to + 1;
  }
}

// " 0x1a PF: > { ..." -> "..."; false: the line goes on with the bundle before it.
bool BundleBegin(string_view line, string_view* rest) {
  size_t at = line.find_first_not_of(' ');
  if (at == string_view::npos || isdigit(static_cast<unsigned char>(line[at])) == 0) return false;
  at = line.find_first_not_of("0123456789abcdefx", at);
  if (at == string_view::npos) return false;
  at = line.find_first_not_of(" ABCDEFGHLPT", at);
  if (at == string_view::npos || line[at] != ':') return false;
  at = line.find_first_not_of(" >", at + 1);
  if (at == string_view::npos || line[at] != '{') return false;
  *rest = line.substr(at + 1);
  return true;
}

Action ActionOf(string_view op) {
  if (StartsWith(op, "dma.")) return Action::kDma;
  if (op.empty() || op[0] != 'v') return Action::kScalar;
  if (StartsWith(op, "vmatmul") || StartsWith(op, "vmatprep.mubr")) return Action::kMatmul;
  if (StartsWith(op, "vmatpush") || StartsWith(op, "vmatprep")) return Action::kMatpush;
  if (StartsWith(op, "vpop") && Contains(op, ".mr")) return Action::kMatpop;
  if (StartsWith(op, "vld")) return Action::kLoad;
  if (StartsWith(op, "vst")) return Action::kStore;
  for (const char* name : {"vpow", "vrcp", "vrsqrt", "vlog", "vtanh", "verf", "vsigmoid"}) {
    if (StartsWith(op, name)) return Action::kEup;
  }
  if (Contains(op, "xpose") || Contains(op, "xlane") || Contains(op, "lane") ||
      StartsWith(op, "vrot") || StartsWith(op, "vperm") || StartsWith(op, "vpop.trf")) {
    return Action::kXlu;
  }
  return StartsWith(op, "vsync") || StartsWith(op, "vwait") ? Action::kScalar : Action::kValu;
}

int8_t MxuOf(string_view op) {
  const size_t at = op.find(".mxu");
  if (at == string_view::npos || at + 4 >= op.size()) return -1;
  const char digit = op[at + 4];
  return digit >= '0' && digit <= '9' ? static_cast<int8_t>(digit - '0') : int8_t{-1};
}

class Parser {
 public:
  Parser(Program* program, int delay_slots) : program_(program), delay_slots_(delay_slots) {}

  void Bundle(const std::string& text) {
    const int32_t bundle = program_->bundles++;
    for (size_t from = 0; from < text.size();) {
      const size_t to = std::min(text.find("  ;;  ", from), text.size());
      Piece(string_view(text).substr(from, to - from), bundle);
      from = to + 6;
    }
  }

  void Finish() {
    LabelMatrixInstructions();
    program_->blocks = FindBlocks(branches_, definitions_, program_->bundles, delay_slots_);
  }

 private:
  void Piece(string_view piece, int32_t bundle) {
    size_t at = piece.find_first_not_of(' ');
    if (at == string_view::npos || piece[at] == '}') return;
    piece.remove_prefix(at);
    const size_t equals = piece[0] == '%' ? piece.find(" = ") : string_view::npos;
    string_view result;
    if (equals != string_view::npos) {
      result = piece.substr(1, equals - 1);
      piece.remove_prefix(equals + 3);
    }
    const string_view op = piece.substr(0, piece.find(' '));
    const Location location = LocationOf(piece);
    if (StartsWith(op, "sbr.rel")) Branch(piece, bundle, location);
    if (!result.empty() && (result[0] == 's' || result[0] == 'p')) {
      definitions_.emplace(std::string(result), std::string(piece.substr(0, piece.find("/* "))));
    }
    if (op == "sst") Spill(piece);
    Instruction instruction{};
    instruction.bundle = bundle;
    instruction.action = ActionOf(op);
    instruction.mxu = MxuOf(op);
    instruction.label = location.label.empty() ? -1 : Intern(location.label);
    if (instruction.mxu >= 0) {
      const int64_t number = NumberOf(result);
      if (number >= 0) matrix_[number] = program_->instructions.size();
    }
    program_->instructions.push_back(instruction);
  }

  // "v29019_v46" -> 29019, "29018" -> 29018; -1: there is none.
  static int64_t NumberOf(string_view result) {
    if (!result.empty() && result[0] == 'v') result.remove_prefix(1);
    const size_t end = std::min(result.find_first_not_of("0123456789"), result.size());
    return end == 0 || end > 18 ? -1
                                : strtoll(std::string(result.substr(0, end)).c_str(), nullptr, 10);
  }

  // What the compiler puts around a product of its own carries no label: what prepares the unit for
  // one (vmatprep) or for weights, and some results. It numbers them in a row, on one unit: what
  // prepares has the number in front of what it prepares, results those after their product's.
  void LabelMatrixInstructions() {
    for (const auto& [number, index] : matrix_) {
      Instruction& instruction = program_->instructions[index];
      if (instruction.label >= 0) continue;
      const bool result = instruction.action == Action::kMatpop;
      const auto other = matrix_.find(number + (result ? -1 : 1));
      if (other == matrix_.end()) continue;
      const Instruction& neighbour = program_->instructions[other->second];
      const bool fits =
          neighbour.action == instruction.action || (result && neighbour.action == Action::kMatmul);
      if (fits && neighbour.mxu == instruction.mxu) instruction.label = neighbour.label;
    }
  }

  // sst [smem:[#allocation48_spill]] %s98_s16; a place that holds several values tells nothing.
  void Spill(string_view piece) {
    const std::string place = SpillPlace(piece);
    const size_t at = piece.rfind('%', piece.find("/* "));
    if (place.empty() || at == string_view::npos) return;
    const std::string value(piece.substr(at, piece.find_first_of(" ,}", at) - at));
    const auto [it, is_new] = definitions_.emplace(place, value);
    if (!is_new && it->second != value) it->second.clear();
  }

  struct Location {
    std::string label;     // without the numbers
    std::string identity;  // with them
    int64_t line = 0;      // the first of them
  };

  // The first loc("label":line:column) of a piece.
  static Location LocationOf(string_view piece) {
    Location location;
    const size_t at = piece.find("loc(\"");
    if (at == string_view::npos) return location;
    const size_t begin = at + 5;
    const size_t quote = piece.find('"', begin);
    if (quote == string_view::npos || quote + 1 >= piece.size() || piece[quote + 1] != ':') {
      return location;
    }
    const size_t end = piece.find(')', quote);
    if (end == string_view::npos) return location;
    location.label = piece.substr(begin, quote - begin);
    const string_view numbers = piece.substr(quote + 2, end - quote - 2);
    location.identity = location.label + ":" + std::string(numbers);
    location.line = strtoll(std::string(numbers).c_str(), nullptr, 10);
    if (location.label == "-")
      location.label += ":" + std::string(numbers.substr(0, numbers.find(':')));
    return location;
  }

  // sbr.rel (!%p1_p2) /* loc("label":1:1) */ target bundleno = 85 (0x55), region = 88
  void Branch(string_view piece, int32_t bundle, const Location& location) {
    static constexpr char kTarget[] = "target bundleno = ";
    const size_t at = piece.find(kTarget);
    if (at == string_view::npos) return;
    struct Branch branch;
    branch.bundle = bundle;
    branch.target = static_cast<int32_t>(
        strtol(std::string(piece.substr(at + sizeof kTarget - 1, 10)).c_str(), nullptr, 10));
    branch.label = location.label;
    branch.identity = location.identity;
    branch.line = location.line;
    const size_t open = piece.find('(');
    if (open < at) {
      size_t name = open + 1;
      branch.negated = name < piece.size() && piece[name] == '!';
      if (branch.negated) ++name;
      const size_t close = piece.find(')', name);
      if (close != string_view::npos && name < close && piece[name] == '%') {
        branch.predicate = piece.substr(name + 1, close - name - 1);
      }
    }
    branches_.push_back(branch);
  }

  int32_t Intern(const std::string& label) {
    const auto [it, is_new] = labels_.emplace(label, static_cast<int32_t>(program_->labels.size()));
    if (is_new) program_->labels.push_back(label);
    return it->second;
  }

  Program* program_;
  int delay_slots_;
  std::map<std::string, int32_t> labels_;
  std::map<int64_t, size_t> matrix_;  // matrix instructions by the number of what they define
  std::vector<struct Branch> branches_;
  Definitions definitions_;
};

// The columns of the table, in the order of Unit.
constexpr const char* kColumns[kUnits] = {"MATMUL", "MATPUSH",      "XLU",   "VALU",
                                          "VPOP",   "EUP",          "VLOAD", "VLOAD:FILL",
                                          "VSTORE", "VSTORE:SPILL", "SALU"};

// Eleven numbers, or nothing.
bool ParseRow(string_view line, UnitUse* row) {
  int column = 0;
  for (size_t at = 0; (at = line.find_first_not_of(' ', at)) != string_view::npos; ++column) {
    if (column == kUnits || isdigit(static_cast<unsigned char>(line[at])) == 0) return false;
    int value = 0;
    for (; at < line.size() && isdigit(static_cast<unsigned char>(line[at])) != 0; ++at) {
      value = std::min(value * 10 + (line[at] - '0'), 255);
    }
    (*row)[static_cast<size_t>(column)] = static_cast<uint8_t>(value);
  }
  return column == kUnits;
}

bool IsHeader(string_view line) {
  std::string expected;
  for (const char* column : kColumns)
    expected += (expected.empty() ? "" : ", ") + std::string(column);
  return line == expected;
}

}  // namespace

Program ParseBundles(const std::string& text, int delay_slots) {
  Program program;
  Parser parser(&program, delay_slots);
  std::string bundle;
  bool inside = false;
  ForLines(text, [&](string_view line) {
    string_view rest;
    if (BundleBegin(line, &rest)) {
      if (inside) parser.Bundle(bundle);
      bundle = rest;
      inside = true;
    } else if (inside) {
      bundle += ' ';
      bundle += line;
    }
  });
  if (inside) parser.Bundle(bundle);
  parser.Finish();
  return program;
}

void ParseUse(const std::string& text, Program* program) {
  program->use.clear();
  bool known_columns = false, have_capacity = false;
  ForLines(text, [&](string_view line) {
    UnitUse row{};
    if (IsHeader(line)) {
      known_columns = true;
    } else if (known_columns && ParseRow(line, &row)) {
      if (have_capacity) {
        program->use.push_back(row);
      } else {
        program->capacity = row;
        have_capacity = true;
      }
    }
  });
  if (!program->use.empty()) program->use.resize(static_cast<size_t>(program->bundles));
}

}  // namespace kda::tpu
