// Compiling: every way in which it can fail gives one clear line, and what works gives figures.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tpu/pjrt/compile.h"
#include "tpu/pjrt/compile_options.h"
#include "tpu/pjrt/exchange.h"
#include "tpu/pjrt/libtpu.h"
#include "tpu/pjrt/messages.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

// One line that names the culprit.
void ExpectLine(const CompileResult& result, CompileStatus status, const std::string& part) {
  EXPECT_STREQ(CompileStatusName(result.status), CompileStatusName(status)) << result.message;
  EXPECT_NE(result.message.find(part), std::string::npos) << result.message;
  EXPECT_EQ(result.message.find('\n'), std::string::npos) << result.message;
  EXPECT_LT(result.message.size(), 600U);
  EXPECT_FALSE(result.ok());
}

// A child that is a line of shell; "$1" is its folder.
CompileRequest WithScript(const std::string& script) {
  CompileRequest request = TinyRequest();
  request.libtpu = "/proc/self/exe";  // any file: the script loads nothing
  request.child = {"/bin/sh", "-c", script, "sh"};
  return request;
}

TEST(Target, EveryOneIsFoundByItsName) {
  size_t count = 0;
  const Target* targets = Targets(&count);
  ASSERT_GE(count, 5U);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(FindTarget(targets[i].name), &targets[i]);
  EXPECT_EQ(FindTarget("v6"), nullptr);
  EXPECT_EQ(FindTarget(""), nullptr);
  EXPECT_NE(TargetNames().find("v5e, v5p, v6e"), std::string::npos);
}

TEST(CompileOptions, OnePartition) {
  EXPECT_EQ(Hexadecimal(CompileOptionsProto(1, {})), "1a0420012801");
}

TEST(CompileOptions, OverridesByType) {
  EXPECT_EQ(Hexadecimal(CompileOptionsProto(1, {{"i", "300"}, {"b", "true"}, {"s", "3x"}})),
            "1a0420012801"
            "3a080a0169120318ac02"
            "3a070a016212021001"
            "3a090a017312040a023378");
}

TEST(CompileOptions, PartitionsAreAssignedDevices) {
  EXPECT_EQ(Hexadecimal(CompileOptionsProto(2, {})),
            "1a14"
            "200128023001"
            "4a0c"
            "08011002"
            "1a020800"
            "1a020801");
}

TEST(Record, RoundTrips) {
  const Record record = {{"a", "1"}, {"b", ""}, {"c", "x y"}};
  EXPECT_EQ(ParseRecord(FormatRecord(record)), record);
}

TEST(Record, DamagedTextReadsAsWhatIsInOrder) {
  EXPECT_TRUE(ParseRecord("").empty());
  EXPECT_TRUE(ParseRecord("no end of line").empty());
  const Record record = ParseRecord(std::string("\n\nword\nkey value\n\0\xff x\nn 12x\n", 28));
  EXPECT_EQ(Field(record, "key"), "value");
  EXPECT_EQ(NumberField(record, "n"), 12);
  EXPECT_EQ(NumberField(record, "missing"), 0);
  EXPECT_EQ(FractionField(ParseRecord("s inf\n"), "s"), 0);
}

TEST(FindLibtpu, FoldersInTheirOrder) {
  TempFolder folder;
  const std::string root = folder.path();
  const auto put = [&](const std::string& inside) {
    std::filesystem::create_directories(root + inside);
    EXPECT_TRUE(WriteFile(root + inside + "/libtpu.so", ""));
  };
  for (const char* one : {"/b", "/a"}) put(one);
  EXPECT_EQ(LibtpuInPath(root + "/none::" + root + "/b:" + root + "/a"), root + "/b/libtpu.so");
  EXPECT_EQ(LibtpuInPath(root + "/a:" + root + "/b:"), root + "/a/libtpu.so");
  const std::string packages = "/dist-packages/libtpu";
  for (const char* version : {"3.13", "3.9", "3.11", "3"}) {
    put("/lib/python" + std::string(version) + packages);
    std::filesystem::create_directories(root + "/lib/python" + version + "/site-packages");
  }
  EXPECT_EQ(LibtpuInPython(root), root + "/lib/python3" + packages + "/libtpu.so");
  std::filesystem::remove_all(root + "/lib/python3");
  EXPECT_EQ(LibtpuInPython(root), root + "/lib/python3.11" + packages + "/libtpu.so");
}

