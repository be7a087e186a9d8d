// The part of the PJRT C ABI that compiling ahead of time needs, declared here because the full
// header is in no small package. The ABI (openxla/xla, xla/pjrt/c/pjrt_c_api.h): every args struct
// begins with its size and an extension pointer, PJRT_Api grows only at its end, and a change that
// breaks this raises the major version, which the user of this header must find to be kPjrtMajor.
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

template <typename Args>
using Function = Error* (*)(Args*);

// The functions used here, each at its place in PJRT_Api. `Unused` are the others between them.
// Running a program would need PJRT_Client_Create (at 120), _BufferFromHostBuffer, _Execute etc.
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
  Unused<36> plugin_attributes_to_memory;
  Function<ExecutableDestroyArgs> executable_destroy;
  Unused<4> executable_name_to_num_outputs;
  Function<CodeSizeArgs> executable_code_size;
  Unused<3> executable_cost_analysis_to_optimized_program;
  Function<SerializeArgs> executable_serialize;
  Unused<32> loaded_executable_to_stream;
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
static_assert(offsetof(Api, executable_destroy) == 360);
static_assert(offsetof(Api, executable_code_size) == 400);
static_assert(offsetof(Api, executable_serialize) == 432);
static_assert(offsetof(Api, topology_create) == 696);
static_assert(offsetof(Api, topology_platform_version) == 720);
static_assert(offsetof(Api, compile) == 752);
static_assert(offsetof(Api, executable_fingerprint) == 792);
static_assert(offsetof(Api, executable_memory_stats) == 808);

using GetPjrtApi = const Api* (*)();

}  // namespace kda::tpu::pjrt

#endif  // KDA_TPU_PJRT_PJRT_API_H_
