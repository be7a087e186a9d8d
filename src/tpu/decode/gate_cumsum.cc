// Stage gate_cumsum of the decode kernel: the decay of one token. A chunk of one row: its
// prefix sum is the gate itself.
//
//   x = g + dt_bias,  a = e^A_log
//   g = x | lower_bound sigmoid(a x) | -a softplus(x)      log, bounded, softplus
//   decay = e^g
//
// In, per item: raw g [8, 128] bf16 or fp32; A_log [H] and dt_bias [groups, 8, 128] fp32.
// Out: decay [8, 128] fp32.
//
// a is used as its root twice, so that neither it nor a product with it leaves fp32 on the way.
#include "tpu/activation.h"
#include "tpu/decode/kernel.h"

namespace kda::tpu::decode {

void Kernel::PrepareGates() {
  const Shape shape = {kHeads, kDim};
  const bool log = problem.gate == KDA_GATE_LOG;
  if (log) return;
  const Builder::Label label(b, "gates");
  b->For(0, groups, [&](Value group) {
    Value half = b->Constant(DType::kF32, 0, shape);  // A_log / (2 ln 2)
    if (a_log.builder() != nullptr) {
      const Value row = b->Iota(shape, 0);
      for (int64_t h = 0; h < kHeads; ++h) {
        const Value a =
            Load(a_log.At(Index(group * static_cast<double>(kHeads) + static_cast<double>(h))));
        half = Select(row == h, BroadcastTo(a * (kLog2E / 2), shape), half);
      }
    }
    half = ir::Max(half, -126.0);  // the root is not 0, which times an infinite x would be NaN,
    const bool bounded = problem.gate == KDA_GATE_BOUNDED;
    if (bounded) half = ir::Min(half, 127.0);  // nor infinite, times 0
    Store(gate_scale.At(Index(group)), bounded ? ir::Exp2(half) : half);
    Value shift = b->Constant(DType::kF32, 0, shape);
    if (dt_bias.builder() != nullptr) shift = Load(dt_bias.At(Index(group)));
    Store(gate_shift.At(Index(group)), shift);
  });
}

Value Kernel::GateCumsum(Value group, Value raw) const {
  if (problem.gate == KDA_GATE_LOG) return ir::Exp2(raw * kLog2E);
  const Value scale = Load(gate_scale.At(Index(group)));
  const Value x = raw + Load(gate_shift.At(Index(group)));
  if (problem.gate == KDA_GATE_BOUNDED) {
    const Value z = x * scale * scale;
    return ir::Exp2(Sigmoid(z) * LeastGate2(problem.lower_bound));
  }
  return ir::Exp2(-ScaledSoftplus2(x, scale));
}

}  // namespace kda::tpu::decode
