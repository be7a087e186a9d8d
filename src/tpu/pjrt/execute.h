// Runs programs on the TPUs of this machine: the same modules that are compiled ahead of time
// elsewhere (compile.h), through the same libtpu.
#ifndef KDA_TPU_PJRT_EXECUTE_H_
#define KDA_TPU_PJRT_EXECUTE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tpu/hlo/evaluator.h"
#include "tpu/hlo/module.h"
#include "tpu/ir/array.h"
#include "tpu/pjrt/target.h"

namespace kda::tpu {

struct DeviceOptions {
  std::string libtpu;           // its path; empty: FindLibtpu decides
  double timeout_seconds = 60;  // of the first attempt, in a process of its own
  // A machine without a TPU's chip on its PCI bus and without its device files is told apart before
  // libtpu is loaded. False: libtpu is asked all the same.
  bool search_chips = true;
};

struct Argument {
  ir::Array array;    // the whole, whatever the number of chips
  int split = -1;     // dimension that is spread over the chips; -1: each is given the whole
  int gives_to = -1;  // the result that takes its memory, as the module says
};

struct ResultType {
  hlo::Type type;  // the whole
  int split = -1;
};

struct ExecuteRequest {
  std::string module;  // StableHLO, as text
  int partitions = 1;
  std::vector<Argument> arguments;
  std::vector<ResultType> results;
  std::vector<std::pair<std::string, std::string>> overrides;  // XLA flags of this compilation
  int repeats = 0;  // timed calls; 0: it runs once and is not timed
};

// Throws ir::BuildError where an input is missing or has another type, or
// CheckInputs (inputs.h) does.
ExecuteRequest RequestOf(const hlo::Module& module, const hlo::Arrays& inputs);

struct ExecuteResult {
  std::string error;  // one line; empty: all is well
  bool ok() const { return error.empty(); }
  std::vector<ir::Array> outputs;  // of the first call
  double compile_seconds = 0;
  // Both are wall times of calls whose inputs lie in the device's memory, after the first call.
  // What a call gives away it takes from the call before.
  double call_seconds = 0;  // one call waited for, the host's part with it: the median
  double queued_seconds =
      0;  // per call, all of them queued at once: the device's time, where that is
          // longer than the host needs to queue a call
};

class Device {
 public:
  // Takes the machine's TPUs, which no other process can use then. Null, with one line, where there
  // are none or libtpu does not come up: it is tried in a child process first, with a time limit,
  // since libtpu may end the process or wait for ever. The child is forked: open the device before
  // other threads run. Sets what libtpu reads of the environment where it is not set.
  static std::unique_ptr<Device> Open(const DeviceOptions& options, std::string* error);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  ExecuteResult Execute(const ExecuteRequest& request);

  const std::string& kind() const;      // "TPU v6 lite"
  const std::string& compiler() const;  // version text of libtpu
  int count() const;                    // chips, as XLA sees them
  const Target* target() const;         // one chip of this kind; null: not known here

 private:
  struct State;
  explicit Device(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// TPU chips on this machine's PCI bus, or their device files. The folders are for tests.
int CountChips(const std::string& pci = "/sys/bus/pci/devices", const std::string& dev = "/dev");

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_EXECUTE_H_
