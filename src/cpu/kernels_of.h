// The row of a vector type. Included by isa/<name>.cc only, which is compiled for that instruction
// set: nothing here or below may instantiate a template that another file also instantiates, or the
// linker could hand this instruction set's copy to a machine without it.
#ifndef KDA_CPU_KERNELS_OF_H_
#define KDA_CPU_KERNELS_OF_H_

#include "cpu/decode.h"
#include "cpu/gate_cumsum.h"
#include "cpu/inter_chunk.h"
#include "cpu/intra_chunk.h"
#include "cpu/intra_chunk_bf16.h"
#include "cpu/kernels.h"
#include "cpu/output.h"
#include "cpu/solve.h"
#include "cpu/state_io.h"

namespace kda::cpu {

template <class V>
constexpr Kernels KernelsOf() {
  Kernels kernels = {};
  kernels.gate_cumsum = GateCumsum<V>;
  kernels.delta_rule = DeltaRule<V>;
  kernels.decay_to_end = DecayToEnd<V>;
  kernels.advance_state = AdvanceState<V>;
  kernels.output = Output<V>;
  kernels.decode_token = DecodeToken<V>;
  kernels.load_state = LoadState<V>;
  kernels.store_state = StoreState<V>;
  kernels.round_state_to_bf16 = RoundStateToBf16<V>;
  if constexpr (kBf16Products<V>) {
    kernels.buffers = kSplitProducts<V> ? Which::kFusedSplit : Which::kFusedBf16;
    kernels.intra_chunk_products = IntraChunkBf16<V>;
  } else {
    kernels.buffers = Which::kFused;
    kernels.intra_chunk_products = IntraChunkProducts<V>;
    kernels.intra_chunk_elementwise = IntraChunkElementwise<V>;
    kernels.solve_uw = SolveUW<V>;
    kernels.delta_rule_uw = DeltaRuleUW<V>;
  }
  if constexpr (kTileRegisters<V>) {
    kernels.enter = V::Enter;
    kernels.leave = V::Leave;
  }
  return kernels;
}

}  // namespace kda::cpu

#endif  // KDA_CPU_KERNELS_OF_H_
