#include "tpu/pjrt/execute.h"

#include <algorithm>
#include <chrono>

#include "tpu/hlo/printer.h"
#include "tpu/inputs.h"
#include "tpu/pjrt/device.h"
#include "tpu/pjrt/messages.h"

namespace kda::tpu {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One line, or empty.
std::string Fault(const ExecuteRequest& request, int count) {
  const auto chips = std::to_string(count);
  if (request.partitions < 1 || request.partitions > count) {
    return "the program wants " + std::to_string(request.partitions) + " chips, this machine has " +
           chips;
  }
  const auto divides = [&](const ir::Shape& shape, int split) {
    return split < 0 || (split < static_cast<int>(shape.size()) &&
                         shape[static_cast<size_t>(split)] % request.partitions == 0);
  };
  const auto results = static_cast<int>(request.results.size());
  std::vector<int> takers;
  for (size_t i = 0; i < request.arguments.size(); ++i) {
    const Argument& a = request.arguments[i];
    const std::string name = "argument " + std::to_string(i);
    if (!divides(a.array.shape(), a.split)) return name + " cannot be split as it says";
    if (a.gives_to < 0) continue;
    if (a.gives_to >= results) return name + " gives its memory to a result that there is not";
    const ResultType& r = request.results[static_cast<size_t>(a.gives_to)];
    const bool taken = std::find(takers.begin(), takers.end(), a.gives_to) != takers.end();
    if (taken || r.type.shape != a.array.shape() || r.type.dtype != a.array.dtype() ||
        r.split != a.split) {
      return name + " gives its memory to a result of another kind";
    }
    takers.push_back(a.gives_to);
  }
  for (int i = 0; i < results; ++i) {
    const ResultType& r = request.results[static_cast<size_t>(i)];
    if (!divides(r.type.shape, r.split)) {
      return "result " + std::to_string(i) + " cannot be split as it says";
    }
  }
  return "";
}

void Time(Run* run, int repeats, ExecuteResult* result) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    Run::Buffers outputs;
    const auto start = Clock::now();
    for (const OwnedEvent& event : run->Call(&outputs)) run->Wait(event);
    seconds.push_back(SecondsSince(start));
    run->TakeBack(std::move(outputs));
  }
  std::sort(seconds.begin(), seconds.end());
  result->call_seconds = seconds[seconds.size() / 2];

  std::vector<OwnedEvent> events;
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) {
    Run::Buffers outputs;
    for (OwnedEvent& event : run->Call(&outputs)) events.push_back(std::move(event));
    run->TakeBack(std::move(outputs));
  }
  for (const OwnedEvent& event : events) run->Wait(event);
  result->queued_seconds = SecondsSince(start) / repeats;
}

}  // namespace

ExecuteRequest RequestOf(const hlo::Module& module, const hlo::Arrays& inputs) {
  ExecuteRequest request;
  CheckInputs(module, inputs);
  request.module = hlo::Print(module);
  request.partitions = module.partitions;
  for (const hlo::Port& p : module.inputs()) {
    const auto it = inputs.find(p.name);
    const hlo::Type whole = module.Whole(p);
    if (it == inputs.end()) throw ir::BuildError("input " + p.name + " is missing");
    const hlo::Type given = {it->second.dtype(), it->second.shape()};
    if (given != whole) {
      throw ir::BuildError("input " + p.name + " is " + hlo::ToString(whole) + ", given " +
                           hlo::ToString(given));
    }
    request.arguments.push_back({it->second, p.split, p.gives_to});
  }
  for (const hlo::Port& p : module.outputs()) {
    request.results.push_back({module.Whole(p), p.split});
  }
  return request;
}

Device::Device(std::unique_ptr<State> state) : state_(std::move(state)) {}
Device::~Device() = default;
const std::string& Device::kind() const { return state_->chips.kind; }
const std::string& Device::compiler() const { return state_->chips.compiler; }
int Device::count() const { return state_->chips.count; }

const Target* Device::target() const {
  constexpr const char* kKinds[][2] = {
      {"TPU v5 lite", "v5e"}, {"TPU v5e", "v5e"}, {"TPU v5", "v5p"},  {"TPU v5p", "v5p"},
      {"TPU v6 lite", "v6e"}, {"TPU v6e", "v6e"}, {"TPU7x", "tpu7x"}, {"TPU v7x", "tpu7x"}};
  for (const auto& [kind, target] : kKinds) {
    if (state_->chips.kind == kind) return FindTarget(target);
  }
  return nullptr;
}

ExecuteResult Device::Execute(const ExecuteRequest& request) {
  ExecuteResult result;
  result.error = Fault(request, count());
  if (!result.ok()) return result;
  try {
    Run run(state_->chips.plugin, state_->chips.client.get(), request);
    result.compile_seconds = run.compile_seconds();
    run.Upload();
    Run::Buffers outputs;
    for (const OwnedEvent& event : run.Call(&outputs)) run.Wait(event);
    result.outputs = run.Download(outputs);
    run.TakeBack(std::move(outputs));
    if (request.repeats > 0) Time(&run, request.repeats, &result);
  } catch (const PluginFailure& failure) {
    result.outputs.clear();
    const std::string line = FirstLine(failure.message);
    result.error = "libtpu: " + (line.empty() ? "failed without a message" : line);
  }
  return result;
}

}  // namespace kda::tpu
