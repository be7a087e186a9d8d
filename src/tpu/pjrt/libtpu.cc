#include "tpu/pjrt/libtpu.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "tpu/pjrt/files.h"

namespace kda::tpu {
namespace {
namespace fs = std::filesystem;

std::string Env(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

bool Forced(const std::string& choice, const char* origin, std::string* path, std::string* error) {
  if (!FileExists(choice)) {
    *error = std::string("libtpu: ") + origin + " names '" + choice + "', which is not a file";
    return false;
  }
  *path = choice;
  return true;
}

}  // namespace

std::string LibtpuInPython(const std::string& prefix) {
  std::error_code error;
  std::vector<fs::path> folders;
  for (fs::directory_iterator it(prefix + "/lib", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().rfind("python3", 0) == 0) folders.push_back(it->path());
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      std::string path = (folder / packages / "libtpu" / "libtpu.so").string();
      if (FileExists(path)) return path;
    }
  }
  return "";
}

std::string LibtpuInPath(const std::string& list) {
  std::vector<std::string> folders;
  for (size_t from = 0, to; from < list.size(); from = to + 1) {
    to = std::min(list.find(':', from), list.size());
    if (to > from) folders.push_back(list.substr(from, to - from));
  }
  folders.insert(folders.end(), {"/usr/local/lib", "/usr/lib", "/lib"});
  for (const std::string& folder : folders) {
    if (FileExists(folder + "/libtpu.so")) return folder + "/libtpu.so";
  }
  return "";
}

bool FindLibtpu(const std::string& chosen, std::string* path, std::string* error) {
  if (!chosen.empty()) return Forced(chosen, "the option", path, error);
  const std::string env = Env("KDA_LIBTPU");
  if (!env.empty()) return Forced(env, "KDA_LIBTPU", path, error);

  const std::string checkout = KDA_SOURCE_DIR "/.libtpu/libtpu.so";
  if (FileExists(checkout)) {
    *path = checkout;
    return true;
  }
  for (const std::string& prefix :
       {Env("VIRTUAL_ENV"), Env("CONDA_PREFIX"), Env("HOME") + "/.local", std::string("/usr/local"),
        std::string("/usr")}) {
    if (prefix.empty()) continue;
    *path = LibtpuInPython(prefix);
    if (!path->empty()) return true;
  }
  *path = LibtpuInPath(Env("LD_LIBRARY_PATH"));
  if (!path->empty()) return true;
  *error =
      "libtpu: not found; run scripts/setup tpu, or 'pip install libtpu' and set KDA_LIBTPU to its "
      "libtpu.so";
  return false;
}

}  // namespace kda::tpu
