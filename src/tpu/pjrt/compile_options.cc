#include "tpu/pjrt/compile_options.h"

#include <cstdint>
#include <cstdlib>

namespace kda::tpu {
namespace {

// One message of the protocol buffers' wire format.
class Message {
 public:
  void Number(int field, uint64_t value) {
    Varint(static_cast<uint64_t>(field) << 3);
    Varint(value);
  }
  void Bytes(int field, const std::string& bytes) {
    Varint(static_cast<uint64_t>(field) << 3 | 2);
    Varint(bytes.size());
    bytes_ += bytes;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// OptionOverrideProto: string_field = 1, bool_field = 2, int_field = 3.
std::string Override(const std::string& value) {
  Message message;
  char* end = nullptr;
  const int64_t number = std::strtoll(value.c_str(), &end, 10);
  if (value == "true" || value == "false") {
    message.Number(2, value == "true" ? 1 : 0);
  } else if (!value.empty() && *end == '\0') {
    message.Number(3, static_cast<uint64_t>(number));
  } else {
    message.Bytes(1, value);
  }
  return message.bytes();
}

}  // namespace

std::string CompileOptionsProto(int partitions,
                                const std::vector<std::pair<std::string, std::string>>& overrides) {
  Message build;       // ExecutableBuildOptionsProto
  build.Number(4, 1);  // num_replicas
  build.Number(5, static_cast<uint64_t>(partitions));
  if (partitions > 1) {
    build.Number(6, 1);  // use_spmd_partitioning
    Message assignment;  // DeviceAssignmentProto: partition i runs on device i
    assignment.Number(1, 1);
    assignment.Number(2, static_cast<uint64_t>(partitions));
    for (int i = 0; i < partitions; ++i) {
      Message devices;  // ComputationDevice
      devices.Number(1, static_cast<uint64_t>(i));
      assignment.Bytes(3, devices.bytes());
    }
    build.Bytes(9, assignment.bytes());
  }
  Message options;
  options.Bytes(3, build.bytes());
  for (const auto& [name, value] : overrides) {
    Message entry;  // of map<string, OptionOverrideProto> env_option_overrides
    entry.Bytes(1, name);
    entry.Bytes(2, Override(value));
    options.Bytes(7, entry.bytes());
  }
  return options.bytes();
}

}  // namespace kda::tpu
