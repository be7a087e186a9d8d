// A plugin that is wrong in the way that KDA_FAKE_PLUGIN of the environment says.
#include <cstdlib>
#include <cstring>

#include "tpu/pjrt/pjrt_api.h"

namespace pjrt = kda::tpu::pjrt;

extern "C" __attribute__((visibility("default"))) const pjrt::Api* GetPjrtApi() {
  static pjrt::Api api{};
  const char* fault = getenv("KDA_FAKE_PLUGIN");
  const bool is_old = fault != nullptr && strcmp(fault, "old") == 0;
  if (fault != nullptr && strcmp(fault, "null") == 0) return nullptr;
  if (fault != nullptr && strcmp(fault, "abort") == 0) abort();
  api.header.struct_size = is_old ? 760 : sizeof(pjrt::Api);
  api.version.major = is_old ? 0 : 1;
  api.version.minor = 7;
  return &api;
}
