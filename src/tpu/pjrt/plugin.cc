#include "tpu/pjrt/plugin.h"

#include <dlfcn.h>

namespace kda::tpu {
namespace {

PluginFailure Bad(const std::string& path, const std::string& why) {
  return {true, "'" + path + "': " + why};
}

}  // namespace

Plugin::Plugin(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Bad(path, dlerror());
  const auto get = reinterpret_cast<pjrt::GetPjrtApi>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr) throw Bad(path, "has no GetPjrtApi");
  api_ = get();
  if (api_ == nullptr) throw Bad(path, "gives no PJRT API");
  if (api_->version.major != pjrt::kPjrtMajor) {
    throw Bad(path, "has PJRT version " + std::to_string(api_->version.major) + "." +
                        std::to_string(api_->version.minor) + ", this program knows " +
                        std::to_string(pjrt::kPjrtMajor) + ".x; take another libtpu");
  }
  if (api_->header.struct_size < sizeof(pjrt::Api)) {
    throw Bad(path, "has PJRT version 0." + std::to_string(api_->version.minor) +
                        ", which lacks functions needed here; take a newer libtpu");
  }
  pjrt::PluginInitializeArgs args;
  Check(api_->plugin_initialize(&args), true);
}

void Plugin::Check(pjrt::Error* error, bool bad_plugin) const {
  if (error == nullptr) return;
  pjrt::ErrorMessageArgs message{};
  message.error = error;
  api_->error_message(&message);
  const std::string text(message.message, message.message_size);
  pjrt::ErrorDestroyArgs destroy{};
  destroy.error = error;
  api_->error_destroy(&destroy);
  throw PluginFailure{bad_plugin, text};
}

}  // namespace kda::tpu
