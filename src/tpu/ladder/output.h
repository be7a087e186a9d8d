// Stage 4: what a chunk reads from the state before it, and from itself.
//
//   o = scale (q 2^G) S + Aqk v_new        (Aqk holds scale)
//
// In, per head: q 2^G, v_new [64, 128], S [128, 128], Aqk [64, 64], all f32. Out: o [64, 128] f32.
// Products in fp32 (six passes), as published.
#ifndef KDA_TPU_LADDER_OUTPUT_H_
#define KDA_TPU_LADDER_OUTPUT_H_

#include "tpu/ir/builder.h"
#include "tpu/ladder/inter_chunk.h"

namespace kda::tpu {

PerHead Outputs(const PerHead& decayed_q, const PerHead& S, const PerHead& Aqk,
                const PerHead& v_new, double scale);

}  // namespace kda::tpu

#endif  // KDA_TPU_LADDER_OUTPUT_H_
