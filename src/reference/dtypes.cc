#include "reference/dtypes.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace kda::reference {
namespace {

template <class T>
T ReadAs(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T>
void WriteAs(void* data, int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof(T)), &value,
              sizeof(T));
}

float FloatOfBits(uint32_t bits) { return ReadAs<float>(&bits, 0); }
uint32_t BitsOfFloat(float value) { return ReadAs<uint32_t>(&value, 0); }

uint16_t Bf16OfFloat(float value) {
  const uint32_t bits = BitsOfFloat(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // stays a NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

double DoubleOfF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value;
  if (exponent == 31) {
    value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return std::copysign(value, (bits & 0x8000) != 0 ? -1.0 : 1.0);
}

uint16_t F16OfFloat(float value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  int bits;
  if (std::isnan(value)) {
    bits = 0x7e00;
  } else if (magnitude >= 65520) {  // half a unit past 65504 rounds up
    bits = 0x7c00;
  } else if (magnitude < 0x1p-14) {
    bits = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 24)));
  } else {
    // A mantissa rounded up to 2048 carries into the exponent by itself.
    const int exponent = std::ilogb(magnitude);
    const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    bits = ((exponent + 15) << 10) + mantissa - 1024;
  }
  return static_cast<uint16_t>(sign | bits);
}

}  // namespace

int64_t SizeOf(int32_t dtype) { return dtype == KDA_F32 ? 4 : 2; }

double Load(int32_t dtype, const void* data, int64_t index) {
  switch (dtype) {
    case KDA_F32:
      return ReadAs<float>(data, index);
    case KDA_BF16:
      return FloatOfBits(static_cast<uint32_t>(ReadAs<uint16_t>(data, index)) << 16);
    default:
      return DoubleOfF16(ReadAs<uint16_t>(data, index));
  }
}

void Store(int32_t dtype, void* data, int64_t index, double value) {
  const float narrow = static_cast<float>(value);
  switch (dtype) {
    case KDA_F32:
      return WriteAs(data, index, narrow);
    case KDA_BF16:
      return WriteAs(data, index, Bf16OfFloat(narrow));
    default:
      return WriteAs(data, index, F16OfFloat(narrow));
  }
}

double Round(int32_t dtype, double value) {
  float element = 0;
  Store(dtype, &element, 0, value);
  return Load(dtype, &element, 0);
}

}  // namespace kda::reference
