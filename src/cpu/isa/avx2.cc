#include "cpu/vec/avx2.h"

#include "cpu/kernels_of.h"

namespace kda::cpu {

const Kernels kAvx2Kernels = KernelsOf<Avx2>();

}  // namespace kda::cpu
