// Errors of the command line: one line on stderr and an exit code.
#ifndef KDA_CLI_ERROR_H_
#define KDA_CLI_ERROR_H_

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "kda/kda.hpp"

namespace kda::cli {

// A verification failed, or this machine cannot do what another could: it lacks the instruction set
// (or KDA_MAX_ISA rules it out), the memory, the room to write.
inline constexpr int kExitFailed = 1;
// The caller asked for what no machine can do: an argument, an input file or KDA_MAX_ISA is wrong.
inline constexpr int kExitArgument = 2;

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

// The library's words begin with the name of its argument; where that is an option of these
// commands, with the option's: "--lower-bound: ..".
inline std::string WithOption(const Status& status) {
  for (const char* name : {"backend", "isa", "solver", "threads", "scale", "lower_bound", "mode",
                           "gate", "state_order", "checkpoint_every"}) {
    if (status.argument() != name) continue;
    std::string option = name;
    if (option == "mode") option = "decode";
    if (option == "state_order") option = "state_layout";
    for (char& c : option) c = c == '_' ? '-' : c;
    return "--" + option + status.message().substr(status.argument().size());
  }
  return status.message();
}

// The library's refusals are the caller's arguments, but for those of the machine.
inline void Check(const Status& status) {
  if (status.ok()) return;
  const bool machine = status.code() == KDA_ERROR_OUT_OF_MEMORY ||
                       status.code() == KDA_ERROR_INTERNAL ||
                       status.code() == KDA_ERROR_UNAVAILABLE;
  throw Error(machine ? kExitFailed : kExitArgument, WithOption(status));
}

}  // namespace kda::cli

#endif  // KDA_CLI_ERROR_H_
