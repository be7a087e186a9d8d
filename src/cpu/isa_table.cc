// The table of instruction sets. A new one is a row here and its isa/<name>.cc.
#include "core/cpu_features.h"
#include "core/isa.h"
#include "cpu/kernels.h"

// A library holds the kernels of one architecture.
#if defined(__x86_64__)
#define KDA_ON_X86_64(kernels) &kernels
#define KDA_ON_AARCH64(kernels) nullptr
#elif defined(__aarch64__)
#define KDA_ON_X86_64(kernels) nullptr
#define KDA_ON_AARCH64(kernels) &kernels
#endif

namespace kda::cpu {

namespace {

constexpr char kX86[] = "x86-64";
constexpr uint64_t kNeedsAvx2 = core::kAvx | core::kAvx2 | core::kFma | core::kF16c;
constexpr uint64_t kNeedsAvx512 =
    kNeedsAvx2 | core::kAvx512F | core::kAvx512Bw | core::kAvx512Dq | core::kAvx512Vl;

constexpr uint64_t kNeedsAvx512Bf16 = kNeedsAvx512 | core::kAvx512Bf16;
#ifdef KDA_AMX_MODEL
constexpr uint64_t kNeedsAmx = kNeedsAvx512Bf16;  // the tiles are a model
#else
constexpr uint64_t kNeedsAmx = kNeedsAvx512Bf16 | core::kAmxTile | core::kAmxBf16;
#endif

constexpr core::Isa kIsas[] = {
    {{KDA_ISA_BASELINE, "baseline", kX86, "SSE2, which all have; no fused multiply-add"},
     0,
     0,
     KDA_ON_X86_64(kBaselineKernels),
     nullptr},
    {{KDA_ISA_AVX2, "avx2", kX86, "AVX2, FMA, F16C"},
     kNeedsAvx2,
     0,
     KDA_ON_X86_64(kAvx2Kernels),
     nullptr},
    {{KDA_ISA_AVX512, "avx512", kX86, "AVX-512 F, BW, DQ, VL"},
     kNeedsAvx512,
     0,
     KDA_ON_X86_64(kAvx512Kernels),
     nullptr},
    {{KDA_ISA_AVX512_BF16, "avx512_bf16", kX86,
      "AVX-512 as above and BF16; by itself only where vdpbf16ps is faster than fp32 (AMD)"},
     kNeedsAvx512Bf16,
     core::kFastBf16Dot,
     KDA_ON_X86_64(kAvx512Kernels),
     KDA_ON_X86_64(kAvx512Bf16Kernels)},
    {{KDA_ISA_AMX, "amx", kX86, "AVX-512 and BF16 as above, AMX-TILE, AMX-BF16"},
     kNeedsAmx,
     0,
     KDA_ON_X86_64(kAvx512Kernels),
     KDA_ON_X86_64(kAmxKernels)},
    {{KDA_ISA_NEON, "neon", "aarch64", "NEON, which all have"},
     0,
     0,
     KDA_ON_AARCH64(kNeonKernels),
     nullptr},
};

}  // namespace
}  // namespace kda::cpu

namespace kda::core {

const IsaTable& Isas() {
  static constexpr IsaTable table = {cpu::kIsas, sizeof cpu::kIsas / sizeof cpu::kIsas[0]};
  return table;
}

}  // namespace kda::core
