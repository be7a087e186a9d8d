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
constexpr auto IntraChunkOf() {
  if constexpr (kBf16Products<V>) {
    return IntraChunkBf16<V>;
  } else {
    return IntraChunkProducts<V>;
  }
}

template <class V>
constexpr Kernels KernelsOf() {
  return {GateCumsum<V>,
          IntraChunkOf<V>(),
          IntraChunkElementwise<V>,
          SolveUW<V>,
          DeltaRule<V>,
          DeltaRuleUW<V>,
          AdvanceState<V>,
          Output<V>,
          DecodeToken<V>,
          LoadState<V>,
          StoreState<V>,
          RoundStateToBf16<V>};
}

}  // namespace kda::cpu

#endif  // KDA_CPU_KERNELS_OF_H_
