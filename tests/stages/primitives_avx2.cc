#include "cpu/vec/avx2.h"
#include "stages/primitives_of.h"

namespace kda::cpu {

const Primitives kAvx2Primitives = PrimitivesOf<Avx2>();

}  // namespace kda::cpu
