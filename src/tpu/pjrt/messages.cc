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

// "allocating %k.1 = (f32[..]) custom-call(..), metadata={..}. Scoped allocation.." names the
// operation and goes on with the sentence after its text, which may be very long.
std::string WithoutOperationText(const std::string& line) {
  const size_t begin = line.find(" = ");
  if (begin == std::string::npos || line.find_last_of('%', begin) == std::string::npos) return line;
  size_t end = begin;
  do {
    end = line.find(". ", end + 1);
    if (end == std::string::npos || end + 2 >= line.size()) return line;
  } while (isupper(static_cast<unsigned char>(line[end + 2])) == 0);
  return line.substr(0, begin) + line.substr(end);
}

}  // namespace

std::string FirstLine(const std::string& text) {
  std::string line;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    const size_t begin = text.find_first_not_of(" \t\r", from);
    if (begin < to) line += (line.empty() ? "" : " ") + text.substr(begin, to - begin);
    from = to + 1;
    if (!line.empty() && line.back() != ':') break;
  }
  line = WithoutOperationText(line);
  while (!line.empty() && strchr(" -\t\r", line.back()) != nullptr) line.pop_back();
  return Short(line);
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
