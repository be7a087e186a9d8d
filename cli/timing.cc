#include "cli/timing.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace kda::cli {
namespace {

// The processors this process may use, one of each physical core first.
std::vector<int> Processors() {
  static const std::vector<int> processors = [] {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    std::vector<int> first, siblings;
    if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0) return first;
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      std::ifstream file(
          fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
      std::string core = fmt::format("unknown {}", cpu);
      std::getline(file, core);
      (cores.insert(core).second ? first : siblings).push_back(cpu);
    }
    first.insert(first.end(), siblings.begin(), siblings.end());
    return first;
  }();
  return processors;
}

}  // namespace

double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Statistics Summarise(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {Quantile(samples, 0.5), Quantile(samples, 0.1), Quantile(samples, 0.9),
          static_cast<int64_t>(samples.size())};
}

double GeometricMean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += std::log(value);
  return values.empty() ? 0 : std::exp(sum / static_cast<double>(values.size()));
}

bool PinThreads(pid_t idle) {
  const std::vector<int> processors = Processors();
  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto thread = static_cast<pid_t>(std::stol(entry.path().filename().string()));
    if (thread != idle) threads.push_back(thread);
  }
  if (threads.empty() || threads.size() > processors.size()) return false;
  std::sort(threads.begin(), threads.end());
  for (size_t i = 0; i < threads.size(); ++i) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processors[i], &one);
    if (sched_setaffinity(threads[i], sizeof one, &one) != 0) return false;
  }
  return true;
}

int64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kibibytes = 0;
  std::string unit;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return 0;
}

}  // namespace kda::cli
