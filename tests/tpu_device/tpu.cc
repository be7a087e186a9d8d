#include "tpu_device/tpu.h"

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tpu/shard.h"
#include "tpu/tiny_kernel.h"

namespace kda::test {
namespace {

struct Opened {
  std::unique_ptr<tpu::Device> device;
  std::string why;
};

Opened OpenOnce() {
  Opened opened;
  const char* plugin = getenv("KDA_PJRT_PLUGIN");
  tpu::DeviceOptions options;
  if (plugin != nullptr) {
    options.libtpu = plugin;
    options.search_chips = false;
  } else if (tpu::CountChips() > 0) {
    // Said for what it is: a chip without a compiler.
    opened.why = tpu::WhyNoLibtpu();
  }
  if (opened.why.empty()) opened.device = tpu::Device::Open(options, &opened.why);
  if (opened.device == nullptr) {
    printf("SKIPPED: %s%s\n",
           opened.why.rfind("no TPU", 0) == 0 ? "" : "no TPU to use: ", opened.why.c_str());
  } else {
    printf("%d x %s, %s\n", opened.device->count(), opened.device->kind().c_str(),
           opened.device->compiler().c_str());
  }
  fflush(stdout);
  return opened;
}

// What chip after chip computes of its parts, together.
tpu::hlo::Arrays Rehearse(const tpu::hlo::Module& module, const tpu::hlo::Arrays& inputs) {
  tpu::hlo::Arrays outputs;
  for (const tpu::hlo::Port& p : module.outputs()) {
    const tpu::hlo::Type type = module.Whole(p);
    outputs[p.name] = tpu::ir::Array(type.dtype, type.shape);
  }
  for (int chip = 0; chip < module.partitions; ++chip) {
    tpu::hlo::Arrays given;
    for (const tpu::hlo::Port& p : module.inputs()) {
      const tpu::ir::Array& whole = inputs.at(p.name);
      given[p.name] = p.split < 0 ? whole : tpu::PartOf(whole, p.split, module.partitions, chip);
    }
    const tpu::hlo::Arrays parts = tpu::hlo::Evaluate(module, given);
    for (const tpu::hlo::Port& p : module.outputs()) {
      const tpu::ir::Array& part = parts.at(p.name);
      if (p.split < 0) {
        outputs[p.name] = part;
      } else {
        tpu::PutPart(part, p.split, module.partitions, chip, &outputs[p.name]);
      }
    }
  }
  return outputs;
}

}  // namespace

bool Rehearsing() {
  const char* rehearse = getenv("KDA_REHEARSE");
  return rehearse != nullptr && rehearse[0] == '1';
}

tpu::Device* TpuDevice(std::string* why) {
  static const Opened* const opened = new Opened(OpenOnce());
  *why = opened->why;
  return opened->device.get();
}

std::string WhyNoTpu(int chips) {
  if (Rehearsing()) return "";
  std::string why;
  const tpu::Device* device = TpuDevice(&why);
  if (device == nullptr) return why;
  if (device->target() == nullptr) return "'" + device->kind() + "' is no TPU known here";
  if (device->count() < chips) {
    return "it takes " + std::to_string(chips) + " chips, here are " +
           std::to_string(device->count());
  }
  return "";
}

tpu::hlo::Arrays RunOnTpu(const tpu::hlo::Module& module, const tpu::hlo::Arrays& inputs) {
  if (Rehearsing()) return Rehearse(module, inputs);
  std::string why;
  tpu::hlo::Arrays outputs;
  const tpu::ExecuteResult result = TpuDevice(&why)->Execute(tpu::RequestOf(module, inputs));
  EXPECT_TRUE(result.ok()) << result.error;
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    outputs[module.outputs()[i].name] = result.outputs[i];
  }
  return outputs;
}

}  // namespace kda::test
