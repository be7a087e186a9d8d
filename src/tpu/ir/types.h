// Types of a kernel program: what a value or a piece of memory holds.
#ifndef KDA_TPU_IR_TYPES_H_
#define KDA_TPU_IR_TYPES_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace kda::tpu::ir {

enum class DType : uint8_t { kI1, kI32, kF32, kBF16, kDmaSemaphore };

// Where memory lies. kValue: not memory but a value (scalar or vector register).
enum class Space : uint8_t { kValue, kHbm, kVmem, kSmem, kSemaphore };

using Shape = std::vector<int64_t>;

// A scalar (rank 0) or vector value, or memory of that shape in `space`.
struct Type {
  DType dtype = DType::kI32;
  Shape shape;
  Space space = Space::kValue;

  bool IsMemory() const { return space != Space::kValue; }
  bool IsScalar() const { return !IsMemory() && shape.empty(); }
  bool operator==(const Type& o) const {
    return dtype == o.dtype && shape == o.shape && space == o.space;
  }
  bool operator!=(const Type& o) const { return !(*this == o); }
};

// A kernel program that cannot be: shapes that do not fit, a window beside its array. Thrown while
// a program is built, never by a built one.
class BuildError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline constexpr int64_t kMostElements = int64_t{1} << 60;  // their bytes are an int64_t
int64_t ElementCount(const Shape& shape);                   // throws BuildError beyond that
int64_t BitsOf(DType dtype);                                // 1, 32, 32, 16; 0 for a semaphore
bool IsFloat(DType dtype);

// As MLIR writes them: f32; 64x128xf32; vector<64x128xf32>; memref<64x128xf32,
// #tpu.memory_space<vmem>>.
std::string ToString(DType dtype);
std::string ToString(const Shape& shape);  // 64x128
std::string ToString(const Type& type);

// bf16 bits of a float, rounded to nearest even (a NaN stays one), and back.
uint16_t ToBF16(float value);
float FromBF16(uint16_t bits);

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_TYPES_H_
