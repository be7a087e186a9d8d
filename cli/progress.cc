#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
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

double Progress::Elapsed() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

bool Progress::Due() {
  const Clock::time_point time = Clock::now();
  const double since = std::chrono::duration<double>(time - shown_).count();
  if (Elapsed() < 2 || since < (terminal_ ? 0.2 : 5.0)) return false;
  shown_ = time;
  return true;
}

void Progress::Show(const std::string& text) {
  const std::string line = fmt::format("{}: {}", task_, text);
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", line);
    line_open_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

void Progress::Tick(const std::string& now) {
  if (Due()) Show(fmt::format("{:.0f} s  {}", Elapsed(), now));
}

void Progress::Step(int64_t done, int64_t count, const std::string& now) {
  const double elapsed = Elapsed();
  if (done > done_) {
    done_ = done;
    done_at_ = elapsed;
  }
  if (!Due()) return;
  std::string left;
  if (done > 0) {
    // The one at hand may take longer than those before: it never has less than nothing left.
    const double each = done_at_ / static_cast<double>(done);
    const double at_hand = std::max(0.0, each - (elapsed - done_at_));
    left =
        fmt::format(", about {:.0f} s left",
                    at_hand + each * static_cast<double>(std::max<int64_t>(0, count - done - 1)));
  }
  Show(fmt::format("{} of {} done, {:.0f} s{}  {}", done, count, elapsed, left, now));
}

void Progress::Update(double fraction, const std::string& now) {
  if (!Due()) return;
  const double elapsed = Elapsed();
  std::string left;
  if (fraction > 0.005) {
    left = fmt::format(", about {:.0f} s left", elapsed / fraction * (1 - fraction));
  }
  Show(fmt::format("{:3.0f} %, {:.0f} s{}  {}", 100 * fraction, elapsed, left, now));
}

}  // namespace kda::cli
