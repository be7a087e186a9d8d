// The shapes of the AMX tiles, as LDTILECFG takes them.
#ifndef KDA_CPU_MMA_AMX_CONFIG_H_
#define KDA_CPU_MMA_AMX_CONFIG_H_

#include <cstdint>

namespace kda::cpu {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 32, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 8};
};
static constexpr TileConfig kTileConfig;
static_assert(sizeof(TileConfig) == 64);

// What TDPBF16PS wants of C += A B.
constexpr bool CanMultiply(int c, int a, int b) {
  return kTileConfig.rows[c] == kTileConfig.rows[a] &&
         kTileConfig.row_bytes[c] == kTileConfig.row_bytes[b] &&
         kTileConfig.row_bytes[a] == 4 * kTileConfig.rows[b];
}
static_assert(CanMultiply(0, 4, 6) && CanMultiply(1, 4, 6) && CanMultiply(2, 4, 6) &&
              CanMultiply(3, 4, 6));
static_assert(CanMultiply(0, 5, 7) && CanMultiply(1, 5, 7) && CanMultiply(2, 5, 7) &&
              CanMultiply(3, 5, 7));

}  // namespace kda::cpu

#endif  // KDA_CPU_MMA_AMX_CONFIG_H_
