// Asking memory for what is wanted later. Rows of one head lie H * K elements apart, which the
// hardware's own prefetching does not follow, and where many requests are under way more
// are dropped or waited for: they go one at a time, between the steps of products whose
// operands are in the cache.
#ifndef KDA_CPU_PREFETCH_H_
#define KDA_CPU_PREFETCH_H_

#include "cpu/chunk.h"

namespace kda::cpu {

// Channels [c, c + 64 bytes) of row i, and a whole row, at once: where nothing was asked for ahead.
static inline void PrefetchPart(const Rows& rows, int i, int c) {
  __builtin_prefetch(rows.data + i * rows.stride + c * SizeOf(rows.dtype), 0, 2);
}
static inline void PrefetchRow(const Rows& rows, int i, int dim) {
  for (int b = 0; b < dim * SizeOf(rows.dtype); b += 64)
    PrefetchPart(rows, i, b / SizeOf(rows.dtype));
}

// For products at whose steps nothing is asked for.
template <class V>
struct NothingAhead {
  void Step() {}
};

// Cache lines of rows, one at a step. (A template so that every instruction set has its own.)
template <class V>
class Ahead {
 public:
  // No rows, or nullptr: nothing.
  void Add(const char* data, int64_t stride, int row_bytes, int rows) {
    if (rows == 0 || data == nullptr) return;
    parts_[count_++] = {data, stride, (row_bytes + kLine - 1) / kLine, rows};
    lines_ += parts_[count_ - 1].lines * rows;
  }
  void Add(const Rows& rows, int dim, int count) {
    Add(rows.data, rows.stride, dim * SizeOf(rows.dtype), count);
  }

  // Over `steps` steps, which follow.
  void Spread(int64_t steps) {
    if (lines_ == 0) return;
    period_ = wait_ = steps < lines_ ? 1 : static_cast<int>(steps / lines_);
    Begin();
  }

  [[gnu::always_inline]] void Step() {
    if (const char* const line = Due()) __builtin_prefetch(line, 0, 2);
  }
  // The line of this step; nullptr: none.
  [[gnu::always_inline]] const char* Due() {
    if (--wait_ != 0) return nullptr;
    wait_ = period_;
    const char* const line = at_;
    at_ += kLine;
    if (--lines_left_ == 0) NextRow();
    return line;
  }

 private:
  static constexpr int kLine = 64, kMostParts = 3;
  struct Part {
    const char* data;
    int64_t stride;
    int lines, rows;
  };

  void Begin() {
    rows_left_ = parts_[part_].rows;
    Row(parts_[part_].data);
  }
  void Row(const char* row) {
    at_ = row_ = row;
    lines_left_ = parts_[part_].lines;
  }
  void NextRow() {
    if (--rows_left_ > 0) return Row(row_ + parts_[part_].stride);
    if (++part_ < count_) return Begin();
    wait_ = 0;  // counts down from here
  }

  Part parts_[kMostParts];
  int count_ = 0, lines_ = 0;
  int part_ = 0, rows_left_ = 0, lines_left_ = 0;  // where it stands
  int period_ = 0, wait_ = 0;                      // steps
  const char *row_ = nullptr, *at_ = nullptr;
};

}  // namespace kda::cpu

#endif  // KDA_CPU_PREFETCH_H_
