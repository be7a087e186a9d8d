// What the builder's files, and those built on it, refuse with.
#ifndef KDA_TPU_IR_REFUSE_H_
#define KDA_TPU_IR_REFUSE_H_

#include <string>

#include "tpu/ir/builder.h"

namespace kda::tpu::ir {

[[noreturn]] inline void Refuse(const std::string& what) { throw BuildError(what); }

inline void Require(bool ok, const char* what) {
  if (!ok) Refuse(what);
}

// What arguments of kernels and modules may be called: letters, digits and _, but not as the
// printers call nodes, a letter and digits (%c3, %g0, %i7).
bool IsName(const std::string& text);

// Of a builder's operands: nodes are numbers, which mean something else in another program.
inline void RequireOf(const Builder* builder, const Builder* owner) {
  Require(owner == builder, "a value of another program");
}

inline void RequireIndex(const Builder* builder, const Index& index) {
  if (index.IsConstant()) return;
  RequireOf(builder, index.value().builder());
  if (index.value().type() != Type{DType::kI32, {}, Space::kValue}) {
    Refuse("an index must be an i32 scalar, not " + ToString(index.value().type()));
  }
}

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_REFUSE_H_
