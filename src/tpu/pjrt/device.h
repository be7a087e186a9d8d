// The handles of a device that is open (execute.cc), owned: each is destroyed through the plugin.
#ifndef KDA_TPU_PJRT_DEVICE_H_
#define KDA_TPU_PJRT_DEVICE_H_

#include <string>
#include <utility>
#include <vector>

#include "tpu/pjrt/execute.h"
#include "tpu/pjrt/plugin.h"

namespace kda::tpu {

template <typename Handle, typename Args, pjrt::Function<Args> pjrt::Api::*kDestroy,
          Handle* Args::*kField>
class Owned {
 public:
  Owned() = default;
  Owned(const Plugin* plugin, Handle* handle) : plugin_(plugin), handle_(handle) {}
  ~Owned() { Reset(); }
  Owned(Owned&& other) noexcept { *this = std::move(other); }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(plugin_, other.plugin_);
    std::swap(handle_, other.handle_);
    other.Reset();
    return *this;
  }
  Handle* get() const { return handle_; }

 private:
  void Reset() {
    if (handle_ == nullptr) return;
    Args args{};
    args.*kField = std::exchange(handle_, nullptr);
    try {
      plugin_->Check(((*plugin_).operator->()->*kDestroy)(&args));
    } catch (const PluginFailure&) {  // nothing that could be done about it
    }
  }
  const Plugin* plugin_ = nullptr;
  Handle* handle_ = nullptr;
};

using OwnedBuffer = Owned<pjrt::Buffer, pjrt::BufferDestroyArgs, &pjrt::Api::buffer_destroy,
                          &pjrt::BufferDestroyArgs::buffer>;
using OwnedEvent =
    Owned<pjrt::Event, pjrt::EventArgs, &pjrt::Api::event_destroy, &pjrt::EventArgs::event>;
using OwnedClient = Owned<pjrt::Client, pjrt::ClientDestroyArgs, &pjrt::Api::client_destroy,
                          &pjrt::ClientDestroyArgs::client>;
using OwnedExecutable =
    Owned<pjrt::Executable, pjrt::ExecutableDestroyArgs, &pjrt::Api::executable_destroy,
          &pjrt::ExecutableDestroyArgs::executable>;
using OwnedLoaded =
    Owned<pjrt::LoadedExecutable, pjrt::LoadedExecutableDestroyArgs,
          &pjrt::Api::loaded_executable_destroy, &pjrt::LoadedExecutableDestroyArgs::executable>;

// The TPUs that a client of libtpu sees. Throws PluginFailure.
struct Chips {
  explicit Chips(const std::string& libtpu);
  Plugin plugin;
  OwnedClient client;
  std::string kind, compiler;
  int count = 0;
};

struct Device::State {
  explicit State(const std::string& libtpu) : chips(libtpu) {}
  Chips chips;
};

// One program on its chips. All methods throw PluginFailure.
class Run {
 public:
  Run(const Plugin& plugin, pjrt::Client* client, const ExecuteRequest& request);
  double compile_seconds() const { return compile_seconds_; }
  void Upload();
  // Queues a call; its events are to be waited for. `outputs` as [chip][result].
  using Buffers = std::vector<std::vector<OwnedBuffer>>;
  std::vector<OwnedEvent> Call(Buffers* outputs);
  // Outputs become the arguments that gave them their memory, the others go.
  void TakeBack(Buffers outputs);
  void Wait(const OwnedEvent& event);
  std::vector<ir::Array> Download(const Buffers& outputs);

 private:
  void Compile();
  OwnedBuffer ToDevice(const ir::Array& array, pjrt::Device* device);
  ir::Array ToHost(const OwnedBuffer& buffer, const hlo::Type& type);

  const Plugin& plugin_;
  pjrt::Client* const client_;
  const ExecuteRequest& request_;
  OwnedLoaded program_;
  std::vector<pjrt::Device*> devices_;  // by chip
  Buffers arguments_;                   // [chip][argument]
  double compile_seconds_ = 0;
};

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_DEVICE_H_
