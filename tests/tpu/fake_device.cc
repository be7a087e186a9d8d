// A plugin with TPUs of its own, which are host memory: it runs programs of one line,
//
//   fake chips=2 outputs=3 donates=0
//
// whose output i is argument i, every byte one more; `donates` is the number of the argument whose
// memory output 0 takes. It is strict with its caller: sizes of structs as plugins of PJRT 0.90
// want them, layouts, events that must be waited for before what they stand for is there, buffers
// that were given away, handles that are destroyed twice or never. What it objects to is an error
// of the call or, where there can be none, in fake_complaints(). KDA_FAKE_DEVICE of the
// environment makes it fail.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tpu/pjrt/pjrt_api.h"

namespace kda::tpu::pjrt {

struct Error {
  std::string message;
};
struct Event {
  std::function<void()> finish;
  Error* error = nullptr;
  bool done = false;
};
struct Device {};
struct DeviceDescription {};
struct Client {
  std::vector<Device> chips = std::vector<Device>(4);
  std::vector<Device*> list;
};
struct Buffer {
  std::vector<unsigned char> bytes;
  std::vector<int64_t> dims;
  ElementType type;
  const Device* chip;
  bool there = false, given_away = false;
};
struct LoadedExecutable {
  int chips = 1, outputs = 1, donates = -1;
  std::vector<Device*> list;
};
struct Executable {
  int outputs;
};

namespace {

std::set<const void*> g_live;
std::string g_complaints;
int g_calls = 0;

bool Fault(const char* name) {
  const char* fault = getenv("KDA_FAKE_DEVICE");
  return fault != nullptr && strcmp(fault, name) == 0;
}

template <typename T>
T* Made(T* handle) {
  g_live.insert(handle);
  return handle;
}

Error* Refuse(const std::string& message) { return Made(new Error{message}); }

template <typename T>
void Destroy(T* handle, const char* what) {
  if (g_live.erase(handle) == 0) {
    g_complaints += std::string(what) + " destroyed that is not there\n";
    return;
  }
  delete handle;
}

// The size that a plugin of PJRT 0.90 asks for.
#define WANT_SIZE(args, size)                                                     \
  if ((args)->header.struct_size < (size) || (args)->header.extension != nullptr) \
  return Refuse(std::string(__func__) + ": struct_size")
#define WANT(condition) \
  if (!(condition)) return Refuse(std::string(__func__) + ": not so: " #condition)

Event* MakeEvent(std::function<void()> finish) {
  auto* event = Made(new Event);
  event->finish = std::move(finish);
  return event;
}

size_t BytesOf(ElementType type) { return type == kPred ? 1 : type == kBF16 ? 2 : 4; }

void ErrorDestroy(ErrorDestroyArgs* args) { Destroy(args->error, "an error"); }

void ErrorMessage(ErrorMessageArgs* args) {
  args->message = args->error->message.data();
  args->message_size = args->error->message.size();
}

Error* Initialize(PluginInitializeArgs* args) {
  WANT_SIZE(args, 16);
  return nullptr;
}

Error* EventDestroy(EventArgs* args) {
  WANT_SIZE(args, 24);
  if (g_live.count(args->event) != 0 && !args->event->done) {
    g_complaints += "an event destroyed that was not waited for\n";
  }
  Destroy(args->event, "an event");
  return nullptr;
}

Error* EventAwait(EventArgs* args) {
  WANT_SIZE(args, 24);
  WANT(g_live.count(args->event) != 0);
  Event* event = args->event;
  if (!event->done && event->finish) event->finish();
  event->done = true;
  return event->error != nullptr ? std::exchange(event->error, nullptr) : nullptr;
}

Error* ClientCreate(ClientCreateArgs* args) {
  WANT_SIZE(args, 88);
  if (Fault("abort")) {
    fprintf(stderr, "F1130 09:25:01.5 77 tpu.cc:12] Check failed: no chip\n");
    abort();
  }
  if (Fault("hang")) pause();
  if (Fault("exit")) _exit(3);
  if (Fault("no_client")) return Refuse("UNAVAILABLE: chip in use\nby process 12");
  auto* client = Made(new Client);
  for (Device& chip : client->chips) client->list.push_back(&chip);
  if (Fault("no_chips")) client->list.clear();
  args->client = client;
  return nullptr;
}

Error* ClientDestroy(ClientDestroyArgs* args) {
  WANT_SIZE(args, 24);
  Destroy(args->client, "a client");
  return nullptr;
}

Error* ClientVersion(ClientPlatformVersionArgs* args) {
  WANT_SIZE(args, 40);
  args->version = "fake 1";
  args->version_size = 6;
  return nullptr;
}

Error* ClientDevices(ClientDevicesArgs* args) {
  WANT_SIZE(args, 40);
  args->devices = args->client->list.data();
  args->num_devices = args->client->list.size();
  return nullptr;
}

Error* Describe(DeviceDescriptionArgs* args) {
  WANT_SIZE(args, 32);
  static DeviceDescription description;
  args->description = &description;
  return nullptr;
}

Error* Kind(DeviceKindArgs* args) {
  WANT_SIZE(args, 40);
  args->kind = "TPU v6 lite";
  args->kind_size = 11;
  return nullptr;
}

Error* Compile(ClientCompileArgs* args) {
  WANT_SIZE(args, 56);
  WANT(std::string(args->program->format, args->program->format_size) == "mlir");
  const std::string code(args->program->code, args->program->code_size);
  LoadedExecutable program;
  if (sscanf(code.c_str(), "fake chips=%d outputs=%d donates=%d", &program.chips, &program.outputs,
             &program.donates) < 2) {
    return Refuse("INVALID_ARGUMENT: " + code + "\nmore");
  }
  // num_replicas 1, then num_partitions.
  WANT(args->options_size > 5 && args->options[5] == program.chips);
  program.list.assign(args->client->list.begin(), args->client->list.begin() + program.chips);
  args->executable = Made(new LoadedExecutable(program));
  return nullptr;
}

Error* LoadedDestroy(LoadedExecutableDestroyArgs* args) {
  WANT_SIZE(args, 24);
  Destroy(args->executable, "a program");
  return nullptr;
}

Error* GetExecutable(GetExecutableArgs* args) {
  WANT_SIZE(args, 32);
  args->executable = Made(new Executable{args->loaded->outputs});
  return nullptr;
}

Error* ExecutableDestroy(ExecutableDestroyArgs* args) {
  WANT_SIZE(args, 24);
  Destroy(args->executable, "an executable");
  return nullptr;
}

Error* NumOutputs(NumOutputsArgs* args) {
  WANT_SIZE(args, 32);
  args->num_outputs = static_cast<size_t>(args->executable->outputs);
  return nullptr;
}

Error* ExecutableDevices(ExecutableDevicesArgs* args) {
  WANT_SIZE(args, 40);
  args->devices = args->executable->list.data();
  args->num_devices = args->executable->list.size();
  return nullptr;
}

Error* FromHost(BufferFromHostArgs* args) {
  WANT_SIZE(args, 120);
  WANT(args->semantics == kImmutableUntilTransferCompletes);
  WANT(args->byte_strides == nullptr && args->num_byte_strides == 0);
  WANT(args->memory == nullptr && args->device_layout == nullptr && args->device != nullptr);
  auto* buffer = Made(new Buffer);
  buffer->dims.assign(args->dims, args->dims + args->num_dims);
  buffer->type = args->type;
  buffer->chip = args->device;
  size_t size = BytesOf(args->type);
  for (int64_t d : buffer->dims) size *= static_cast<size_t>(d);
  const auto* from = static_cast<const unsigned char*>(args->data);
  args->buffer = buffer;
  args->done_with_host_buffer = MakeEvent([=] {
    buffer->bytes.assign(from, from + size);
    buffer->there = true;
  });
  if (Fault("transfer")) args->done_with_host_buffer->error = Refuse("transfer failed");
  return nullptr;
}

Error* Execute(ExecuteArgs* args) {
  WANT_SIZE(args, 80);
  WANT(args->options->header.struct_size >= 112);
  WANT(args->execute_device == nullptr && args->complete_events != nullptr);
  const LoadedExecutable& program = *args->executable;
  WANT(args->num_devices == program.list.size());
  WANT(args->num_args >= static_cast<size_t>(program.outputs));
  if (Fault("execute")) return Refuse("RESOURCE_EXHAUSTED: no memory\nnone");
  for (size_t chip = 0; chip < args->num_devices; ++chip) {
    for (size_t i = 0; i < args->num_args; ++i) {
      const Buffer* b = args->argument_lists[chip][i];
      WANT(g_live.count(b) != 0);
      WANT(!b->given_away);
      WANT(b->there);
      WANT(b->chip == program.list[chip]);
    }
  }
  ++g_calls;
  for (size_t chip = 0; chip < args->num_devices; ++chip) {
    for (int i = 0; i < program.outputs; ++i) {
      auto* out = Made(new Buffer(*args->argument_lists[chip][i]));
      for (unsigned char& byte : out->bytes) ++byte;
      if (Fault("shape")) out->dims.push_back(1);
      if (Fault("type")) out->type = kPred;
      args->output_lists[chip][i] = out;
    }
    if (program.donates >= 0) args->argument_lists[chip][program.donates]->given_away = true;
    args->complete_events[chip] = MakeEvent(nullptr);
    if (Fault("run")) args->complete_events[chip]->error = Refuse("INTERNAL: halted");
  }
  return nullptr;
}

Error* BufferDestroy(BufferDestroyArgs* args) {
  WANT_SIZE(args, 24);
  Destroy(args->buffer, "a buffer");
  return nullptr;
}

Error* BufferType(BufferElementTypeArgs* args) {
  WANT_SIZE(args, 28);
  args->type = args->buffer->type;
  return nullptr;
}

Error* BufferDims(BufferDimensionsArgs* args) {
  WANT_SIZE(args, 40);
  args->dims = args->buffer->dims.data();
  args->num_dims = args->buffer->dims.size();
  return nullptr;
}

Error* ToHost(BufferToHostArgs* args) {
  WANT_SIZE(args, 56);
  WANT(args->host_layout != nullptr && args->host_layout->header.struct_size >= 80);
  const MemoryLayout& layout = *args->host_layout;
  WANT(layout.tiled_header.struct_size == 56 && layout.type == 0 && layout.num_tiles == 0);
  const size_t rank = args->source->dims.size();
  WANT(layout.minor_to_major_size == rank);
  for (size_t i = 0; i < rank; ++i) {
    WANT(layout.minor_to_major[i] == static_cast<int64_t>(rank - 1 - i));
  }
  WANT(!args->source->given_away);
  WANT(args->destination_size >= args->source->bytes.size());
  const Buffer* source = args->source;
  void* destination = args->destination;
  args->event = MakeEvent([=] {
    if (!source->bytes.empty()) memcpy(destination, source->bytes.data(), source->bytes.size());
  });
  return nullptr;
}

}  // namespace
}  // namespace kda::tpu::pjrt

namespace pjrt = kda::tpu::pjrt;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int fake_live() { return static_cast<int>(pjrt::g_live.size()); }
EXPORT int fake_calls() { return pjrt::g_calls; }
EXPORT const char* fake_complaints() { return pjrt::g_complaints.c_str(); }

EXPORT const pjrt::Api* GetPjrtApi() {
  static pjrt::Api api{};
  api.header.struct_size = sizeof(pjrt::Api);
  api.version.major = pjrt::kPjrtMajor;
  api.version.minor = 90;
  api.error_destroy = pjrt::ErrorDestroy;
  api.error_message = pjrt::ErrorMessage;
  api.plugin_initialize = pjrt::Initialize;
  api.event_destroy = pjrt::EventDestroy;
  api.event_await = pjrt::EventAwait;
  api.client_create = pjrt::ClientCreate;
  api.client_destroy = pjrt::ClientDestroy;
  api.client_platform_version = pjrt::ClientVersion;
  api.client_addressable_devices = pjrt::ClientDevices;
  api.device_description = pjrt::Describe;
  api.device_kind = pjrt::Kind;
  api.client_compile = pjrt::Compile;
  api.loaded_executable_destroy = pjrt::LoadedDestroy;
  api.loaded_executable_get_executable = pjrt::GetExecutable;
  api.loaded_executable_devices = pjrt::ExecutableDevices;
  api.executable_destroy = pjrt::ExecutableDestroy;
  api.executable_num_outputs = pjrt::NumOutputs;
  api.buffer_from_host = pjrt::FromHost;
  api.execute = pjrt::Execute;
  api.buffer_destroy = pjrt::BufferDestroy;
  api.buffer_element_type = pjrt::BufferType;
  api.buffer_dimensions = pjrt::BufferDims;
  api.buffer_to_host = pjrt::ToHost;
  return &api;
}
