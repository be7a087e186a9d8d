// One program on the chips of an open device: compiled, given its arguments, called, read.
#include <chrono>
#include <numeric>

#include "tpu/pjrt/compile_options.h"
#include "tpu/pjrt/device.h"
#include "tpu/shard.h"

namespace kda::tpu {
namespace {

pjrt::ElementType ElementTypeOf(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kF32:
      return pjrt::kF32;
    case ir::DType::kBF16:
      return pjrt::kBF16;
    case ir::DType::kI32:
      return pjrt::kS32;
    case ir::DType::kI1:
      return pjrt::kPred;
    default:
      throw PluginFailure{false, "an array of dtype " + ir::ToString(dtype) + " cannot be passed"};
  }
}

hlo::Type PartType(const ResultType& result, int parts) {
  hlo::Type type = result.type;
  if (result.split >= 0) type.shape[static_cast<size_t>(result.split)] /= parts;
  return type;
}

}  // namespace

Run::Run(const Plugin& plugin, pjrt::Client* client, const ExecuteRequest& request)
    : plugin_(plugin), client_(client), request_(request) {
  Compile();
  pjrt::ExecutableDevicesArgs devices{};
  devices.executable = program_.get();
  plugin_.Check(plugin_->loaded_executable_devices(&devices));
  devices_.assign(devices.devices, devices.devices + devices.num_devices);
  if (static_cast<int>(devices_.size()) != request.partitions) {
    throw PluginFailure{false, "the program runs on " + std::to_string(devices_.size()) +
                                   " chips of this machine, not " +
                                   std::to_string(request.partitions)};
  }
  // What it writes to must be as long as it thinks.
  pjrt::GetExecutableArgs unloaded{};
  unloaded.loaded = program_.get();
  plugin_.Check(plugin_->loaded_executable_get_executable(&unloaded));
  const OwnedExecutable executable(&plugin_, unloaded.executable);
  pjrt::NumOutputsArgs outputs{};
  outputs.executable = executable.get();
  plugin_.Check(plugin_->executable_num_outputs(&outputs));
  if (outputs.num_outputs != request.results.size()) {
    throw PluginFailure{false, "the program has " + std::to_string(outputs.num_outputs) +
                                   " results, " + std::to_string(request.results.size()) +
                                   " are expected"};
  }
}

void Run::Compile() {
  const std::string options = CompileOptionsProto(request_.partitions, request_.overrides);
  pjrt::Program program{};
  program.code = request_.module.data();
  program.code_size = request_.module.size();
  program.format = "mlir";
  program.format_size = 4;
  pjrt::ClientCompileArgs args{};
  args.client = client_;
  args.program = &program;
  args.options = options.data();
  args.options_size = options.size();
  const auto start = std::chrono::steady_clock::now();
  plugin_.Check(plugin_->client_compile(&args));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  compile_seconds_ = seconds.count();
  program_ = OwnedLoaded(&plugin_, args.executable);
}

void Run::Upload() {
  for (size_t chip = 0; chip < devices_.size(); ++chip) {
    std::vector<OwnedBuffer> buffers;
    for (const Argument& a : request_.arguments) {
      buffers.push_back(a.split < 0 ? ToDevice(a.array, devices_[chip])
                                    : ToDevice(PartOf(a.array, a.split, request_.partitions,
                                                      static_cast<int>(chip)),
                                               devices_[chip]));
    }
    arguments_.push_back(std::move(buffers));
  }
}

OwnedBuffer Run::ToDevice(const ir::Array& array, pjrt::Device* device) {
  pjrt::BufferFromHostArgs args{};
  args.client = client_;
  args.data = array.data();
  args.type = ElementTypeOf(array.dtype());
  args.dims = array.shape().data();
  args.num_dims = array.shape().size();
  args.device = device;
  plugin_.Check(plugin_->buffer_from_host(&args));
  OwnedBuffer buffer(&plugin_, args.buffer);
  Wait(OwnedEvent(&plugin_, args.done_with_host_buffer));
  return buffer;
}

void Run::Wait(const OwnedEvent& event) {
  pjrt::EventArgs args{};
  args.event = event.get();
  plugin_.Check(plugin_->event_await(&args));
}

