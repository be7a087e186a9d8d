#include "tpu/ladder/inter_chunk.h"

namespace kda::tpu {

PerHead NewValues(const PerHead& u, const PerHead& w, const PerHead& S) {
  const ir::Builder::Label label(S[0].builder(), "inter_chunk");
  PerHead v_new;
  for (size_t h = 0; h < S.size(); ++h) {
    v_new.push_back(u[h] - ir::Dot(w[h], S[h], ir::Precision::kF32));
  }
  return v_new;
}

PerHead NextState(const PerHead& S, const PerHead& G_last, const PerHead& kg,
                  const PerHead& v_new) {
  const ir::Builder::Label label(S[0].builder(), "inter_chunk");
  PerHead next;
  for (size_t h = 0; h < S.size(); ++h) {
    const ir::Value decay = ir::Reshape(ir::Exp2(G_last[h]), {S[h].shape()[0], 1});
    next.push_back(S[h] * decay + ir::DotTN(kg[h], v_new[h], ir::Precision::kF32));
  }
  return next;
}

}  // namespace kda::tpu
