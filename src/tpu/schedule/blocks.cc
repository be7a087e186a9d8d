#include "tpu/schedule/blocks.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>

namespace kda::tpu {
namespace {
using std::string_view;

constexpr int kMaxCopies = 32;  // followed from a register to its value

// "sadd.s32 1, %s1160_s19 " -> op "sadd.s32", operands {"1", "%s1160_s19"}.
struct Expression {
  string_view op;
  std::vector<string_view> operands;
};

Expression Split(string_view text) {
  Expression expression;
  const size_t space = std::min(text.find(' '), text.size());
  expression.op = text.substr(0, space);
  for (size_t from = space; from < text.size();) {
    const size_t to = std::min(text.find(',', from), text.size());
    string_view operand = text.substr(from, to - from);
    const size_t begin = operand.find_first_not_of(' ');
    if (begin != string_view::npos) {
      operand = operand.substr(begin, operand.find_last_not_of(" }") + 1 - begin);
      if (!operand.empty() && operand[0] != '(') expression.operands.push_back(operand);
    }
    from = to + 1;
  }
  return expression;
}

// Literals are unsigned: 4294967295 is -1.
bool Literal(string_view text, int64_t* value) {
  if (text.empty() || text.find_first_not_of("-0123456789") != string_view::npos) return false;
  *value = static_cast<int32_t>(strtoll(std::string(text).c_str(), nullptr, 10));
  return true;
}

class Values {
 public:
  explicit Values(const Definitions& definitions) : definitions_(definitions) {}

  // What `operand` is, copies and spills undone. False: it is no register, or not known.
  bool Find(string_view operand, Expression* expression) const {
    for (int i = 0; i < kMaxCopies; ++i) {
      if (operand.empty() || operand[0] != '%') return false;
      const auto it = definitions_.find(std::string(operand.substr(1)));
      if (it == definitions_.end()) return false;
      *expression = Split(it->second);
      if (expression->op == "smov.u32" && expression->operands.size() == 1 &&
          expression->operands[0][0] == '%') {
        operand = expression->operands[0];
      } else if (const std::string place = SpillPlace(it->second);
                 expression->op == "sld" && !place.empty()) {
        const auto stored = definitions_.find(place);
        if (stored == definitions_.end()) return false;
        operand = stored->second;
      } else {
        return true;
      }
    }
    return false;
  }

  bool Constant(string_view operand, int64_t* value) const {
    Expression expression;
    if (Literal(operand, value)) return true;
    return Find(operand, &expression) && expression.op == "smov.u32" &&
           expression.operands.size() == 1 && Literal(expression.operands[0], value);
  }

  // The value before the first iteration of the register that a loop carries.
  bool Initial(string_view operand, int64_t* value) const {
    Expression expression;
    return Find(operand, &expression) && expression.op == "sphi" &&
           expression.operands.size() == 2 && Constant(expression.operands[0], value);
  }

