// Running programs: on a plugin that is strict with its caller (fake_device.cc), since no TPU is
// needed for ownership, events, layouts and shards to be right; and every way not to find a TPU.
#include "tpu/pjrt/execute.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <string>

#include "tpu/pjrt/files.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

using ir::Array;
using ir::DType;

// What the plugin, which is the same library wherever it is opened, has to say.
template <typename T>
T Ask(const char* function) {
  void* const library = dlopen(KDA_FAKE_DEVICE_PATH, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<T (*)()>(dlsym(library, function))();
}

class FakeDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.libtpu = KDA_FAKE_DEVICE_PATH;
    options_.search_chips = false;
    calls_ = Ask<int>("fake_calls");
  }
  void TearDown() override {
    unsetenv("KDA_FAKE_DEVICE");
    device_.reset();
    EXPECT_EQ(Ask<int>("fake_live"), 0) << "handles that were not destroyed";
    EXPECT_STREQ(Ask<const char*>("fake_complaints"), "");
  }
  void Open() {
    std::string error;
    device_ = Device::Open(options_, &error);
    ASSERT_NE(device_, nullptr) << error;
  }
  // The fault's line.
  std::string FailToOpen(const char* fault) {
    setenv("KDA_FAKE_DEVICE", fault, 1);
    std::string error;
    EXPECT_EQ(Device::Open(options_, &error), nullptr);
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    return error;
  }
  int Calls() const { return Ask<int>("fake_calls") - calls_; }

  DeviceOptions options_;
  std::unique_ptr<Device> device_;

 private:
  int calls_ = 0;
};

Array Bytes(DType dtype, const ir::Shape& shape, int first) {
  Array array(dtype, shape);
  auto* bytes = static_cast<unsigned char*>(array.data());
  for (int64_t i = 0; i < array.byte_count(); ++i) {
    bytes[i] = static_cast<unsigned char>((first + i) % 250);
  }
  return array;
}

Array More(Array array, int by) {
  auto* bytes = static_cast<unsigned char*>(array.data());
  for (int64_t i = 0; i < array.byte_count(); ++i) {
    bytes[i] = static_cast<unsigned char>(bytes[i] + by);
  }
  return array;
}

ResultType Of(const Array& array, int split = -1) {
  return {{array.dtype(), array.shape()}, split};
}

ExecuteRequest Request(const std::string& module, const std::vector<Array>& arguments,
                       int results) {
  ExecuteRequest request;
  request.module = module;
  for (const Array& a : arguments) request.arguments.push_back({a, -1, -1});
  for (int i = 0; i < results; ++i) {
    request.results.push_back(Of(arguments[static_cast<size_t>(i)]));
  }
  return request;
}

TEST_F(FakeDevice, SaysWhatItIs) {
  Open();
  EXPECT_EQ(device_->kind(), "TPU v6 lite");
  EXPECT_EQ(device_->compiler(), "fake 1");
  EXPECT_EQ(device_->count(), 4);
  ASSERT_NE(device_->target(), nullptr);
  EXPECT_STREQ(device_->target()->name, "v6e");
}

TEST_F(FakeDevice, RunsEveryDtypeAndShape) {
  Open();
  const std::vector<Array> arguments = {
      Bytes(DType::kF32, {3, 5, 2}, 1), Bytes(DType::kBF16, {7}, 2), Bytes(DType::kI32, {}, 3),
      Bytes(DType::kI1, {2, 2}, 0), Bytes(DType::kF32, {0, 4}, 0)};
  const ExecuteResult result = device_->Execute(Request("fake chips=1 outputs=5", arguments, 5));
  ASSERT_TRUE(result.ok()) << result.error;
  ASSERT_EQ(result.outputs.size(), 5U);
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(result.outputs[i] == More(arguments[i], 1)) << i;
  EXPECT_EQ(Calls(), 1);
  EXPECT_EQ(result.call_seconds, 0);
}

// Timed calls take what the call before gave back.
TEST_F(FakeDevice, DonatedMemoryGoesRound) {
  Open();
  ExecuteRequest request = Request("fake chips=1 outputs=2 donates=0",
                                   {Bytes(DType::kF32, {4}, 0), Bytes(DType::kF32, {8}, 9)}, 2);
  request.arguments[0].gives_to = 0;
  request.repeats = 3;
  const ExecuteResult result = device_->Execute(request);
  ASSERT_TRUE(result.ok()) << result.error;
  EXPECT_TRUE(result.outputs[0] == More(request.arguments[0].array, 1));
  EXPECT_EQ(Calls(), 7);
  EXPECT_GT(result.call_seconds, 0);
  EXPECT_GT(result.queued_seconds, 0);
}

