#include "cpu/vec/baseline.h"

#include "cpu/kernels_of.h"

namespace kda::cpu {

const Kernels kBaselineKernels = KernelsOf<Baseline>();

}  // namespace kda::cpu
