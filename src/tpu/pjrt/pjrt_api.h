// The part of the PJRT C ABI that compiling and running programs need, declared here because
// the full header is in no small package. The ABI (openxla/xla, xla/pjrt/c/pjrt_c_api.h):
// every args struct begins with its size and an extension pointer, PJRT_Api grows only at its
// end, and a change that breaks this raises the major version, which the user of this header
// must find to be kPjrtMajor.
#ifndef KDA_TPU_PJRT_PJRT_API_H_
#define KDA_TPU_PJRT_PJRT_API_H_

#include <cstddef>
#include <cstdint>

namespace kda::tpu::pjrt {

inline constexpr int kPjrtMajor = 0;

// Owned by the plugin.
struct Error;
struct Topology;
struct Executable;
struct Client;
struct SerializedExecutable;
struct Device;
struct DeviceDescription;
struct Memory;
struct LoadedExecutable;
struct Buffer;
struct Event;
struct ExecuteContext;

// What every args struct starts with. `struct_size` tells the plugin which fields the caller knows.
struct ArgsHeader {
  size_t struct_size;
  void* extension = nullptr;
};

// Fields marked "out" are written by the plugin.
struct ErrorDestroyArgs {
  ArgsHeader header{sizeof(ErrorDestroyArgs)};
  Error* error;
};
struct ErrorMessageArgs {
  ArgsHeader header{sizeof(ErrorMessageArgs)};
  const Error* error;
  const char* message;  // out, lives as long as `error`
  size_t message_size;  // out
};
struct PluginInitializeArgs {
  ArgsHeader header{sizeof(PluginInitializeArgs)};
};
struct TopologyCreateArgs {
  ArgsHeader header{sizeof(TopologyCreateArgs)};
  const char* name;
  size_t name_size;
  const void* create_options = nullptr;
  size_t num_options = 0;
  Topology* topology;  // out
};
struct TopologyDestroyArgs {
  ArgsHeader header{sizeof(TopologyDestroyArgs)};
  Topology* topology;
};
struct TopologyPlatformVersionArgs {
  ArgsHeader header{sizeof(TopologyPlatformVersionArgs)};
  Topology* topology;
  const char* version;  // out, lives as long as `topology`
  size_t version_size;  // out
};
struct Program {
  ArgsHeader header{sizeof(Program)};
  const char* code;
  size_t code_size;
  const char* format;  // "mlir"
  size_t format_size;
};
struct CompileArgs {
  ArgsHeader header{sizeof(CompileArgs)};
  const Topology* topology;
  const Program* program;
  const char* options;  // a serialised CompileOptionsProto
  size_t options_size;
  Client* client = nullptr;
  Executable* executable;  // out
};
struct ExecutableDestroyArgs {
  ArgsHeader header{sizeof(ExecutableDestroyArgs)};
  Executable* executable;
};
struct CodeSizeArgs {
  ArgsHeader header{sizeof(CodeSizeArgs)};
  Executable* executable;
  int64_t bytes;  // out
};
struct SerializeArgs {
  ArgsHeader header{sizeof(SerializeArgs)};
  const Executable* executable;
  const char* bytes;  // out, lives as long as `serialized`
  size_t size;        // out
  SerializedExecutable* serialized;
  void (*deleter)(SerializedExecutable*);  // out
};
struct FingerprintArgs {
  ArgsHeader header{sizeof(FingerprintArgs)};
  Executable* executable;
  const char* fingerprint;  // out, lives as long as `executable`
  size_t fingerprint_size;  // out
};
struct MemoryStatsArgs {
  ArgsHeader header{sizeof(MemoryStatsArgs)};
  Executable* executable;
  // All out, in bytes; "host" is the host's memory.
  int64_t code, arguments, outputs, aliases, temporaries;
  int64_t host_code, host_arguments, host_outputs, host_aliases, host_temporaries;
  int64_t peak;
  int64_t reserved[5];  // of plugins to come, which want no smaller a struct than their own
};

// Running programs. `reserved` is for fields that plugins to come may want, as above.
enum ElementType : int { kPred = 1, kS32 = 4, kF32 = 11, kBF16 = 13 };
enum HostBufferSemantics : int { kImmutableUntilTransferCompletes = 1 };

struct EventArgs {  // of Event_Destroy and Event_Await
  ArgsHeader header{sizeof(EventArgs)};
  Event* event;
};
struct ClientCreateArgs {
  ArgsHeader header{sizeof(ClientCreateArgs)};
  const void* create_options = nullptr;
  size_t num_options = 0;
  void* key_value_callbacks[4] = {};  // of several hosts
  Client* client;                     // out
  void* reserved[6] = {};
};
struct ClientDestroyArgs {
  ArgsHeader header{sizeof(ClientDestroyArgs)};
  Client* client;
};
struct ClientPlatformVersionArgs {
  ArgsHeader header{sizeof(ClientPlatformVersionArgs)};
  Client* client;
  const char* version;  // out, lives as long as `client`
  size_t version_size;  // out
};
struct ClientDevicesArgs {
  ArgsHeader header{sizeof(ClientDevicesArgs)};
  Client* client;
  Device* const* devices;  // out, lives as long as `client`
  size_t num_devices;      // out
};
struct ClientCompileArgs {
  ArgsHeader header{sizeof(ClientCompileArgs)};
  Client* client;
  const Program* program;
  const char* options;  // a serialised CompileOptionsProto
  size_t options_size;
  LoadedExecutable* executable;  // out
};
struct MemoryLayout {
  ArgsHeader header{sizeof(MemoryLayout)};
  ArgsHeader tiled_header{5 * sizeof(void*) + sizeof(ArgsHeader)};
  const int64_t* minor_to_major;
  size_t minor_to_major_size;
  const int64_t* tile_dims = nullptr;
  const size_t* tile_dim_sizes = nullptr;
  size_t num_tiles = 0;
  int type = 0;  // tiled
};
struct BufferFromHostArgs {
  ArgsHeader header{sizeof(BufferFromHostArgs)};
  Client* client;
  const void* data;
  ElementType type;
  const int64_t* dims;
  size_t num_dims;
  const int64_t* byte_strides = nullptr;  // none: row-major
  size_t num_byte_strides = 0;
  HostBufferSemantics semantics = kImmutableUntilTransferCompletes;
  Device* device;
  Memory* memory = nullptr;
  MemoryLayout* device_layout = nullptr;  // none: the compiler's own
  Event* done_with_host_buffer;           // out, the caller's
  Buffer* buffer;                         // out, the caller's
  void* reserved[4] = {};
};
struct DeviceDescriptionArgs {
  ArgsHeader header{sizeof(DeviceDescriptionArgs)};
  Device* device;
  DeviceDescription* description;  // out
};
struct DeviceKindArgs {
  ArgsHeader header{sizeof(DeviceKindArgs)};
  DeviceDescription* description;
  const char* kind;  // out, lives as long as the device
  size_t kind_size;  // out
};
struct NumOutputsArgs {
  ArgsHeader header{sizeof(NumOutputsArgs)};
  Executable* executable;
  size_t num_outputs;  // out
};
struct LoadedExecutableDestroyArgs {
  ArgsHeader header{sizeof(LoadedExecutableDestroyArgs)};
  LoadedExecutable* executable;
};
struct GetExecutableArgs {
  ArgsHeader header{sizeof(GetExecutableArgs)};
  LoadedExecutable* loaded;
  Executable* executable;  // out, the caller's
};
struct ExecutableDevicesArgs {
  ArgsHeader header{sizeof(ExecutableDevicesArgs)};
  LoadedExecutable* executable;
  Device* const* devices;  // out, by partition
  size_t num_devices;      // out
};
struct ExecuteOptions {
  ArgsHeader header{sizeof(ExecuteOptions)};
  void* send_callbacks = nullptr;
  void* recv_callbacks = nullptr;
  size_t num_send_ops = 0;
  size_t num_recv_ops = 0;
  int launch_id = 0;
  const int64_t* non_donatable_input_indices = nullptr;
  size_t num_non_donatable_input_indices = 0;
  ExecuteContext* context = nullptr;
  const char* call_location = nullptr;
  size_t num_tasks = 0;
  int* task_ids = nullptr;
  int64_t* incarnation_ids = nullptr;
  void* reserved[6] = {};
};
struct ExecuteArgs {
  ArgsHeader header{sizeof(ExecuteArgs)};
  LoadedExecutable* executable;
  ExecuteOptions* options;
  Buffer* const* const* argument_lists;  // [num_devices][num_args]
  size_t num_devices;
  size_t num_args;
  Buffer** const* output_lists;  // [num_devices][num_outputs], filled; the buffers are the caller's
  Event** complete_events;       // [num_devices], filled; the caller's
  Device* execute_device = nullptr;
  void* reserved[4] = {};
};
struct BufferDestroyArgs {
  ArgsHeader header{sizeof(BufferDestroyArgs)};
  Buffer* buffer;
};
struct BufferElementTypeArgs {
  ArgsHeader header{sizeof(BufferElementTypeArgs)};
  Buffer* buffer;
  ElementType type;  // out
};
struct BufferDimensionsArgs {
  ArgsHeader header{sizeof(BufferDimensionsArgs)};
  Buffer* buffer;
  const int64_t* dims;  // out, lives as long as `buffer`
  size_t num_dims;      // out
};
struct BufferToHostArgs {
  ArgsHeader header{sizeof(BufferToHostArgs)};
  Buffer* source;
  MemoryLayout* host_layout;  // none: that of `source`
  void* destination;
  size_t destination_size;
  Event* event;  // out, the caller's
};

template <typename Args>
using Function = Error* (*)(Args*);

// The functions used here, each at its place in PJRT_Api. `Unused` are the others between them.
template <int kCount>
struct Unused {
  void* functions[kCount];
};
struct Api {
  ArgsHeader header;
  struct {
    ArgsHeader header;
    int major, minor;
  } version;
  void (*error_destroy)(ErrorDestroyArgs*);
  void (*error_message)(ErrorMessageArgs*);
  Unused<1> error_get_code;
  Function<PluginInitializeArgs> plugin_initialize;
  Unused<1> plugin_attributes;
  Function<EventArgs> event_destroy;
  Unused<2> event_is_ready_to_error;
  Function<EventArgs> event_await;
  Unused<1> event_on_ready;
  Function<ClientCreateArgs> client_create;
  Function<ClientDestroyArgs> client_destroy;
  Unused<2> client_platform_name_to_process_index;
  Function<ClientPlatformVersionArgs> client_platform_version;
  Unused<1> client_devices;
  Function<ClientDevicesArgs> client_addressable_devices;
  Unused<3> client_lookup_device_to_memories;
  Function<ClientCompileArgs> client_compile;
  Unused<1> client_default_device_assignment;
  Function<BufferFromHostArgs> buffer_from_host;
  Unused<3> device_description_id_to_attributes;
  Function<DeviceKindArgs> device_kind;
  Unused<2> device_description_debug_string_to_string;
  Function<DeviceDescriptionArgs> device_description;
  Unused<10> device_is_addressable_to_memory;
  Function<ExecutableDestroyArgs> executable_destroy;
  Unused<3> executable_name_to_num_partitions;
  Function<NumOutputsArgs> executable_num_outputs;
  Function<CodeSizeArgs> executable_code_size;
  Unused<3> executable_cost_analysis_to_optimized_program;
  Function<SerializeArgs> executable_serialize;
  Function<LoadedExecutableDestroyArgs> loaded_executable_destroy;
  Function<GetExecutableArgs> loaded_executable_get_executable;
  Function<ExecutableDevicesArgs> loaded_executable_devices;
  Unused<2> loaded_executable_delete_to_is_deleted;
  Function<ExecuteArgs> execute;
  Unused<2> loaded_executable_deserialize_to_fingerprint;
  Function<BufferDestroyArgs> buffer_destroy;
  Function<BufferElementTypeArgs> buffer_element_type;
  Function<BufferDimensionsArgs> buffer_dimensions;
  Unused<9> buffer_unpadded_dimensions_to_copy;
  Function<BufferToHostArgs> buffer_to_host;
  Unused<11> buffer_is_on_cpu_to_stream;
  Function<TopologyCreateArgs> topology_create;
  Function<TopologyDestroyArgs> topology_destroy;
  Unused<1> topology_platform_name;
  Function<TopologyPlatformVersionArgs> topology_platform_version;
  Unused<3> topology_descriptions_to_attributes;
  Function<CompileArgs> compile;
  Unused<4> executable_output_types_to_view;
  Function<FingerprintArgs> executable_fingerprint;
  Unused<1> client_topology;
  Function<MemoryStatsArgs> executable_memory_stats;
};
static_assert(sizeof(void*) == 8);
static_assert(offsetof(Api, error_destroy) == 40);
static_assert(offsetof(Api, plugin_initialize) == 64);
static_assert(offsetof(Api, event_await) == 104);
static_assert(offsetof(Api, client_create) == 120);
static_assert(offsetof(Api, client_addressable_devices) == 168);
static_assert(offsetof(Api, client_compile) == 200);
static_assert(offsetof(Api, buffer_from_host) == 216);
static_assert(offsetof(Api, device_kind) == 248);
static_assert(offsetof(Api, device_description) == 272);
static_assert(offsetof(Api, executable_destroy) == 360);
static_assert(offsetof(Api, executable_num_outputs) == 392);
static_assert(offsetof(Api, executable_code_size) == 400);
static_assert(offsetof(Api, executable_serialize) == 432);
static_assert(offsetof(Api, loaded_executable_devices) == 456);
static_assert(offsetof(Api, execute) == 480);
static_assert(offsetof(Api, buffer_destroy) == 504);
static_assert(offsetof(Api, buffer_to_host) == 600);
static_assert(offsetof(Api, topology_create) == 696);
static_assert(offsetof(Api, topology_platform_version) == 720);
static_assert(offsetof(Api, compile) == 752);
static_assert(offsetof(Api, executable_fingerprint) == 792);
static_assert(offsetof(Api, executable_memory_stats) == 808);

using GetPjrtApi = const Api* (*)();

}  // namespace kda::tpu::pjrt

#endif  // KDA_TPU_PJRT_PJRT_API_H_
