#include "tpu/schedule/trace.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "tpu/predict.h"

namespace kda::tpu {
namespace {

constexpr int32_t kLine = 800;  // cycles
constexpr double kCycle = 1.6;  // pixels
constexpr int kLeft = 90;       // of the lanes' names
constexpr int kLane = 16;       // height
constexpr int kBlockRow = 13;   // height, of the loops and regions at one depth
constexpr int kBlockRows = 4;
constexpr int32_t kGap = 8;  // a product of 16 rows occupies its unit for 8 cycles
constexpr int32_t kBin = 8;  // cycles, of the units' use
constexpr int32_t kNeighbourhood = 32;

constexpr const char* kStages[] = {"gate_cumsum", "intra_chunk", "inter_chunk", "output"};

// What kernels call parts of a stage. A token of decode is a chunk of one row: its vectors are the
// scaled q, k and v and the one product q k that a chunk's Aqk is.
constexpr struct {
  const char *part, *stage;
} kParts[] = {{"gates", "gate_cumsum"},   {"scores", "intra_chunk"},
              {"solve", "intra_chunk"},   {"intra_store", "intra_chunk"},
              {"vectors", "intra_chunk"}, {"first_vectors", "intra_chunk"},
              {"state", "inter_chunk"}};

bool IsMatrix(Action action) {
  return action == Action::kMatmul || action == Action::kMatpush || action == Action::kMatpop;
}

const std::string& LabelOf(const Program& program, const Instruction& instruction) {
  static const std::string kNone;
  return instruction.label < 0 ? kNone : program.labels[static_cast<size_t>(instruction.label)];
}

TraceRange Clip(const Program& program, TraceRange range) {
  return {std::max(range.first, 0), std::min(range.last, program.bundles - 1)};
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Labels come from a file that may be damaged.
        out += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return out;
}

// Instructions of one label that follow each other on one unit.
struct Bar {
  int32_t first, last;
  int count;
  int32_t label;
};

class Picture {
 public:
  Picture(const Program& program, TraceRange range, const HeadNames& names)
      : program_(program), range_(range), names_(names) {
    for (const Instruction& instruction : program.instructions) {
      if (!IsMatrix(instruction.action) || instruction.bundle < range.first ||
          instruction.bundle > range.last) {
        continue;
      }
      Put(instruction);
      const std::string row = RowOf(instruction.label);
      if (instruction.label >= 0 && std::find(rows_.begin(), rows_.end(), row) == rows_.end()) {
        rows_.push_back(row);
      }
    }
  }

  std::string Draw(const std::string& title) {
    const int lanes = static_cast<int>(lanes_.size());
    const int cycles = std::max(1, range_.last - range_.first + 1);
    const int lines = (cycles + kLine - 1) / kLine;
    const int height = 32 + kBlockRows * kBlockRow + (lanes + kShown) * kLane;
    const int width = kLeft + static_cast<int>(kLine * kCycle) + 20;
    Add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n",
        width, 60 + lines * height);
    Add("<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n");
    out_ +=
        "<text x=\"8\" y=\"18\">" + Escape(title) + " \xc2\xb7 " + kPredictedFigure + "</text>\n";
    Legend();
    if (names_.pairs || names_.heads > 0) {
      out_ += "<text x=\"8\" y=\"54\" fill=\"#666\">";
      if (names_.pairs) out_ += "h0+1: heads 0 and 1, side by side in the lanes. ";
      out_ += "c1: the step's second chunk</text>\n";
    }
    for (int line = 0; line < lines; ++line) Line(line, 60 + line * height);
    out_ += "</svg>\n";
    return out_;
  }

 private:
  static constexpr Unit kUnitsShown[] = {Unit::kMatmul, Unit::kMatpush, Unit::kValu,
                                         Unit::kXlu,    Unit::kEup,     Unit::kVload,
                                         Unit::kVstore, Unit::kSpill};
  static constexpr int kShown = sizeof kUnitsShown / sizeof kUnitsShown[0];

  __attribute__((format(printf, 2, 3))) void Add(const char* format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    out_ += text;
  }