TEST(Messages, FirstLineWithWhatItAnnounces) {
  EXPECT_EQ(FirstLine(""), "");
  EXPECT_EQ(FirstLine("\n \n  one\ntwo"), "one");
  EXPECT_EQ(FirstLine("E1000: Oom: used 3G of 2G.\nSee https://x"), "E1000: Oom: used 3G of 2G.");
  EXPECT_EQ(FirstLine("E1001: Oom:"), "E1001: Oom:");
  EXPECT_EQ(
      FirstLine(
          "E1001: Oom:\n\nRan out of vmem for %k.1 = (bf16[12,8]{1,0:T(8,128)}) custom-call(%a, "
          "/*index=5*/%b), metadata={op_name=\"k. x\"}. Scoped allocation with size 46.36M and "
          "limit 32.00M. - \nSee https://x"),
      "E1001: Oom: Ran out of vmem for %k.1. Scoped allocation with size 46.36M and limit 32.00M.");
  EXPECT_EQ(FirstLine("a = b. Not an operation"), "a = b. Not an operation");
  EXPECT_EQ(FirstLine("%k = "), "%k =");
}

// A process ended by a signal while its child writes to its folder.
TEST(TempFolder, GoesWhenASignalEndsTheProcess) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    std::string outer =
        testing::TempDir() + "kda-signal-XXXXXX";  // no TempFolder: a fork has those too
    ASSERT_NE(mkdtemp(outer.data()), nullptr);
    setenv("TMPDIR", outer.c_str(), 1);
    const pid_t pid = fork();
    if (pid == 0) {
      RemoveTempFoldersOnSignals();
      CompileRequest request = WithScript(
          "mkdir \"$1/deep\"; i=0; while true; do i=$((i+1)); echo > \"$1/deep/$i\"; done");
      request.timeout_seconds = 60;
      Compile(request);
      _exit(0);
    }
    unsetenv("TMPDIR");
    // Under way: a file in a folder of the folder.
    const auto deep = [&] {
      for (const auto& entry : std::filesystem::directory_iterator(outer)) {
        if (FileExists(entry.path().string() + "/deep/20")) return true;
      }
      return false;
    };
    for (int i = 0; i < 3000 && !deep(); ++i) usleep(10000);
    ASSERT_TRUE(deep());
    kill(pid, number);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    EXPECT_TRUE(std::filesystem::is_empty(outer)) << strsignal(number);
    std::filesystem::remove_all(outer);
  }
}

TEST(FindLibtpu, ForcedChoiceThatIsNotThere) {
  std::string path, error;
  EXPECT_FALSE(FindLibtpu("/no/such/libtpu.so", &path, &error));
  EXPECT_NE(error.find("/no/such/libtpu.so"), std::string::npos) << error;
  setenv("KDA_LIBTPU", "/neither/this", 1);
  EXPECT_FALSE(FindLibtpu("", &path, &error));
  EXPECT_NE(error.find("KDA_LIBTPU names '/neither/this'"), std::string::npos) << error;
  unsetenv("KDA_LIBTPU");
}

TEST(Compile, IncompleteRequest) {
  ExpectLine(Compile(CompileRequest()), CompileStatus::kBadRequest, "a module is needed");
  CompileRequest request = TinyRequest();
  request.target = nullptr;
  ExpectLine(Compile(request), CompileStatus::kBadRequest, "a target is needed");
  request = TinyRequest();
  request.child.clear();
  ExpectLine(Compile(request), CompileStatus::kBadRequest, "a child is needed");
}

TEST(Compile, NoLibtpu) {
  CompileRequest request = TinyRequest();
  request.libtpu = "/no/such/libtpu.so";
  ExpectLine(Compile(request), CompileStatus::kNoLibtpu, "/no/such/libtpu.so");
}

TEST(Compile, LibtpuThatIsNoLibrary) {
  CompileRequest request = TinyRequest();
  request.libtpu = "/etc/passwd";
  ExpectLine(Compile(request), CompileStatus::kBadLibtpu, "/etc/passwd");
}

