#include "cli/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace kda::cli {
namespace {

bool LooksNumeric(const std::string& cell) {
  if (cell.empty() || cell == "-") return true;
  const size_t first = cell[0] == '-' || cell[0] == '+' ? 1 : 0;
  return first < cell.size() && std::isdigit(static_cast<unsigned char>(cell[first])) != 0;
}

}  // namespace

std::string Table::Text() const {
  const size_t columns = rows_[0].size();
  std::vector<size_t> width(columns, 0);
  std::vector<bool> right(columns, true);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows_[r][c].size());
      if (r > 0 && !LooksNumeric(rows_[r][c])) right[c] = false;
    }
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      line += right[c] ? fmt::format("{:>{}}  ", rows_[r][c], width[c])
                       : fmt::format("{:<{}}  ", rows_[r][c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == 0) {
      for (size_t c = 0; c < columns; ++c) text += std::string(width[c], '-') + "  ";
      text.erase(text.find_last_not_of(' ') + 1);
      text += "\n";
    }
  }
  return text;
}

std::string Table::Markdown() const {
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    text += fmt::format("| {} |\n", fmt::join(rows_[r], " | "));
    if (r > 0) continue;
    text += "|";
    for (size_t c = 0; c < rows_[0].size(); ++c) text += " --- |";
    text += "\n";
  }
  return text;
}

std::string Counted(int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string HumanTime(double milliseconds) {
  if (milliseconds < 1) return fmt::format("{:.3g} us", milliseconds * 1e3);
  if (milliseconds < 100) return fmt::format("{:.3g} ms", milliseconds);
  if (milliseconds < 1000) return fmt::format("{:.0f} ms", milliseconds);
  return fmt::format("{:.3g} s", milliseconds / 1e3);
}

std::string HumanCount(double value) {
  if (value >= 1e9) return fmt::format("{:.3g} G", value / 1e9);
  if (value >= 999.5e3) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 999.5) return fmt::format("{:.3g} k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

}  // namespace kda::cli