  void Put(const Instruction& instruction) {
    std::vector<Bar>& bars = lanes_[{std::max<int>(0, instruction.mxu), instruction.action}];
    // What prepares the unit carries no label: it goes with its neighbours.
    const bool follows = !bars.empty() && instruction.bundle - bars.back().last <= kGap;
    if (follows && (bars.back().label == instruction.label || instruction.label < 0 ||
                    bars.back().label < 0)) {
      bars.back().last = instruction.bundle;
      bars.back().label = std::max(bars.back().label, instruction.label);
      ++bars.back().count;
    } else {
      bars.push_back({instruction.bundle, instruction.bundle, 1, instruction.label});
    }
  }

  std::string RowOf(int32_t label) const {
    if (label < 0) return RowName("", "");
    const LabelParts parts = PartsOf(program_.labels[static_cast<size_t>(label)]);
    return RowName(parts.stage, parts.part);
  }

  std::string HeadText(int32_t label) const {
    const int head = label < 0 ? -1 : PartsOf(program_.labels[static_cast<size_t>(label)]).head;
    return head < 0 ? "" : names_.NameOf(head);
  }

  // A colour per stage, lighter and darker by head.
  std::string Colour(int32_t label) const {
    if (label < 0) return "#999";
    const auto row = std::find(rows_.begin(), rows_.end(), RowOf(label));
    const auto index = static_cast<int>(row - rows_.begin());
    const int head = std::max(0, PartsOf(program_.labels[static_cast<size_t>(label)]).head);
    char text[48];
    snprintf(text, sizeof text, "hsl(%d,65%%,%d%%)", index * 137 % 360, 42 + head % 4 * 9);
    return text;
  }

  void Legend() {
    double x = 8;
    for (const std::string& row : rows_) {
      if (x > kLeft + kLine * kCycle - 100) {
        Add("<text x=\"%.0f\" y=\"38\">...</text>\n", x);
        break;
      }
      int32_t label = -1;
      for (size_t i = 0; i < program_.labels.size() && label < 0; ++i) {
        if (RowOf(static_cast<int32_t>(i)) == row) label = static_cast<int32_t>(i);
      }
      Add("<rect x=\"%.0f\" y=\"28\" width=\"12\" height=\"12\" fill=\"%s\"/>", x,
          Colour(label).c_str());
      Add("<text x=\"%.0f\" y=\"38\">", x + 16);
      out_ += Escape(row) + "</text>\n";
      x += 30 + 6.5 * static_cast<double>(row.size());
    }
  }

  void Line(int line, int top) {
    const int32_t first = range_.first + line * kLine;
    const int32_t last = std::min(first + kLine - 1, range_.last);
    int y = top;
    for (int32_t tick = first; tick <= last; tick += 100) {
      const double x = kLeft + (tick - first) * kCycle;
      Add("<text x=\"%.1f\" y=\"%d\" fill=\"#666\">%d</text>", x, y + 10, tick - range_.first);
      Add("<path d=\"M%.1f %dv%d\" stroke=\"#ddd\"/>\n", x, y + 12,
          kBlockRows * kBlockRow + (static_cast<int>(lanes_.size()) + kShown) * kLane);
    }
    y += 14;
    Blocks(first, last, y);
    y += kBlockRows * kBlockRow + 4;
    for (const auto& [lane, bars] : lanes_) {
      static constexpr const char* kNames[] = {"product", "weights", "result"};
      Add("<text x=\"4\" y=\"%d\">MXU%d %s</text>\n", y + 12, lane.first,
          kNames[static_cast<int>(lane.second)]);
      for (const Bar& bar : bars) {
        if (bar.last >= first && bar.first <= last) DrawBar(bar, first, last, y);
      }
      y += kLane;
    }
    for (const Unit unit : kUnitsShown) {
      Add("<text x=\"4\" y=\"%d\" fill=\"#666\">%s</text>\n", y + 12, UnitName(unit));
      DrawUse(static_cast<size_t>(unit), first, last, y);
      y += kLane;
    }
  }

  void DrawBar(const Bar& bar, int32_t first, int32_t last, int y) {
    const int32_t from = std::max(bar.first, first), to = std::min(bar.last, last);
    const double x = kLeft + (from - first) * kCycle, width = (to - from + 1) * kCycle;
    const std::string head = HeadText(bar.label);
    Add("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>", x, y + 1,
        width, kLane - 2, Colour(bar.label).c_str());
    out_ += Escape(RowOf(bar.label) + (head.empty() ? "" : " " + head));
    Add(" %d..%d, %d instructions</title></rect>\n", bar.first - range_.first,
        bar.last - range_.first, bar.count);
    if (!head.empty() && width > 5.0 * static_cast<double>(head.size()) + 2) {
      Add("<text x=\"%.1f\" y=\"%d\" fill=\"white\" font-size=\"9\">%s</text>\n", x + 1, y + 11,
          head.c_str());
    }
  }