 private:
  const Definitions& definitions_;
};

enum class Relation { kLess, kLessEqual, kGreater, kGreaterEqual, kEqual, kNotEqual, kNone };

Relation RelationOf(string_view op) {
  static constexpr string_view kNames[] = {"lt", "le", "gt", "ge", "eq", "ne"};
  if (op.substr(0, 5) != "scmp." || op.find(".s32") == string_view::npos) return Relation::kNone;
  for (int i = 0; i < 6; ++i) {
    if (op.substr(5, 2) == kNames[i]) return static_cast<Relation>(i);
  }
  return Relation::kNone;
}

Relation Not(Relation relation) {
  static constexpr Relation kNot[] = {
      Relation::kGreaterEqual, Relation::kGreater, Relation::kLessEqual, Relation::kLess,
      Relation::kNotEqual,     Relation::kEqual,   Relation::kNone};
  return kNot[static_cast<int>(relation)];
}

// Whether `second` skips exactly when `first` does not.
bool Complementary(const Branch& first, const Branch& second, const Definitions& definitions) {
  if (first.predicate == second.predicate) return first.negated != second.negated;
  const Values values(definitions);
  Expression a, b;
  if (!values.Find("%" + first.predicate, &a) || !values.Find("%" + second.predicate, &b)) {
    return false;
  }
  // pneg %p: the other one's opposite
  if (a.op == "pneg" && a.operands.size() == 1 && a.operands[0].substr(1) == second.predicate) {
    return first.negated == second.negated;
  }
  if (b.op == "pneg" && b.operands.size() == 1 && b.operands[0].substr(1) == first.predicate) {
    return first.negated == second.negated;
  }
  if (a.operands != b.operands) return false;
  Relation left = RelationOf(a.op), right = RelationOf(b.op);
  if (first.negated) left = Not(left);
  if (second.negated) right = Not(right);
  return left != Relation::kNone && Not(left) == right;
}

struct Candidate {
  Block block;
  const Branch* branch;
};

// Sorts so that a block comes after the one around it, and cuts what would leave its parent.
void Nest(std::vector<Candidate>* candidates) {
  std::stable_sort(candidates->begin(), candidates->end(),
                   [](const Candidate& a, const Candidate& b) {
                     if (a.block.first != b.block.first) return a.block.first < b.block.first;
                     return a.block.last > b.block.last;
                   });
  std::vector<int32_t> open;
  for (size_t i = 0; i < candidates->size(); ++i) {
    Block& block = (*candidates)[i].block;
    while (!open.empty() &&
           (*candidates)[static_cast<size_t>(open.back())].block.last < block.first) {
      open.pop_back();
    }
    if (!open.empty()) {
      block.parent = open.back();
      block.last = std::min(block.last, (*candidates)[static_cast<size_t>(open.back())].block.last);
    }
    open.push_back(static_cast<int32_t>(i));
  }
}

// A region around a loop of the same identity guards it; a region that begins where the one before
// it ends, under the opposite predicate, is its else.
void Relate(const Definitions& definitions, int delay_slots, std::vector<Candidate>* candidates) {
  for (size_t i = 0; i < candidates->size(); ++i) {
    Candidate& candidate = (*candidates)[i];
    if (candidate.block.kind != BlockKind::kRegion || candidate.branch->identity.empty()) continue;
    for (size_t j = 0; j < candidates->size() && candidate.block.kind == BlockKind::kRegion; ++j) {
      const Candidate& other = (*candidates)[j];
      if (other.branch->identity != candidate.branch->identity) continue;
      if (other.block.kind == BlockKind::kLoop && j > i &&
          other.block.last <= candidate.block.last) {
        candidate.block.kind = BlockKind::kGuard;
        candidate.block.other = static_cast<int32_t>(j);
      } else if (other.block.kind == BlockKind::kRegion && j < i &&
                 other.block.parent == candidate.block.parent &&
                 candidate.block.first - (other.block.last + 1) <= delay_slots + 2 &&
                 Complementary(*other.branch, *candidate.branch, definitions)) {
        candidate.block.kind = BlockKind::kElse;
        candidate.block.other = static_cast<int32_t>(j);
      }
    }
  }
}

}  // namespace

std::string SpillPlace(string_view text) {
  static constexpr char kEnd[] = "_spill]";
  const size_t end = text.find(kEnd);
  const size_t begin = end == string_view::npos ? end : text.rfind('[', end);
  if (begin == string_view::npos) return "";
  return std::string(text.substr(begin + 1, end + sizeof kEnd - 2 - (begin + 1)));
}

int64_t TripCount(const Branch& branch, const Definitions& definitions) {
  const Values values(definitions);
  Expression test, next;
  if (!values.Find("%" + branch.predicate, &test) || test.operands.size() != 2) return 0;
  Relation stay = RelationOf(test.op);  // go round again while this holds of (counter, bound)
  if (branch.negated) stay = Not(stay);
  int64_t bound = 0, step = 0, initial = 0;
  if (!values.Constant(test.operands[1], &bound)) return 0;
  if (!values.Find(test.operands[0], &next)) {
    // The counter went through a spill place of several values; all loops of the compiler itself
    // count up from zero by one.
    return stay == Relation::kLess ? std::max<int64_t>(0, bound) : 0;
  }
  if (next.op != "sadd.s32" || next.operands.size() != 2) return 0;
  string_view counter = next.operands[1];
  if (!values.Constant(next.operands[0], &step)) {
    counter = next.operands[0];
    if (!values.Constant(next.operands[1], &step)) return 0;
  }
  if (!values.Initial(counter, &initial)) initial = 0;

  // After n iterations the counter is initial + n * step; the loop ends when `stay` fails.
  if (step < 0) {
    static constexpr Relation kMirror[] = {
        Relation::kGreater, Relation::kGreaterEqual, Relation::kLess, Relation::kLessEqual,
        Relation::kEqual,   Relation::kNotEqual,     Relation::kNone};
    stay = kMirror[static_cast<int>(stay)];
    step = -step;
    initial = -initial;
    bound = -bound;
  }
  const int64_t distance = bound - initial;
  if (step == 0) return 0;
  switch (stay) {
    case Relation::kLess:
      return std::max<int64_t>(1, (distance + step - 1) / step);
    case Relation::kLessEqual:
      return distance < 0 ? 1 : distance / step + 1;
    case Relation::kNotEqual:
      return distance > 0 && distance % step == 0 ? distance / step : 0;
    default:
      return 0;
  }
}

std::vector<Block> FindBlocks(const std::vector<Branch>& branches, const Definitions& definitions,
                              int32_t bundles, int delay_slots) {
  std::vector<Candidate> candidates;
  for (const Branch& branch : branches) {
    if (branch.target < 0 || branch.target > bundles || branch.bundle >= bundles) continue;
    Candidate candidate{Block{}, &branch};
    Block& block = candidate.block;
    block.label = branch.label;
    block.line = branch.line;
    const int32_t after = std::min(branch.bundle + delay_slots, bundles - 1);
    if (branch.target <= branch.bundle) {
      block.kind = BlockKind::kLoop;
      block.first = branch.target;
      block.last = after;
      block.trips = TripCount(branch, definitions);
    } else {
      block.kind = BlockKind::kRegion;
      block.first = after + 1;
      block.last = branch.target - 1;
    }
    if (block.first <= block.last) candidates.push_back(candidate);
  }
  Nest(&candidates);
  Relate(definitions, delay_slots, &candidates);
  std::vector<Block> blocks;
  blocks.reserve(candidates.size());
  for (const Candidate& candidate : candidates) blocks.push_back(candidate.block);
  return blocks;
}

}  // namespace kda::tpu