// A module that gives memory away of which the request knows nothing: the second call says so.
TEST_F(FakeDevice, MemoryThatIsGoneIsNotReadAgain) {
  Open();
  ExecuteRequest request =
      Request("fake chips=1 outputs=1 donates=0", {Bytes(DType::kF32, {4}, 0)}, 1);
  request.repeats = 1;
  const ExecuteResult result = device_->Execute(request);
  EXPECT_NE(result.error.find("given_away"), std::string::npos) << result.error;
}

TEST_F(FakeDevice, ShardsGoToTheirChipsAndBack) {
  Open();
  ExecuteRequest request =
      Request("fake chips=4 outputs=2",
              {Bytes(DType::kBF16, {1, 3, 8, 2}, 0), Bytes(DType::kI32, {5}, 0)}, 2);
  request.partitions = 4;
  request.arguments[0].split = request.results[0].split = 2;
  const ExecuteResult result = device_->Execute(request);
  ASSERT_TRUE(result.ok()) << result.error;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(result.outputs[i] == More(request.arguments[i].array, 1)) << i;
  }
}

TEST_F(FakeDevice, RequestsThatCannotBe) {
  Open();
  const ExecuteRequest good =
      Request("fake chips=1 outputs=1 donates=0", {Bytes(DType::kF32, {6, 4}, 0)}, 1);
  const auto error = [&](const std::function<void(ExecuteRequest*)>& change) {
    ExecuteRequest request = good;
    change(&request);
    return device_->Execute(request).error;
  };
  EXPECT_EQ(error([](ExecuteRequest*) {}), "");
  EXPECT_EQ(error([](ExecuteRequest* r) { r->partitions = 5; }),
            "the program wants 5 chips, this machine has 4");
  EXPECT_EQ(error([](ExecuteRequest* r) {
              r->partitions = 4;
              r->arguments[0].split = 0;
            }),
            "argument 0 cannot be split as it says");
  EXPECT_EQ(error([](ExecuteRequest* r) { r->results[0].split = 2; }),
            "result 0 cannot be split as it says");
  EXPECT_EQ(error([](ExecuteRequest* r) { r->arguments[0].gives_to = 1; }),
            "argument 0 gives its memory to a result that there is not");
  EXPECT_EQ(error([](ExecuteRequest* r) {
              r->arguments[0].gives_to = 0;
              r->results[0].type.shape = {24};
            }),
            "argument 0 gives its memory to a result of another kind");
  EXPECT_EQ(error([](ExecuteRequest* r) { r->results.clear(); }),
            "libtpu: the program has 1 results, 0 are expected");
  EXPECT_EQ(error([](ExecuteRequest* r) { r->module = "nonsense"; }),
            "libtpu: INVALID_ARGUMENT: nonsense");
  EXPECT_EQ(error([](ExecuteRequest* r) {
              r->results[0].type.shape = {24};
            }).find("libtpu: a result has shape [6x4]"),
            0U);
}

TEST_F(FakeDevice, FailuresOnTheWay) {
  Open();
  const ExecuteRequest request =
      Request("fake chips=1 outputs=1", {Bytes(DType::kF32, {6, 4}, 0)}, 1);
  const char* const faults[][2] = {{"transfer", "libtpu: transfer failed"},
                                   {"execute", "libtpu: RESOURCE_EXHAUSTED: no memory"},
                                   {"run", "libtpu: INTERNAL: halted"},
                                   {"shape", "libtpu: a result has shape [6x4x1]"},
                                   {"type", "libtpu: a result has shape [6x4] and type 1"}};
  for (const auto& [fault, line] : faults) {
    setenv("KDA_FAKE_DEVICE", fault, 1);
    const ExecuteResult result = device_->Execute(request);
    EXPECT_EQ(result.error.find(line), 0U) << result.error;
    EXPECT_TRUE(result.outputs.empty());
  }
  unsetenv("KDA_FAKE_DEVICE");
  EXPECT_EQ(device_->Execute(request).error, "") << "it can be used again";
}

