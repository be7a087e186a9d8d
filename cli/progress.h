// Progress on stderr for what takes longer than two seconds, with the time left: one line rewritten
// on a terminal, a line every few seconds elsewhere.
#ifndef KDA_CLI_PROGRESS_H_
#define KDA_CLI_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace kda::cli {

class Progress {
 public:
  explicit Progress(std::string task);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // One task of unknown length: only the time it has taken.
  void Tick(const std::string& now);
  // `done` of `count` tasks that take about as long as each other are over; `now` is the next.
  void Step(int64_t done, int64_t count, const std::string& now);
  // `fraction` of the work done, in [0, 1]; `now` names what comes next.
  void Update(double fraction, const std::string& now);

 private:
  using Clock = std::chrono::steady_clock;
  double Elapsed() const;  // seconds
  bool Due();              // to say something again
  void Show(const std::string& text);
  std::string task_;
  bool terminal_;
  Clock::time_point start_, shown_;
  int64_t done_ = 0;
  double done_at_ = 0;  // seconds, when the last task was over
  bool line_open_ = false;
};

}  // namespace kda::cli

#endif  // KDA_CLI_PROGRESS_H_
