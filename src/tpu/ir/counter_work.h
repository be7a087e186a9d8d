// What one run of a node costs.
#ifndef KDA_TPU_IR_COUNTER_WORK_H_
#define KDA_TPU_IR_COUNTER_WORK_H_

#include "tpu/ir/counter.h"

namespace kda::tpu::ir {

Work WorkOf(const Program& program, const Node& node, const CountOptions& options);

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_COUNTER_WORK_H_
