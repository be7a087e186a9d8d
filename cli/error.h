// Errors of the command line: one line on stderr and an exit code.
#ifndef KDA_CLI_ERROR_H_
#define KDA_CLI_ERROR_H_

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "kda/kda.hpp"

namespace kda::cli {

inline constexpr int kExitFailed = 1;    // a verification failed, or the machine could not do it
inline constexpr int kExitArgument = 2;  // the caller asked for something that cannot be

struct Error : std::runtime_error {
  Error(int code, const std::string& message) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};

// An argument at fault: the message names it, its value and what is allowed.
template <typename... Args>
[[noreturn]] void BadArgument(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kExitArgument, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void Failed(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kExitFailed, fmt::format(format, std::forward<Args>(args)...));
}

// Names and texts of files end up in messages, which are one line.
inline std::string OneLine(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

// The library's refusals are the caller's arguments, but for those of the machine.
inline void Check(const Status& status) {
  if (status.ok()) return;
  const bool machine =
      status.code() == KDA_ERROR_OUT_OF_MEMORY || status.code() == KDA_ERROR_INTERNAL;
  throw Error(machine ? kExitFailed : kExitArgument, status.message());
}

}  // namespace kda::cli

#endif  // KDA_CLI_ERROR_H_
