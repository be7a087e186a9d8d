#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kda::cli {
namespace {

constexpr double kFirst = 2;                           // seconds before anything is said
constexpr double kOnTerminal = 0.2, kElsewhere = 5.0;  // between two lines

// Where stderr takes nothing more, nothing is said: no reason to end, least of all from a thread.
void Say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(std::string task)
    : task_(std::move(task)),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      shown_(start_) {
  std::unique_lock<std::mutex> lock(mutex_);
  thread_ = std::thread([this] { Watch(); });
  changed_.wait(lock, [this] { return watcher_id_ != 0; });
}

Progress::~Progress() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (line_open_) Say("\r\033[K");
}

void Progress::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  watcher_id_ = static_cast<pid_t>(syscall(SYS_gettid));
  changed_.notify_all();
  const auto first =
      start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kFirst));
  if (changed_.wait_until(lock, first, [this] { return over_; }) || any_shown_) return;
  Show();
}

double Progress::Elapsed() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

bool Progress::Due() {
  if (!any_shown_) return Elapsed() >= kFirst;
  const double since = std::chrono::duration<double>(Clock::now() - shown_).count();
  return since >= (terminal_ ? kOnTerminal : kElsewhere);
}

void Progress::Show() {
  const double elapsed = Elapsed();
  const std::string left =
      ends_ < 0 ? "" : fmt::format(", about {:.0f} s left", std::max(0.0, ends_ - elapsed));
  const std::string what = now_ + (now_.empty() || part_.empty() ? "" : ": ") + part_;
  const std::string line = fmt::format("{}: {}{:.0f} s{}{}{}", task_, done_text_, elapsed, left,
                                       what.empty() ? "" : "  ", what);
  if (terminal_) {
    Say("\r\033[K" + line);
    line_open_ = true;
  } else {
    Say(line + "\n");
  }
  shown_ = Clock::now();
  any_shown_ = true;
}

void Progress::Set(const std::string& done, double left, const std::string& now) {
  done_text_ = done;
  ends_ = left < 0 ? -1 : Elapsed() + left;
  now_ = now;
  part_.clear();
  if (Due()) Show();
}

void Progress::Tick(const std::string& now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Set("", -1, now);
}

void Progress::Note(const std::string& part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  part_ = part;
  if (Due()) Show();
}

void Progress::Step(int64_t done, int64_t count, const std::string& now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double elapsed = Elapsed();
  if (done > done_) {
    done_ = done;
    done_at_ = elapsed;
  }
  double left = -1;
  if (done > 0) {
    // The one at hand may take longer than those before: it never has less than nothing left.
    const double each = done_at_ / static_cast<double>(done);
    const double at_hand = std::max(0.0, each - (elapsed - done_at_));
    left = at_hand + each * static_cast<double>(std::max<int64_t>(0, count - done - 1));
  }
  Set(fmt::format("{} of {} done, ", done, count), left, now);
}

void Progress::Update(double fraction, const std::string& now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double elapsed = Elapsed();
  if (begun_at_ < 0) {
    begun_at_ = elapsed;
    begun_from_ = fraction;
  }
  const double made = fraction - begun_from_;
  const double left = made > 0.005 ? (elapsed - begun_at_) / made * (1 - fraction) : -1;
  Set(fmt::format("{:3.0f} %, ", 100 * fraction), left, now);
}

}  // namespace kda::cli