std::vector<OwnedEvent> Run::Call(Buffers* outputs) {
  const size_t chips = devices_.size(), results = request_.results.size();
  std::vector<std::vector<pjrt::Buffer*>> in(chips), out(chips);
  std::vector<pjrt::Buffer* const*> in_lists;
  std::vector<pjrt::Buffer**> out_lists;
  std::vector<pjrt::Event*> done(chips, nullptr);
  for (size_t chip = 0; chip < chips; ++chip) {
    for (const OwnedBuffer& b : arguments_[chip]) in[chip].push_back(b.get());
    out[chip].assign(results, nullptr);
    in_lists.push_back(in[chip].data());
    out_lists.push_back(out[chip].data());
  }
  pjrt::ExecuteOptions options{};
  pjrt::ExecuteArgs args{};
  args.executable = program_.get();
  args.options = &options;
  args.argument_lists = in_lists.data();
  args.num_devices = chips;
  args.num_args = request_.arguments.size();
  args.output_lists = out_lists.data();
  args.complete_events = done.data();
  plugin_.Check(plugin_->execute(&args));
  std::vector<OwnedEvent> events;
  outputs->clear();
  for (size_t chip = 0; chip < chips; ++chip) {
    events.emplace_back(&plugin_, done[chip]);
    std::vector<OwnedBuffer> buffers;
    for (pjrt::Buffer* b : out[chip]) buffers.emplace_back(&plugin_, b);
    outputs->push_back(std::move(buffers));
  }
  return events;
}

void Run::TakeBack(Buffers outputs) {
  for (size_t chip = 0; chip < devices_.size(); ++chip) {
    for (size_t i = 0; i < request_.arguments.size(); ++i) {
      const int from = request_.arguments[i].gives_to;
      if (from >= 0) arguments_[chip][i] = std::move(outputs[chip][static_cast<size_t>(from)]);
    }
  }
}

std::vector<ir::Array> Run::Download(const Buffers& outputs) {
  std::vector<ir::Array> arrays;
  const int parts = request_.partitions;
  for (size_t i = 0; i < request_.results.size(); ++i) {
    const ResultType& result = request_.results[i];
    const hlo::Type part = PartType(result, parts);
    if (result.split < 0) {
      arrays.push_back(ToHost(outputs[0][i], part));
      continue;
    }
    ir::Array whole(result.type.dtype, result.type.shape);
    for (int chip = 0; chip < parts; ++chip) {
      PutPart(ToHost(outputs[static_cast<size_t>(chip)][i], part), result.split, parts, chip,
              &whole);
    }
    arrays.push_back(std::move(whole));
  }
  return arrays;
}

ir::Array Run::ToHost(const OwnedBuffer& buffer, const hlo::Type& type) {
  pjrt::BufferElementTypeArgs element{};
  element.buffer = buffer.get();
  plugin_.Check(plugin_->buffer_element_type(&element));
  pjrt::BufferDimensionsArgs dims{};
  dims.buffer = buffer.get();
  plugin_.Check(plugin_->buffer_dimensions(&dims));
  const ir::Shape shape(dims.dims, dims.dims + dims.num_dims);
  if (shape != type.shape || element.type != ElementTypeOf(type.dtype)) {
    throw PluginFailure{false, "a result has shape [" + ir::ToString(shape) + "] and type " +
                                   std::to_string(element.type) + ", expected is " +
                                   hlo::ToString(type)};
  }
  // Row-major here, however the device keeps it.
  std::vector<int64_t> order(shape.size());
  std::iota(order.rbegin(), order.rend(), 0);
  pjrt::MemoryLayout layout{};
  layout.minor_to_major = order.data();
  layout.minor_to_major_size = order.size();
  ir::Array array(type.dtype, type.shape);
  pjrt::BufferToHostArgs args{};
  args.source = buffer.get();
  args.host_layout = &layout;
  args.destination = array.data();
  args.destination_size = static_cast<size_t>(array.byte_count());
  plugin_.Check(plugin_->buffer_to_host(&args));
  Wait(OwnedEvent(&plugin_, args.event));
  return array;
}

}  // namespace kda::tpu
