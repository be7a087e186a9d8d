// The safetensors reader on any bytes: it reads or throws Error, and nothing else.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cli/error.h"
#include "cli/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("input", 0);
  if (file < 0 || ftruncate(file, 0) != 0 ||
      pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) {
    std::perror("safetensors_fuzz");
    std::abort();
  }
  try {
    const kda::cli::SafetensorsReader reader("/proc/self/fd/" + std::to_string(file));
    for (const std::string& name : reader.Names()) {
      try {
        const kda::cli::Tensor tensor = reader.Read(name);
        for (int64_t i = 0; i < tensor.Elements(); ++i) {
          kda::cli::LoadElement(tensor.data, tensor.layout.dtype, i);
        }
      } catch (const kda::cli::Error&) {
      }
    }
  } catch (const kda::cli::Error&) {
  }
  return 0;
}
