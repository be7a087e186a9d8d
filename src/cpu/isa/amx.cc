#ifdef KDA_AMX_MODEL
#include "cpu/mma/amx_model.h"
#else
#include "cpu/mma/amx_tiles.h"
#endif

#include "cpu/kernels_of.h"
#include "cpu/mma/amx.h"

namespace kda::cpu {

#ifdef KDA_AMX_MODEL
const Kernels kAmxKernels = KernelsOf<Amx<AmxModel>>();
#else
const Kernels kAmxKernels = KernelsOf<Amx<AmxTiles>>();
#endif

}  // namespace kda::cpu
