// Writes a kernel program as the Mosaic dialect's text, which libtpu compiles.
#ifndef KDA_TPU_IR_PRINTER_H_
#define KDA_TPU_IR_PRINTER_H_

#include <string>

#include "tpu/ir/program.h"

namespace kda::tpu::ir {

// One MLIR module with one function, the kernel, and one function per window. With `locations`
// every operation names its label: loc("stage:h3").
std::string Print(const Program& program, bool locations = true);

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_PRINTER_H_
