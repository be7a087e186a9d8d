#include "tpu/inputs.h"

#include <map>
#include <string>
#include <vector>

#include "tpu/problem.h"

namespace kda::tpu {

namespace {

using Ports = std::vector<hlo::Port>;

const hlo::Port* Find(const Ports& ports, const std::string& name) {
  for (const hlo::Port& port : ports) {
    if (port.name == name) return &port;
  }
  return nullptr;
}

// The numbers of an input; none where the module has no such input.
std::vector<int32_t> Numbers(const hlo::Module& module, const hlo::Arrays& inputs,
                             const std::string& name) {
  const hlo::Port* const port = Find(module.inputs(), name);
  if (port == nullptr) return {};
  const auto it = inputs.find(name);
  if (it == inputs.end()) throw ir::BuildError("input " + name + " is missing");
  const hlo::Type given = {it->second.dtype(), it->second.shape()}, want = module.Whole(*port);
  if (given != want) Refuse("input", name, hlo::ToString(given), hlo::ToString(want));
  const int32_t* const first = it->second.i32();
  return {first, first + it->second.size()};
}

std::string Element(const char* name, size_t i) { return name + ("[" + std::to_string(i)) + "]"; }

void CheckOffsets(const std::vector<int32_t>& offsets, int64_t tokens) {
  if (offsets.empty()) return;
  RefuseOutside("input", "cu_seqlens[0]", offsets[0], 0, 0);
  for (size_t n = 1; n < offsets.size(); ++n) {
    RefuseOutside("input", Element("cu_seqlens", n).c_str(), offsets[n], offsets[n - 1], tokens);
  }
}

struct Slots {
  std::vector<int32_t> initial, final;
  bool reads = false, writes = false;  // there are initial states, final states
};

// The sequences that are not skipped write each a slot of its own, which no other reads.
void CheckSlots(const Slots& slots, int64_t count) {
  const auto below = [count](const char* name, const std::vector<int32_t>& values) {
    for (size_t n = 0; n < values.size(); ++n) {
      if (values[n] >= 0) RefuseOutside("input", Element(name, n).c_str(), values[n], 0, count - 1);
    }
  };
  below("initial_slots", slots.initial);
  below("final_slots", slots.final);
  if (!slots.writes) return;
  std::map<int32_t, size_t> writers;
  const auto skipped = [&](size_t n) { return slots.reads && slots.initial[n] < 0; };
  for (size_t n = 0; n < slots.final.size(); ++n) {
    if (skipped(n) || slots.final[n] < 0) continue;
    const auto [other, first] = writers.emplace(slots.final[n], n);
    if (!first) {
      Refuse("input", Element("final_slots", n), std::to_string(slots.final[n]),
             "another than final_slots[" + std::to_string(other->second) + "]");
    }
  }
  for (size_t n = 0; slots.reads && n < slots.initial.size(); ++n) {
    const auto writer = writers.find(slots.initial[n]);
    if (writer == writers.end() || writer->second == n) continue;
    Refuse("input", Element("initial_slots", n), std::to_string(slots.initial[n]),
           "another than final_slots[" + std::to_string(writer->second) + "]");
  }
}

}  // namespace

void CheckInputs(const hlo::Module& module, const hlo::Arrays& inputs) {
  const hlo::Port* const q = Find(module.inputs(), "q");
  if (q == nullptr) return;  // none of KDA's
  CheckOffsets(Numbers(module, inputs, "cu_seqlens"), module.Whole(*q).shape[1]);
  Slots slots;
  slots.initial = Numbers(module, inputs, "initial_slots");
  slots.final = Numbers(module, inputs, "final_slots");
  if (slots.final.empty()) return;
  const hlo::Port* const from = Find(module.inputs(), "initial_state");
  const hlo::Port* const to = Find(module.outputs(), "final_state");
  slots.reads = from != nullptr;
  slots.writes = to != nullptr;
  if (!slots.reads && !slots.writes) return;
  CheckSlots(slots, module.Whole(slots.reads ? *from : *to).shape[0]);
}

}  // namespace kda::tpu
