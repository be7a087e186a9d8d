// Opening the TPUs of this machine: whether there are any, whether libtpu
// comes up, then in earnest.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tpu/pjrt/device.h"
#include "tpu/pjrt/files.h"
#include "tpu/pjrt/libtpu.h"
#include "tpu/pjrt/messages.h"

namespace kda::tpu {
namespace {

using Clock = std::chrono::steady_clock;

// Of Google's TPUs on the PCI bus, as jax's table has them: v3, v4 (two), v5p, v5e, v6e, 7x.
constexpr const char* kVendor = "0x1ae0";
constexpr const char* kDevices[] = {"0x0027", "0x0056", "0x005e", "0x0062",
                                    "0x0063", "0x006f", "0x0076"};

std::string Word(const std::string& path) {
  std::string text;
  ReadFile(path, &text);
  return text.substr(0, text.find_first_of(" \n"));
}

std::string ReadAll(int file) {
  std::string text;
  char block[4096];
  lseek(file, 0, SEEK_SET);
  for (ssize_t n; (n = read(file, block, sizeof block)) > 0;) {
    text.append(block, static_cast<size_t>(n));
  }
  return text;
}

// The child's side of Try.
[[noreturn]] void TryHere(const std::string& libtpu, int report, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(errors, 1);
  dup2(errors, 2);
  std::string message = "ok";
  try {
    const Chips chips(libtpu);
    if (chips.count == 0) message = "libtpu sees no TPU";
  } catch (const PluginFailure& failure) {
    const std::string line = FirstLine(failure.message);
    message = "libtpu: " + (line.empty() ? "failed without a message" : line);
  }
  const ssize_t written = write(report, message.data(), message.size());
  _exit(written == static_cast<ssize_t>(message.size()) ? 0 : 1);
}

// False if the time ran out: the child is killed then.
bool WaitFor(pid_t pid, double seconds, int* status) {
  const auto start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    const pid_t done = waitpid(pid, status, WNOHANG);
    if (done == pid || (done < 0 && errno != EINTR)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(pid, SIGKILL);
  while (waitpid(pid, status, 0) < 0 && errno == EINTR) {
  }
  return false;
}

// Opens the TPUs in a child. Empty, or one line that says what is wrong.
std::string Try(const std::string& libtpu, double timeout_seconds) {
  const int report = memfd_create("kda-report", MFD_CLOEXEC);
  const int errors = memfd_create("kda-errors", MFD_CLOEXEC);
  std::string result;
  int status = 0;
  const pid_t pid = report < 0 || errors < 0 ? -1 : fork();
  if (pid == 0) TryHere(libtpu, report, errors);
  if (pid < 0) {
    result = std::string("cannot start a process: ") + strerror(errno);
  } else if (!WaitFor(pid, timeout_seconds, &status)) {
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", timeout_seconds);
    result = std::string("no TPU: libtpu has not found one after ") + seconds + " s";
  } else {
    const std::string told = ReadAll(report), words = LastWords(ReadAll(errors));
    if (WIFSIGNALED(status)) {
      result = "no TPU: libtpu aborted with signal " + std::to_string(WTERMSIG(status));
    } else if (told.empty()) {
      result = "no TPU: libtpu exited with code " + std::to_string(WEXITSTATUS(status));
    }
    if (!result.empty() && !words.empty()) result += ": " + words;
    if (result.empty() && told != "ok") result = "no TPU: " + told;
  }
  if (report >= 0) close(report);
  if (errors >= 0) close(errors);
  return result;
}

}  // namespace

Chips::Chips(const std::string& libtpu) : plugin(libtpu) {
  pjrt::ClientCreateArgs create{};
  plugin.Check(plugin->client_create(&create));
  client = OwnedClient(&plugin, create.client);
  pjrt::ClientDevicesArgs devices{};
  devices.client = client.get();
  plugin.Check(plugin->client_addressable_devices(&devices));
  count = static_cast<int>(devices.num_devices);
  pjrt::ClientPlatformVersionArgs version{};
  version.client = client.get();
  plugin.Check(plugin->client_platform_version(&version));
  compiler.assign(version.version, version.version_size);
  if (count == 0) return;
  pjrt::DeviceDescriptionArgs description{};
  description.device = devices.devices[0];
  plugin.Check(plugin->device_description(&description));
  pjrt::DeviceKindArgs name{};
  name.description = description.description;
  plugin.Check(plugin->device_kind(&name));
  kind.assign(name.kind, name.kind_size);
}

int CountChips(const std::string& pci, const std::string& dev) {
  int count = 0;
  for (const std::string& name : ListFiles(pci)) {
    if (Word(pci + "/" + name + "/vendor") != kVendor) continue;
    const std::string device = Word(pci + "/" + name + "/device");
    for (const char* known : kDevices) count += device == known ? 1 : 0;
  }
  if (count > 0) return count;
  // A chip newer than the table, or a sandbox without /sys.
  for (const std::string& name : ListFiles(dev)) {
    if (name.rfind("accel", 0) == 0 && name.size() > 5 &&
        isdigit(static_cast<unsigned char>(name[5])) != 0)
      ++count;
  }
  return count;
}

std::unique_ptr<Device> Device::Open(const DeviceOptions& options, std::string* error) {
  std::string libtpu;
  const int chips = CountChips();
  if (options.search_chips && chips == 0) {
    *error = "no TPU: none on this machine's PCI bus, and no /dev/accel*";
    return nullptr;
  }
  if (!FindLibtpu(options.libtpu, &libtpu, error)) return nullptr;
  if (chips == 0)
    setenv("TPU_SKIP_MDS_QUERY", "1", 0);  // or it asks a metadata service for minutes
  setenv("TPU_LOG_DIR", "disabled", 0);
  setenv("TPU_STDERR_LOG_LEVEL", "2", 0);  // errors
  setenv("TPU_MIN_LOG_LEVEL", "2", 0);
  *error = Try(libtpu, options.timeout_seconds);
  if (!error->empty()) return nullptr;
  try {
    return std::unique_ptr<Device>(new Device(std::make_unique<State>(libtpu)));
  } catch (const PluginFailure& failure) {
    *error = "no TPU: libtpu: " + FirstLine(failure.message);
    return nullptr;
  }
}

}  // namespace kda::tpu