  // The share of a unit's slots in use, as columns of kBin cycles.
  void DrawUse(size_t unit, int32_t first, int32_t last, int y) {
    const int capacity = program_.capacity[unit];
    if (capacity == 0 || program_.use.empty()) return;
    std::string path;
    for (int32_t bin = first; bin <= last; bin += kBin) {
      const int32_t end = std::min(bin + kBin - 1, last);
      int used = 0;
      for (int32_t i = bin; i <= end; ++i) used += program_.use[static_cast<size_t>(i)][unit];
      if (used == 0) continue;
      const double share = std::min(1.0, static_cast<double>(used) / ((end - bin + 1) * capacity));
      char text[96];
      snprintf(text, sizeof text, "M%.1f %dv%.1fh%.1fV%dz", kLeft + (bin - first) * kCycle,
               y + kLane - 1, -share * (kLane - 2), (end - bin + 1) * kCycle, y + kLane - 1);
      path += text;
    }
    if (!path.empty()) out_ += "<path d=\"" + path + "\" fill=\"#557\"/>\n";
  }

  // Loops and regions that have a label, each deeper than the one around it.
  void Blocks(int32_t first, int32_t last, int y) {
    std::vector<int> depths(program_.blocks.size(), 0);
    for (size_t i = 0; i < program_.blocks.size(); ++i) {
      const Block& block = program_.blocks[i];
      const bool shown = !block.label.empty() && block.kind != BlockKind::kGuard;
      const int around = block.parent < 0 ? 0 : depths[static_cast<size_t>(block.parent)];
      depths[i] = around + (shown ? 1 : 0);
      if (!shown || block.last < first || block.first > last) continue;
      const int32_t from = std::max(block.first, first), to = std::min(block.last, last);
      const char* stroke = block.kind == BlockKind::kLoop ? "#06c" : "#c60";
      const double x = kLeft + (from - first) * kCycle, width = (to - from + 1) * kCycle;
      const int bottom = y + std::min(around + 1, kBlockRows) * kBlockRow;
      Add("<path d=\"M%.1f %dv-3h%.1fv3\" stroke=\"%s\" fill=\"none\"/>", x, bottom, width, stroke);
      Add("<text x=\"%.1f\" y=\"%d\" fill=\"%s\" font-size=\"9\">", x + 2, bottom - 4, stroke);
      out_ += Escape(block.label);
      if (block.kind == BlockKind::kElse) out_ += " else";
      if (block.trips > 0) Add(" \xc3\x97%lld", static_cast<long long>(block.trips));
      out_ += "</text>\n";
    }
  }

  const Program& program_;
  TraceRange range_;
  HeadNames names_;
  std::map<std::pair<int, Action>, std::vector<Bar>> lanes_;  // (unit, what it does)
  std::vector<std::string> rows_;                             // in the order in which they appear
  std::string out_;
};

}  // namespace

LabelParts PartsOf(const std::string& label) {
  LabelParts parts;
  std::string name = label;
  const size_t at = label.rfind(":h");
  if (at != std::string::npos && at + 2 < label.size() &&
      label.find_first_not_of("0123456789", at + 2) == std::string::npos) {
    parts.head = static_cast<int>(std::min(strtol(label.c_str() + at + 2, nullptr, 10), 1000000L));
    name = label.substr(0, at);
  }
  if (name.rfind("-:", 0) == 0) return parts;
  for (const char* stage : kStages) {
    if (name == stage) parts.stage = name;
  }
  if (!parts.stage.empty()) return parts;
  parts.part = name;
  for (const auto& [part, stage] : kParts) {
    if (name == part) parts.stage = stage;
  }
  return parts;
}

std::string RowName(const std::string& stage, const std::string& part) {
  if (stage.empty()) return part.empty() ? "(no label)" : part;
  return part.empty() ? stage : stage + ": " + part;
}

std::string HeadNames::NameOf(int head) const {
  const int first = heads > 0 ? head % heads : head;
  std::string name = ChunkOf(head) > 0 ? "c" + std::to_string(ChunkOf(head)) + " " : "";
  name += "h" + std::to_string(first);
  return pairs && first % 2 == 0 ? name + "+" + std::to_string(first + 1) : name;
}

