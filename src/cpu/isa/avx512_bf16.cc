#include "cpu/vec/avx512_bf16.h"

#include "cpu/kernels_of.h"

namespace kda::cpu {

const Kernels kAvx512Bf16Kernels = KernelsOf<Avx512Bf16>();

}  // namespace kda::cpu