TEST_F(FakeDevice, ThatDoesNotComeUp) {
  EXPECT_EQ(FailToOpen("no_client"), "no TPU: libtpu: UNAVAILABLE: chip in use");
  EXPECT_EQ(FailToOpen("no_chips"), "no TPU: libtpu sees no TPU");
  EXPECT_EQ(FailToOpen("abort"), "no TPU: libtpu aborted with signal 6: Check failed: no chip");
  EXPECT_EQ(FailToOpen("exit"), "no TPU: libtpu exited with code 3");
  options_.timeout_seconds = 0.2;
  // It would hang for ever.
  EXPECT_EQ(FailToOpen("hang"), "no TPU: libtpu has not found one after 0.2 s");
}

TEST(Device, LibrariesThatAreNone) {
  DeviceOptions options;
  options.search_chips = false;
  std::string error;
  options.libtpu = "/no/such/libtpu.so";
  EXPECT_EQ(Device::Open(options, &error), nullptr);
  EXPECT_NE(error.find("/no/such/libtpu.so"), std::string::npos) << error;
  options.libtpu = "/etc/passwd";
  EXPECT_EQ(Device::Open(options, &error), nullptr);
  EXPECT_EQ(error.find("no TPU: libtpu: '/etc/passwd'"), 0U) << error;
}

// libtpu itself, where there is no TPU: one line, within the time limit.
TEST(Device, LibtpuWithoutAChip) {
  KDA_NEEDS_LIBTPU();
  if (CountChips() > 0) GTEST_SKIP() << "there is a TPU";
  DeviceOptions options;
  options.search_chips = false;
  std::string error;
  EXPECT_EQ(Device::Open(options, &error), nullptr);
  EXPECT_EQ(error.find("no TPU: "), 0U) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

TEST(Device, IsNotLookedForWithoutAChip) {
  if (CountChips() > 0) GTEST_SKIP() << "there is a TPU";
  DeviceOptions options;
  options.libtpu = "/no/such/libtpu.so";  // is not even searched for
  std::string error;
  EXPECT_EQ(Device::Open(options, &error), nullptr);
  EXPECT_EQ(error, "no TPU: none on this machine's PCI bus, and no /dev/accel*");
}

TEST(CountChips, ByVendorAndDevice) {
  const TempFolder folder;
  const std::string pci = folder.path() + "/pci", dev = folder.path() + "/dev";
  EXPECT_EQ(CountChips(pci, dev), 0);
  const auto add = [&](const std::string& name, const char* vendor, const char* device) {
    std::filesystem::create_directories(pci + "/" + name);
    WriteFile(pci + "/" + name + "/vendor", vendor);
    WriteFile(pci + "/" + name + "/device", device);
  };
  add("0", "0x1ae0\n", "0x0042\n");  // Google's network card
  add("1", "0x10de\n", "0x006f\n");
  EXPECT_EQ(CountChips(pci, dev), 0);
  add("2", "0x1ae0\n", "0x006f\n");
  add("3", "0x1ae0\n", "0x0063\n");
  EXPECT_EQ(CountChips(pci, dev), 2);
  std::filesystem::create_directories(dev);
  WriteFile(dev + "/accelerate", "");
  EXPECT_EQ(CountChips(dev, dev), 0);
  WriteFile(dev + "/accel0", "");
  EXPECT_EQ(CountChips(dev, dev), 1);
}

TEST(RequestOf, TakesWhatTheModuleSays) {
  hlo::Module module("m");
  const hlo::Value a = module.Input("a", {DType::kF32, {2, 8}});
  const hlo::Value b = module.Input("b", {DType::kF32, {}});
  module.Output("y", a + b);
  module.Donate("a", "y");
  module.Partition(4, {{"a", 1}, {"y", 1}});
  hlo::Arrays inputs = {{"a", Array(DType::kF32, {2, 32})}, {"b", Array(DType::kF32, {})}};
  const ExecuteRequest request = RequestOf(module, inputs);
  EXPECT_EQ(request.partitions, 4);
  ASSERT_EQ(request.arguments.size(), 2U);
  EXPECT_EQ(request.arguments[0].split, 1);
  EXPECT_EQ(request.arguments[0].gives_to, 0);
  EXPECT_EQ(request.arguments[1].split, -1);
  EXPECT_EQ(request.results[0].type.shape, (ir::Shape{2, 32}));
  EXPECT_EQ(request.results[0].split, 1);
  inputs["a"] = Array(DType::kF32, {2, 8});
  EXPECT_THROW(RequestOf(module, inputs), ir::BuildError);
  inputs.erase("a");
  EXPECT_THROW(RequestOf(module, inputs), ir::BuildError);
}

}  // namespace
}  // namespace kda::tpu
