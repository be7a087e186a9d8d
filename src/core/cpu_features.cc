#include "core/cpu_features.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "core/plan.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kda::core {
namespace {

#if defined(__x86_64__)

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero for a leaf the processor does not have.
Cpuid Leaf(uint32_t leaf) {
  Cpuid r;
  if (__get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return Cpuid();
  return r;
}

bool Has(uint32_t word, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if ((word >> bit & 1) == 0) return false;
  }
  return true;
}

// The registers the operating system saves. Executing this is only allowed with OSXSAVE.
uint64_t Xcr0() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

kda_isa Detect() {
  constexpr int kFma = 12, kOsxsave = 27, kAvx = 28, kF16c = 29;  // leaf 1, ecx
  constexpr int kAvx2 = 5, kAvx512F = 16, kAvx512Dq = 17, kAvx512Bw = 30, kAvx512Vl = 31;  // 7, ebx
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;  // XCR0: XMM, YMM; and opmask, both halves of ZMM

  const uint32_t one = Leaf(1).ecx, seven = Leaf(7).ebx;
  if (!Has(one, {kFma, kOsxsave, kAvx, kF16c}) || !Has(seven, {kAvx2})) return KDA_ISA_BASELINE;
  const uint64_t saved = Xcr0();
  if ((saved & kYmm) != kYmm) return KDA_ISA_BASELINE;
  if (!Has(seven, {kAvx512F, kAvx512Dq, kAvx512Bw, kAvx512Vl}) || (saved & kZmm) != kZmm) {
    return KDA_ISA_AVX2;
  }
  return KDA_ISA_AVX512;
}

#else

kda_isa Detect() { return KDA_ISA_BASELINE; }

#endif

}  // namespace

kda_isa MachineIsa() {
  static const kda_isa isa = Detect();
  return isa;
}

IsaCap ReadIsaCap() {
  const char* text = std::getenv("KDA_MAX_ISA");
  if (text == nullptr || text[0] == '\0') return {nullptr, true, KDA_ISA_AVX512};
  for (int32_t isa = KDA_ISA_BASELINE; kda_isa_name(isa) != nullptr; ++isa) {
    if (std::strcmp(text, kda_isa_name(isa)) == 0) return {text, true, static_cast<kda_isa>(isa)};
  }
  return {text, false, KDA_ISA_AVX512};
}

kda_isa BestIsa() { return std::min(MachineIsa(), ReadIsaCap().isa); }

bool IsaAvailable(kda_isa isa) { return isa >= KDA_ISA_BASELINE && isa <= BestIsa(); }

}  // namespace kda::core

extern "C" int32_t kda_isa_available(int32_t isa) {
  if (isa < KDA_ISA_BASELINE || isa > KDA_ISA_AVX512) return 0;
  return kda::core::IsaAvailable(static_cast<kda_isa>(isa)) ? 1 : 0;
}
