// Clocks, statistics of repeated runs, and where threads run.
#ifndef KDA_CLI_TIMING_H_
#define KDA_CLI_TIMING_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace kda::cli {

// Milliseconds since construction.
class Stopwatch {
 public:
  double Milliseconds() const {
    return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  }
  double Seconds() const { return Milliseconds() / 1e3; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

struct Statistics {
  double median = 0, p10 = 0, p90 = 0;
  int64_t count = 0;
};
Statistics Summarise(std::vector<double> samples);
double Quantile(const std::vector<double>& sorted, double q);  // linear between samples
double GeometricMean(const std::vector<double>& values);

// Gives each thread of this process its own processor, those of other physical cores first, so that
// the scheduler moves none during a measurement. Returns false, changing nothing, where there are
// more threads than processors. Call when the library's threads exist. `idle`: a thread that
// computes nothing and is left where it is; 0: none.
bool PinThreads(pid_t idle);

int64_t AvailableMemory();  // bytes that can be allocated without swapping; 0: unknown

}  // namespace kda::cli

#endif  // KDA_CLI_TIMING_H_
