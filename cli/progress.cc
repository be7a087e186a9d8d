#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace kda::cli {

Progress::Progress(std::string task)
    : task_(std::move(task)),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      shown_(start_) {}

Progress::~Progress() {
  if (line_open_) fmt::print(stderr, "\r\033[K");
}

void Progress::Update(double fraction, const std::string& now) {
  const Clock::time_point time = Clock::now();
  const double elapsed = std::chrono::duration<double>(time - start_).count();
  const double since = std::chrono::duration<double>(time - shown_).count();
  if (elapsed < 2 || since < (terminal_ ? 0.2 : 5.0)) return;
  shown_ = time;
  std::string left;
  if (fraction > 0.005) {
    left = fmt::format(", about {:.0f} s left", elapsed / fraction * (1 - fraction));
  }
  const std::string line =
      fmt::format("{}: {:3.0f} %, {:.0f} s{}  {}", task_, 100 * fraction, elapsed, left, now);
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", line);
    line_open_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace kda::cli
