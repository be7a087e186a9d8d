#include "tpu/ladder/output.h"

namespace kda::tpu {

PerHead Outputs(const PerHead& decayed_q, const PerHead& S, const PerHead& Aqk,
                const PerHead& v_new, double scale) {
  const ir::Builder::Label label(S[0].builder(), "output");
  PerHead from_state, o;
  for (size_t h = 0; h < S.size(); ++h) {
    from_state.push_back(ir::Dot(decayed_q[h], S[h], ir::Precision::kF32) * scale);
  }
  for (size_t h = 0; h < S.size(); ++h) {
    o.push_back(from_state[h] + ir::Dot(Aqk[h], v_new[h], ir::Precision::kF32));
  }
  return o;
}

}  // namespace kda::tpu
