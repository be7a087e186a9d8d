#include "cpu/vec/neon.h"

#include "cpu/kernels_of.h"

namespace kda::cpu {

const Kernels kNeonKernels = KernelsOf<Neon>();

}  // namespace kda::cpu
