// Writes a module as StableHLO, which libtpu compiles.
#ifndef KDA_TPU_HLO_PRINTER_H_
#define KDA_TPU_HLO_PRINTER_H_

#include <string>

#include "tpu/hlo/module.h"

namespace kda::tpu::hlo {

// With `locations` the kernels' operations name their stages (ir/printer.h).
std::string Print(const Module& module, bool locations = true);

}  // namespace kda::tpu::hlo

#endif  // KDA_TPU_HLO_PRINTER_H_
