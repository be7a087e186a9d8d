// What the builder's files refuse with.
#ifndef KDA_TPU_IR_REFUSE_H_
#define KDA_TPU_IR_REFUSE_H_

#include <string>

#include "tpu/ir/builder.h"

namespace kda::tpu::ir {

[[noreturn]] inline void Refuse(const std::string& what) { throw BuildError(what); }

inline void Require(bool ok, const char* what) {
  if (!ok) Refuse(what);
}

inline void RequireIndex(const Index& index) {
  if (!index.IsConstant() && index.value().type() != Type{DType::kI32, {}, Space::kValue}) {
    Refuse("an index must be an i32 scalar, not " + ToString(index.value().type()));
  }
}

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_REFUSE_H_
