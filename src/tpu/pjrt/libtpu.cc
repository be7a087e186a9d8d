#include "tpu/pjrt/libtpu.h"

#include <stdlib.h>

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

// <prefix>/lib/python3.*/{site,dist}-packages/libtpu/libtpu.so
std::string InPython(const std::string& prefix) {
  std::error_code error;
  for (fs::directory_iterator it(prefix + "/lib", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().rfind("python3", 0) != 0) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      std::string path = (it->path() / packages / "libtpu" / "libtpu.so").string();
      if (FileExists(path)) return path;
    }
  }
  return "";
}

// A library that the dynamic linker finds by its name; what it is called there decides nothing else.
std::string InLibraryPath() {
  std::vector<std::string> folders = {"/usr/local/lib", "/usr/lib", "/lib"};
  const std::string list = Env("LD_LIBRARY_PATH") + ":";
  for (size_t from = 0, to; (to = list.find(':', from)) != std::string::npos; from = to + 1) {
    if (to > from) folders.insert(folders.begin(), list.substr(from, to - from));
  }
  for (const std::string& folder : folders) {
    if (FileExists(folder + "/libtpu.so")) return folder + "/libtpu.so";
  }
  return "";
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
    *path = InPython(prefix);
    if (!path->empty()) return true;
  }
  *path = InLibraryPath();
  if (!path->empty()) return true;
  *error =
      "libtpu: not found; run scripts/setup tpu, or 'pip install libtpu' and set KDA_LIBTPU to its "
      "libtpu.so";
  return false;
}

}  // namespace kda::tpu