TEST(Compile, PluginsWithFaults) {
  CompileRequest request = TinyRequest();
  request.libtpu = KDA_FAKE_PLUGIN_PATH;
  ExpectLine(Compile(request), CompileStatus::kBadLibtpu, "PJRT version 1.7");
  setenv("KDA_FAKE_PLUGIN", "old", 1);
  ExpectLine(Compile(request), CompileStatus::kBadLibtpu, "newer libtpu");
  setenv("KDA_FAKE_PLUGIN", "null", 1);
  ExpectLine(Compile(request), CompileStatus::kBadLibtpu, "gives no PJRT API");
  setenv("KDA_FAKE_PLUGIN", "abort", 1);
  ExpectLine(Compile(request), CompileStatus::kAborted, "aborted with signal 6");
  unsetenv("KDA_FAKE_PLUGIN");
}

TEST(Compile, ChildThatCannotStart) {
  CompileRequest request = WithScript("");
  request.child = {"/no/such/program"};
  const CompileResult result = Compile(request);
  EXPECT_FALSE(result.ok());
  EXPECT_NE(result.message.find("/no/such/program"), std::string::npos) << result.message;
}

TEST(Compile, ChildThatAborts) {
  ExpectLine(Compile(WithScript("echo last >&2; kill -ABRT $$")), CompileStatus::kAborted,
             "signal 6: last");
  ExpectLine(Compile(WithScript("echo 'F1130 09:25:01.5 77 file.cc:12] Check failed: x' >&2;"
                                "echo '*** Check failure stack trace: ***' >&2;"
                                "echo '  @ 0x1 main' >&2; kill -ABRT $$")),
             CompileStatus::kAborted, "signal 6: Check failed: x");
  ExpectLine(Compile(WithScript("echo 'ERROR: Unknown flag' >&2; echo >&2; exit 1")),
             CompileStatus::kAborted, "code 1: ERROR: Unknown flag");
  ExpectLine(Compile(WithScript("exit 0")), CompileStatus::kAborted, "exited with code 0");
}

TEST(Compile, TimeLimitEndsTheChild) {
  CompileRequest request = WithScript("exec sleep 7200");  // longer than ctest waits for a test
  request.timeout_seconds = 0.2;
  ExpectLine(Compile(request), CompileStatus::kTimeout, "0.2 s");
}

TEST(Compile, ResultsThatMakeNoSense) {
  for (const char* script :
       {"head -c 100000 /dev/urandom > \"$1/result.txt\"", ": > \"$1/result.txt\"",
        "echo 'status nonsense' > \"$1/result.txt\"", "mkdir \"$1/result.txt\"",
        "echo 'status refused' > \"$1/result.txt\"; head -c 9999 /dev/zero > \"$1/message.txt\"",
        "printf 'status ok' > \"$1/result.txt\""}) {
    const CompileResult result = Compile(WithScript(script));
    EXPECT_FALSE(result.ok()) << script;
    EXPECT_FALSE(result.message.empty()) << script;
    EXPECT_LT(result.message.size(), 600U) << script;
  }
}

TEST(Compile, ExecutableThatIsMissing) {
  CompileRequest request = WithScript("echo 'status ok' > \"$1/result.txt\"");
  request.keep_executable = true;
  ExpectLine(Compile(request), CompileStatus::kSystem, "executable is missing");
}

TEST(Compile, TemporaryFolderGoesWithTheResult) {
  CompileRequest request = WithScript("echo 'status ok' > \"$1/result.txt\"");
  request.schedule = true;
  CompileResult result = Compile(request);
  ASSERT_TRUE(result.ok()) << result.message;
  const std::string folder = result.storage->path();
  EXPECT_TRUE(FileExists(folder + kRequestFile));
  result = CompileResult();
  EXPECT_FALSE(FileExists(folder + kRequestFile));
}

TEST(Compile, UnknownFlagEndsTheChildOnly) {
  KDA_NEEDS_LIBTPU();
  CompileRequest request = TinyRequest();
  request.libtpu_args = {"--xla_no_such_flag=1"};
  ExpectLine(Compile(request), CompileStatus::kAborted, "xla_no_such_flag");
}

