// Stage 3: the state from chunk to chunk.
//
//   v_new = u - w S
//   S <- diag(2^G[last]) S + kg^T v_new
//
// In, per head: w, u, kg [64, 128], S [128, 128], G[last] [1, 128], all f32. Out: v_new [64, 128],
// S [128, 128], f32. Products in fp32 (six passes): S is carried from chunk to chunk.
#ifndef KDA_TPU_LADDER_INTER_CHUNK_H_
#define KDA_TPU_LADDER_INTER_CHUNK_H_

#include <vector>

#include "tpu/ir/builder.h"

namespace kda::tpu {

using PerHead = std::vector<ir::Value>;

PerHead NewValues(const PerHead& u, const PerHead& w, const PerHead& S);

PerHead NextState(const PerHead& S, const PerHead& G_last, const PerHead& kg, const PerHead& v_new);

}  // namespace kda::tpu

#endif  // KDA_TPU_LADDER_INTER_CHUNK_H_
