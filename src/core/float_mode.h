// The floating-point mode of a task: default rounding, every exception masked, whatever the thread
// that runs it is set to; restored on destruction. Results must not depend on the caller's mode.
#ifndef KDA_CORE_FLOAT_MODE_H_
#define KDA_CORE_FLOAT_MODE_H_

#include <xmmintrin.h>

namespace kda::core {

enum class Subnormals { kKeep, kFlushToZero };

class FloatMode {
 public:
  explicit FloatMode(Subnormals subnormals) : saved_(_mm_getcsr()) {
    constexpr unsigned kDefault = 0x1f80;       // exceptions masked, round to nearest, no flags
    constexpr unsigned kFlush = 0x8000 | 0x40;  // results and operands
    _mm_setcsr(subnormals == Subnormals::kKeep ? kDefault : kDefault | kFlush);
  }
  ~FloatMode() { _mm_setcsr(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace kda::core

#endif  // KDA_CORE_FLOAT_MODE_H_
