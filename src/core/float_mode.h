// The floating-point mode of a task: default rounding, every exception masked, whatever the thread
// that runs it is set to; restored on destruction. Results must not depend on the caller's mode.
#ifndef KDA_CORE_FLOAT_MODE_H_
#define KDA_CORE_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kda::core {

// The control register of the processor's floating-point unit.
struct FloatControl {
#if defined(__x86_64__)
  using Word = unsigned;
  static constexpr Word kDefault = 0x1f80;       // exceptions masked, round to nearest, no flags
  static constexpr Word kFlush = 0x8000 | 0x40;  // subnormal results, and operands, are zero
  static constexpr Word kFlags = 0x3f;           // what has happened so far
  static Word Read() { return _mm_getcsr(); }
  static void Write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kDefault = 0;         // exceptions masked, round to nearest, IEEE halves
  static constexpr Word kFlush = 1ull << 24;  // FZ: subnormal results and operands are zero
  static constexpr Word kFlags = 0;           // these are in another register
  static Word Read() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word)::"memory");
    return word;
  }
  static void Write(Word word) { __asm__ volatile("msr fpcr, %0" ::"r"(word) : "memory"); }
#endif
};

enum class Subnormals { kKeep, kFlushToZero };

class FloatMode {
 public:
  explicit FloatMode(Subnormals subnormals) : saved_(FloatControl::Read()) {
    FloatControl::Write(subnormals == Subnormals::kKeep
                            ? FloatControl::kDefault
                            : FloatControl::kDefault | FloatControl::kFlush);
  }
  ~FloatMode() { FloatControl::Write(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  FloatControl::Word saved_;
};

}  // namespace kda::core

#endif  // KDA_CORE_FLOAT_MODE_H_
