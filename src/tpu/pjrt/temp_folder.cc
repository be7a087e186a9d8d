// Temporary folders, and their removal when a signal ends the process.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>

#include "tpu/pjrt/files.h"

namespace kda::tpu {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
constexpr int kMostDepth = 8;

// The folders there are, where a signal handler can read them. One that finds no place
// is not removed by a signal.
struct Place {
  enum State { kFree, kBusy, kUsed };
  std::atomic<int> state{kFree};
  std::atomic<pid_t> child{0};
  char path[512];
};
Place places[64];

int Claim(const std::string& path) {
  if (path.size() >= sizeof places[0].path) return -1;
  for (int i = 0; i < static_cast<int>(sizeof places / sizeof places[0]); ++i) {
    int expected = Place::kFree;
    if (!places[i].state.compare_exchange_strong(expected, Place::kBusy)) continue;
    memcpy(places[i].path, path.c_str(), path.size() + 1);
    places[i].child = 0;
    places[i].state = Place::kUsed;
    return i;
  }
  return -1;
}

// From here to OnSignal: system calls only, no memory, no locks.

// What SYS_getdents64 gives.
struct Entry {
  uint64_t inode;
  int64_t offset;
  uint16_t size;
  uint8_t type;
  char name[1];
};

void RemoveTree(int parent, const char* name, int depth) {
  const int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0 || depth > kMostDepth) return;
  alignas(Entry) char buffer[2048];
  // What is removed may hide what comes after it: again, until a pass finds nothing to remove.
  for (bool removed = true; removed;) {
    removed = false;
    lseek(folder, 0, SEEK_SET);
    for (long got = 0; (got = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0;) {
      for (long at = 0; at < got;) {
        const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
        at += entry->size;
        if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0) continue;
        if (unlinkat(folder, entry->name, 0) != 0) {
          RemoveTree(folder, entry->name, depth + 1);
        } else {
          removed = true;
        }
      }
    }
  }
  close(folder);
  unlinkat(parent, name, AT_REMOVEDIR);
}

void OnSignal(int number) {
  for (Place& place : places) {
    if (place.state != Place::kUsed) continue;
    if (const pid_t child = place.child; child > 0) {
      kill(child, SIGKILL);
      while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    RemoveTree(AT_FDCWD, place.path, 0);
  }
  signal(number, SIG_DFL);
  raise(number);  // when the handler returns, until which it is blocked
}

}  // namespace

TempFolder::TempFolder() {
  const char* base = getenv("TMPDIR");
  std::string name = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/kda-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) return;
  path_ = name;
  place_ = Claim(path_);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  if (place_ >= 0) places[place_].state = Place::kFree;
}

void TempFolder::UsedBy(pid_t child) {
  if (place_ >= 0) places[place_].child = child;
}

void RemoveTempFoldersOnSignals() {
  for (const int number : kSignals) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = OnSignal;
    sigfillset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
}

}  // namespace kda::tpu
