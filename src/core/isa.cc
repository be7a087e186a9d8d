#include "core/isa.h"

#include <cstdlib>
#include <cstring>

namespace kda::core {

const Isa* IsaTable::Find(int32_t id) const {
  for (const Isa& isa : *this) {
    if (isa.info.isa == id) return &isa;
  }
  return nullptr;
}

const Isa* IsaTable::Named(const char* name) const {
  for (const Isa& isa : *this) {
    if (isa.kernels != nullptr && std::strcmp(isa.info.name, name) == 0) return &isa;
  }
  return nullptr;
}

const Isa& IsaTable::First() const {
  const Isa* isa = begin();
  while (isa->kernels == nullptr) ++isa;
  return *isa;
}

bool IsaChoice::MachineHas(const Isa& isa) const {
  return isa.kernels != nullptr && (isa.needs & ~features) == 0;
}

bool IsaChoice::Available(const Isa& isa) const {
  return MachineHas(isa) && (cap == nullptr || &isa <= cap);
}

const Isa& IsaChoice::Best() const {
  const Isa* best = &table.First();
  for (const Isa& isa : table) {
    if (Available(isa) && (isa.auto_needs & ~features) == 0) best = &isa;
  }
  return *best;
}

std::string IsaChoice::Names() const {
  std::string names;
  for (const Isa& isa : table) {
    if (!Available(isa)) continue;
    if (!names.empty()) names += ", ";
    names += isa.info.name;
  }
  return names;
}

IsaCap ReadIsaCap() {
  const char* text = std::getenv("KDA_MAX_ISA");
  if (text == nullptr || text[0] == '\0') return {nullptr, nullptr, true};
  const Isa* const isa = Isas().Named(text);
  return {text, isa, isa != nullptr};
}

IsaChoice IsasHere() { return {Isas(), CpuFeatures(), ReadIsaCap().isa}; }

bool IsaAvailable(int32_t id) {
  const Isa* const isa = Isas().Find(id);
  return isa != nullptr && IsasHere().Available(*isa);
}

}  // namespace kda::core

extern "C" {

int32_t kda_isa_available(int32_t isa) { return kda::core::IsaAvailable(isa) ? 1 : 0; }

const char* kda_isa_name(int32_t isa) {
  if (isa == KDA_ISA_AUTO) return "auto";
  const kda::core::Isa* const row = kda::core::Isas().Find(isa);
  return row == nullptr ? nullptr : row->info.name;
}

const kda_isa_info* kda_isa_row(int32_t index) {
  const kda::core::IsaTable& table = kda::core::Isas();
  return index >= 0 && index < table.count ? &table.rows[index].info : nullptr;
}

}  // extern "C"
