// Progress on stderr for what takes longer than two seconds, with the time left: one line rewritten
// on a terminal, a line every few seconds elsewhere.
#ifndef KDA_CLI_PROGRESS_H_
#define KDA_CLI_PROGRESS_H_

#include <chrono>
#include <string>

namespace kda::cli {

class Progress {
 public:
  explicit Progress(std::string task);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `fraction` of the work done, in [0, 1]; `now` names what comes next.
  void Update(double fraction, const std::string& now);

 private:
  using Clock = std::chrono::steady_clock;
  std::string task_;
  bool terminal_;
  Clock::time_point start_, shown_;
  bool line_open_ = false;
};

}  // namespace kda::cli

#endif  // KDA_CLI_PROGRESS_H_
