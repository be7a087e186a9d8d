// The parent's side of a compilation: starts the child, waits for it, reads what it left.
#include "tpu/pjrt/compile.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "tpu/pjrt/compile_options.h"
#include "tpu/pjrt/exchange.h"
#include "tpu/pjrt/libtpu.h"
#include "tpu/pjrt/messages.h"

extern char** environ;

namespace kda::tpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kStatusNames[] = {"ok",      "bad_request", "no_libtpu", "bad_libtpu",
                                        "refused", "aborted",     "timeout",   "system"};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

CompileResult Fail(CompileResult result, CompileStatus status, const std::string& message) {
  result.status = status;
  result.message = message;
  return result;
}

// The flags that make libtpu write what schedule/ reads, and no more. None changes the code: the
// fingerprint is the same without them. The folder is relative to the child's, since libtpu splits
// its flags at spaces.
std::string Flags(const CompileRequest& request) {
  std::string flags;
  if (request.schedule) {
    flags = std::string("--xla_jf_dump_to=") + (kDumpFolder + 1) +
            " --xla_jf_dump_llo_text=true"
            " --xla_mosaic_enable_llo_source_annotations=true"
            " --xla_jf_dump_llo_pass_label_regex="
            "^(packed-bundles-post-ra|pre-delay_hlo-static-per-bundle-utilization|"
            "deduplication-map)$";
  }
  for (const std::string& flag : request.libtpu_args) flags += (flags.empty() ? "" : " ") + flag;
  return flags;
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

// Starts `argv` with its output in files of `folder`. Returns 0 or an errno.
int Start(const std::vector<std::string>& argv, const std::string& folder, pid_t* pid) {
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, (folder + kStdoutFile).c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, (folder + kStderrFile).c_str(), flags, 0600);
  const int error = posix_spawnp(pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Waits for the child, or kills it. Returns false if the time ran out.
bool Wait(pid_t pid, double seconds, int* status) {
  const auto start = Clock::now();
  for (;;) {
    const pid_t done = waitpid(pid, status, WNOHANG);
    if (done == pid) return true;
    if (done < 0 && errno != EINTR) {
      *status = 0;  // someone else waited for it: the result file tells
      return true;
    }
    if (SecondsSince(start) > seconds) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(pid, SIGKILL);
  while (waitpid(pid, status, 0) < 0 && errno == EINTR) {
  }
  return false;
}

// Everything the child needs; empty, or what went wrong.
std::string WriteRequest(const CompileRequest& request, const std::string& libtpu,
                         const std::string& folder) {
  Record record;
  record["libtpu"] = Absolute(libtpu);
  record["topology"] = request.target->topology;
  record["accelerator"] = request.target->accelerator;
  record["flags"] = Flags(request);
  if (request.keep_executable) record["keep_executable"] = "1";
  std::error_code error;
  for (const char* file : {kResultFile, kMessageFile, kExecutableFile, kDumpFolder}) {
    std::filesystem::remove_all(folder + file, error);  // of an earlier compilation
  }
  std::filesystem::create_directories(folder + kDumpFolder, error);
  const bool written =
      WriteFile(folder + kRequestFile, FormatRecord(record)) &&
      WriteFile(folder + kModuleFile, request.module) &&
      WriteFile(folder + kOptionsFile,
                CompileOptionsProto(request.target->partitions, request.overrides));
  return written ? "" : "cannot write to '" + folder + "'";
}

// What the child left; `status` is its wait status.
CompileResult ReadResult(CompileResult result, const CompileRequest& request, int status,
                         const std::string& folder) {
  std::string text, message, stderr_text;
  ReadFile(folder + kStderrFile, &stderr_text);
  result.details = stderr_text;
  if (WIFSIGNALED(status) || !ReadFile(folder + kResultFile, &text)) {
    const std::string words = LastWords(stderr_text);
    const std::string how = WIFSIGNALED(status)
                                ? "aborted with signal " + std::to_string(WTERMSIG(status))
                                : "exited with code " + std::to_string(WEXITSTATUS(status));
    return Fail(std::move(result), CompileStatus::kAborted,
                "libtpu: " + how + (words.empty() ? "" : ": " + words));
  }
  const Record record = ParseRecord(text);
  result.compiler = Field(record, "compiler");
  result.fingerprint = Field(record, "fingerprint");
  result.executable_bytes = NumberField(record, "executable_bytes");
  result.code_bytes = NumberField(record, "code_bytes");
  result.argument_bytes = NumberField(record, "argument_bytes");
  result.output_bytes = NumberField(record, "output_bytes");
  result.temporary_bytes = NumberField(record, "temporary_bytes");
  result.seconds = FractionField(record, "seconds");
  const std::string name = Field(record, "status");
  for (int i = 0; i < static_cast<int>(sizeof kStatusNames / sizeof kStatusNames[0]); ++i) {
    if (name == kStatusNames[i]) result.status = static_cast<CompileStatus>(i);
  }
  if (result.ok() && request.keep_executable &&
      !ReadFile(folder + kExecutableFile, &result.executable)) {
    return Fail(std::move(result), CompileStatus::kSystem, "libtpu: the executable is missing");
  }
  if (result.ok()) {
    if (request.schedule) result.dumps = folder + kDumpFolder;
    return result;
  }
  ReadFile(folder + kMessageFile, &message);
  if (!message.empty()) result.details = message;
  const std::string line = FirstLine(message);
  const CompileStatus told = result.status;
  return Fail(std::move(result), told,
              "libtpu: " + (line.empty() ? "left no readable result" : line));
}

}  // namespace

const char* CompileStatusName(CompileStatus status) {
  return kStatusNames[static_cast<int>(status)];
}

CompileResult Compile(const CompileRequest& request) {
  CompileResult result;
  const char* const missing = request.module.empty()      ? "a module"
                              : request.target == nullptr ? "a target"
                              : request.child.empty()     ? "a child"
                                                          : nullptr;
  if (missing != nullptr) {
    return Fail(std::move(result), CompileStatus::kBadRequest,
                std::string("compile: ") + missing + " is needed");
  }
  if (!(request.timeout_seconds > 0)) {
    return Fail(std::move(result), CompileStatus::kBadRequest,
                "compile: timeout_seconds is " + std::to_string(request.timeout_seconds) +
                    ", but must be above 0");
  }
  std::string libtpu, error;
  if (!FindLibtpu(request.libtpu, &libtpu, &error)) {
    return Fail(std::move(result), CompileStatus::kNoLibtpu, error);
  }
  std::string folder = request.folder;
  if (folder.empty()) {
    result.storage = std::make_shared<TempFolder>();
    folder = result.storage->path();
    if (folder.empty()) {
      return Fail(std::move(result), CompileStatus::kSystem,
                  std::string("cannot make a temporary folder: ") + strerror(errno));
    }
  }
  folder = Absolute(folder);
  error = WriteRequest(request, libtpu, folder);
  if (!error.empty()) return Fail(std::move(result), CompileStatus::kSystem, error);

  std::vector<std::string> argv = request.child;
  argv.push_back(folder);
  const auto start = Clock::now();
  pid_t pid = 0;
  if (const int code = Start(argv, folder, &pid); code != 0) {
    return Fail(std::move(result), CompileStatus::kSystem,
                "cannot start '" + argv[0] + "': " + strerror(code));
  }
  int status = 0;
  if (result.storage) result.storage->UsedBy(pid);
  const bool ended = Wait(pid, request.timeout_seconds, &status);
  if (result.storage) result.storage->UsedBy(0);
  result.process_seconds = SecondsSince(start);
  if (!ended) {
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", request.timeout_seconds);
    return Fail(std::move(result), CompileStatus::kTimeout,
                std::string("libtpu: not done after ") + seconds + " s (the time limit)");
  }
  return ReadResult(std::move(result), request, status, folder);
}

}  // namespace kda::tpu
