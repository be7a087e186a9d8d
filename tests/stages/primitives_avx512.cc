#include "cpu/vec/avx512.h"
#include "stages/primitives_of.h"

namespace kda::cpu {

const Primitives kAvx512Primitives = PrimitivesOf<Avx512>();

}  // namespace kda::cpu
