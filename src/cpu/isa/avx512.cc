#include "cpu/vec/avx512.h"

#include "cpu/kernels_of.h"

namespace kda::cpu {

const Kernels kAvx512Kernels = KernelsOf<Avx512>();

}  // namespace kda::cpu
