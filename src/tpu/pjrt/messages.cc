#include "tpu/pjrt/messages.h"

#include <string.h>

#include <algorithm>
#include <cctype>

namespace kda::tpu {
namespace {

std::string Short(const std::string& text, size_t length = 400) {
  return text.size() <= length ? text : text.substr(0, length) + "...";
}

// Of any character: isdigit itself takes no negative one.
bool IsDigit(char c) { return isdigit(static_cast<unsigned char>(c)) != 0; }

// A log's "F1130 09:25:01.123456  1234 file.cc:12] text" is its text.
std::string WithoutLogPrefix(const std::string& line) {
  const bool log = line.size() > 1 && strchr("FEW", line[0]) != nullptr && IsDigit(line[1]);
  const size_t bracket = log ? line.find("] ") : std::string::npos;
  return bracket == std::string::npos ? line : line.substr(bracket + 2);
}

}  // namespace

std::string FirstLine(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n\t");
  if (begin == std::string::npos) return "";
  return Short(text.substr(begin, text.find('\n', begin) - begin));
}

std::string LastWords(const std::string& text) {
  std::string words;
  bool decisive = false;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    const std::string line = text.substr(from, to - from);
    from = to + 1;
    if (line.find("stack trace") != std::string::npos) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const bool fatal = (line[0] == 'F' && line.size() > 1 && IsDigit(line[1])) ||
                       line.find("ERROR:") != std::string::npos;
    if (decisive && !fatal) continue;
    decisive = decisive || fatal;
    words = WithoutLogPrefix(line);
  }
  return Short(words);
}

}  // namespace kda::tpu
