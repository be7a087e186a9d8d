#include "tpu/pjrt/exchange.h"

#include <cmath>
#include <cstdlib>

namespace kda::tpu {

std::string FormatRecord(const Record& record) {
  std::string text;
  for (const auto& [key, value] : record) {
    text += key + ' ';
    for (const char c : value) text += c == '\n' ? ' ' : c;
    text += '\n';
  }
  return text;
}

Record ParseRecord(const std::string& text) {
  Record record;
  for (size_t from = 0, to; (to = text.find('\n', from)) != std::string::npos; from = to + 1) {
    const size_t space = text.find(' ', from);
    if (space >= to) continue;
    record[text.substr(from, space - from)] = text.substr(space + 1, to - space - 1);
  }
  return record;
}

std::string Field(const Record& record, const std::string& key) {
  const auto it = record.find(key);
  return it == record.end() ? "" : it->second;
}

int64_t NumberField(const Record& record, const std::string& key) {
  return std::strtoll(Field(record, key).c_str(), nullptr, 10);
}

double FractionField(const Record& record, const std::string& key) {
  const double value = std::strtod(Field(record, key).c_str(), nullptr);
  return std::isfinite(value) ? value : 0;
}

std::string Hexadecimal(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

}  // namespace kda::tpu
