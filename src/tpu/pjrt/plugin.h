// libtpu loaded into this process, with its ABI checked and its errors as exceptions.
#ifndef KDA_TPU_PJRT_PLUGIN_H_
#define KDA_TPU_PJRT_PLUGIN_H_

#include <string>

#include "tpu/pjrt/pjrt_api.h"

namespace kda::tpu {

struct PluginFailure {
  bool bad_plugin;  // the library itself, not what was asked of it
  std::string message;
};

class Plugin {
 public:
  // Both throw PluginFailure. A library once loaded stays: libtpu cannot be unloaded.
  explicit Plugin(const std::string& path);
  void Check(pjrt::Error* error, bool bad_plugin = false) const;

  const pjrt::Api* operator->() const { return api_; }

 private:
  const pjrt::Api* api_ = nullptr;
};

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_PLUGIN_H_