TraceRange StepOf(const Program& program) {
  if (program.grid_loop < 0) return {0, program.bundles - 1};
  const Block& loop = program.blocks[static_cast<size_t>(program.grid_loop)];
  return {loop.first, loop.last};
}

namespace {

void Count(Action action, StageUse* use) {
  switch (action) {
    case Action::kMatmul:
      ++use->matmuls;
      break;
    case Action::kMatpush:
      ++use->pushes;
      break;
    case Action::kMatpop:
      ++use->pops;
      break;
    default:
      ++use->others;
  }
}

// The stages in their order, each before its parts, then what is beside them.
int RankOf(const StageUse& use) {
  int rank = 0;
  for (const char* stage : kStages) {
    if (use.stage == stage) return 2 * rank + (use.part.empty() ? 0 : 1);
    ++rank;
  }
  return 2 * rank + (use.part.empty() ? 1 : 0);
}

}  // namespace

std::vector<StageUse> SummariseStages(const Program& program, TraceRange range,
                                      const HeadNames& names) {
  range = Clip(program, range);
  std::vector<StageUse> stages;
  std::map<std::string, size_t> index;
  std::vector<std::set<int>> heads, chunks;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.bundle < range.first || instruction.bundle > range.last) continue;
    const LabelParts parts = PartsOf(LabelOf(program, instruction));
    const auto [it, is_new] = index.emplace(RowName(parts.stage, parts.part), stages.size());
    const size_t i = it->second;
    if (is_new) {
      stages.emplace_back();
      stages[i].stage = parts.stage;
      stages[i].part = parts.part;
      stages[i].first = instruction.bundle - range.first;
      heads.emplace_back();
      chunks.emplace_back();
    }
    stages[i].last = instruction.bundle - range.first;
    Count(instruction.action, &stages[i]);
    if (parts.head < 0) continue;
    const int head = names.heads > 0 ? parts.head % names.heads : parts.head;
    heads[i].insert(head);
    if (names.pairs && head % 2 == 0) heads[i].insert(head + 1);
    chunks[i].insert(names.ChunkOf(parts.head));
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i].heads = static_cast<int>(heads[i].size());
    stages[i].chunks = static_cast<int>(chunks[i].size());
  }
  std::stable_sort(stages.begin(), stages.end(),
                   [](const StageUse& a, const StageUse& b) { return RankOf(a) < RankOf(b); });
  return stages;
}

MatrixUse SummariseMatrixUse(const Program& program, TraceRange range) {
  range = Clip(program, range);
  MatrixUse result;
  const double cycles = range.last - range.first + 1;
  if (cycles <= 0) return result;
  const auto share = [&](Unit unit) {
    const auto column = static_cast<size_t>(unit);
    double used = 0;
    for (int32_t i = range.first; i <= range.last && !program.use.empty(); ++i) {
      used += program.use[static_cast<size_t>(i)][column];
    }
    return program.capacity[column] > 0 ? used / (cycles * program.capacity[column]) : 0;
  };
  result.matmul = share(Unit::kMatmul);
  result.matpush = share(Unit::kMatpush);

  // A window slides over the products; `present` counts the labels in it.
  std::vector<const Instruction*> products;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.action == Action::kMatmul && instruction.label >= 0 &&
        instruction.bundle >= range.first && instruction.bundle <= range.last) {
      products.push_back(&instruction);
    }
  }
  std::map<int32_t, int> present;
  size_t begin = 0, end = 0;
  int64_t mixed = 0;
  for (int32_t at = range.first; at <= range.last; ++at) {
    for (; end < products.size() && products[end]->bundle <= at + kNeighbourhood / 2; ++end) {
      ++present[products[end]->label];
    }
    for (; begin < end && products[begin]->bundle < at - kNeighbourhood / 2; ++begin) {
      const auto it = present.find(products[begin]->label);
      if (--it->second == 0) present.erase(it);
    }
    if (present.size() > 1) ++mixed;
  }
  result.interleaved = static_cast<double>(mixed) / cycles;
  return result;
}

std::string TraceSvg(const Program& program, TraceRange range, const std::string& title,
                     const HeadNames& names) {
  return Picture(program, Clip(program, range), names).Draw(title);
}

}  // namespace kda::tpu
