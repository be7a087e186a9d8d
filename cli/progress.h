// Progress on stderr for what takes longer than two seconds, with the time left: one line rewritten
// on a terminal, a line every few seconds elsewhere.
#ifndef KDA_CLI_PROGRESS_H_
#define KDA_CLI_PROGRESS_H_

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace kda::cli {

// Made when the command starts: its clock starts then. The first line comes after two seconds even
// where the step at hand takes longer (a thread sleeps until then, and ends); further ones come
// when a step says something.
class Progress {
 public:
  explicit Progress(std::string task);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // One task of unknown length: only the time it has taken.
  void Tick(const std::string& now);
  // A part of what the last Step or Update named, or of a task that has none yet: "making inputs".
  void Note(const std::string& part);
  // `done` of `count` tasks that take about as long as each other are over; `now` is the next.
  void Step(int64_t done, int64_t count, const std::string& now);
  // `fraction` of the work done, in [0, 1]; `now` names what comes next. The work begins with the
  // first call: the time left is reckoned from there.
  void Update(double fraction, const std::string& now);

  // The thread that waits for the first line, which is not one of those that compute.
  pid_t watcher() const { return watcher_id_; }

 private:
  using Clock = std::chrono::steady_clock;
  double Elapsed() const;  // seconds
  bool Due();              // to say something again
  void Set(const std::string& done, double left, const std::string& now);
  void Show();
  void Watch();

  const std::string task_;
  const bool terminal_;
  const Clock::time_point start_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool over_ = false;
  pid_t watcher_id_ = 0;
  Clock::time_point shown_;
  bool any_shown_ = false, line_open_ = false;
  std::string done_text_, now_, part_;
  double ends_ = -1;  // seconds, when all is expected to be over; -1: unknown
  int64_t done_ = 0;
  double done_at_ = 0;                     // seconds, when the last task was over
  double begun_at_ = -1, begun_from_ = 0;  // seconds and fraction of the first Update
  std::thread thread_;
};

}  // namespace kda::cli

#endif  // KDA_CLI_PROGRESS_H_