TEST(Compile, ProgramsThatAreRefused) {
  KDA_NEEDS_LIBTPU();
  CompileRequest request = TinyRequest();
  request.module = "this is no program";
  ExpectLine(Compile(request), CompileStatus::kRefused, "libtpu: ");
  request.module = std::string(1000, '\0');
  ExpectLine(Compile(request), CompileStatus::kRefused, "libtpu: ");
  std::string kernel = TinyKernel();
  kernel.replace(kernel.find("tpu.matmul"), 10, "tpu.nosuch");
  request.module = TinyModule(kernel);
  ExpectLine(Compile(request), CompileStatus::kRefused, "tpu.nosuch");
}

// A fault in a kernel names the label of the operation.
TEST(Compile, RefusalNamesTheLabel) {
  KDA_NEEDS_LIBTPU();
  std::string kernel = TinyKernel();
  kernel.replace(kernel.find("[1], [0], [0], [1]"), 18, "[0], [0], [1], [1]");
  CompileRequest request = TinyRequest();
  request.module = TinyModule(kernel);
  ExpectLine(Compile(request), CompileStatus::kRefused, "power:h3");
}

TEST(Compile, EveryTarget) {
  KDA_NEEDS_LIBTPU();
  size_t count = 0;
  const Target* targets = Targets(&count);
  for (size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(targets[i].name);
    const CompileResult result = Compile(TinyRequest(targets[i].name));
    ASSERT_TRUE(result.ok()) << result.message << "\n" << result.details;
    EXPECT_GT(result.code_bytes, 0);
    EXPECT_GT(result.executable_bytes, 0);
    EXPECT_GE(result.argument_bytes, 8 * 4 + (256 + 128) * 128 * 4);
    EXPECT_GE(result.output_bytes, 256 * 128 * 4);
    EXPECT_FALSE(result.fingerprint.empty());
    EXPECT_FALSE(result.compiler.empty());
    EXPECT_TRUE(result.executable.empty());
    EXPECT_TRUE(result.dumps.empty());
  }
}

// What is written for the schedule changes nothing that runs; what changes the program does.
TEST(Compile, FingerprintIsThatOfTheProgram) {
  KDA_NEEDS_LIBTPU();
  CompileRequest request = TinyRequest();
  const CompileResult plain = Compile(request);
  request.schedule = true;
  request.keep_executable = true;
  const CompileResult with_schedule = Compile(request);
  ASSERT_TRUE(plain.ok() && with_schedule.ok()) << plain.message << with_schedule.message;
  EXPECT_EQ(plain.fingerprint, with_schedule.fingerprint);
  EXPECT_EQ(plain.code_bytes, with_schedule.code_bytes);
  EXPECT_EQ(static_cast<int64_t>(with_schedule.executable.size()), with_schedule.executable_bytes);

  std::string kernel = TinyKernel();
  kernel.replace(kernel.find("%c7 = arith.constant 7"), 22, "%c7 = arith.constant 6");
  request.module = TinyModule(kernel);
  const CompileResult other = Compile(request);
  ASSERT_TRUE(other.ok()) << other.message;
  EXPECT_NE(plain.fingerprint, other.fingerprint);
}

TEST(Compile, FolderThatIsKeptMayHaveSpaces) {
  KDA_NEEDS_LIBTPU();
  TempFolder folder;
  CompileRequest request = TinyRequest();
  request.schedule = true;
  request.folder = folder.path() + "/a b";
  for (int i = 0; i < 2; ++i) {  // the second leaves nothing of the first
    const CompileResult result = Compile(request);
    ASSERT_TRUE(result.ok()) << result.message;
    int programs = 0;
    for (const std::string& file : ListFiles(result.dumps)) {
      if (file.find("-TLP-hlo.txt") != std::string::npos) ++programs;
    }
    EXPECT_EQ(programs, 1);
  }
}

// The only flag a user is likely to set: more VMEM than the default.
TEST(Compile, OverridesReachTheCompiler) {
  KDA_NEEDS_LIBTPU();
  CompileRequest request = TinyRequest();
  request.overrides = {{"xla_tpu_scoped_vmem_limit_kib", "65536"}};
  EXPECT_TRUE(Compile(request).ok());
  request.overrides = {{"xla_no_such_option", "1"}};
  EXPECT_FALSE(Compile(request).ok());
}

}  // namespace
}  // namespace kda::tpu
