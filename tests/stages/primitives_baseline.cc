#include "cpu/vec/baseline.h"
#include "stages/primitives_of.h"

namespace kda::cpu {

const Primitives kBaselinePrimitives = PrimitivesOf<Baseline>();

}  // namespace kda::cpu
