// How often each part of a kernel runs: its schedule, weighted with what only the caller knows.
#ifndef KDA_TPU_SCHEDULE_EXECUTIONS_H_
#define KDA_TPU_SCHEDULE_EXECUTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tpu/schedule/schedule.h"

namespace kda::tpu {

// One call of one kernel, counted on the host from the sequence lengths.
struct KernelCounts {
  int64_t steps = 0;  // of its grid; 0: from the schedule
  // How often the body of the loop or if at this line of the kernel's text (its node, as
  // ir/printer.h numbers them) runs in all: over all steps and over all loops around it; the
  // compiler's copies of it get equal parts. For an if with an else: its first part. A loop with a
  // constant trip count needs no entry; an if without one is taken to run always.
  std::map<int64_t, double> lines;
  int64_t hbm_bytes = 0;  // moved by its DMAs and windows; 0: the size of its operands and results
};
using CountsByKernel = std::map<std::string, KernelCounts>;  // by Operation::kernel

struct Executions {
  std::vector<double> blocks;   // per Program::blocks
  std::vector<double> bundles;  // per bundle
  double steps = 1;
  std::vector<std::string> notes;  // what had to be assumed
};

Executions CountExecutions(const Program& program, const KernelCounts& counts);

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_EXECUTIONS_H_
