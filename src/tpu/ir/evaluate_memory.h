// Memory of a kernel that runs: words, what is known of each half word, and views of it.
//
// Elements of 32 bits take a word. bf16 takes half of one: rows 2r and 2r + 1 of the second-last
// dimension are the low and the high halves of one row of words, so that the same memory
// can be seen as bf16 or as i32 (kRefBitcast). A bf16 array of rank 1 uses low halves
// only. i1 takes a word: 0 or 1.
#ifndef KDA_TPU_IR_EVALUATE_MEMORY_H_
#define KDA_TPU_IR_EVALUATE_MEMORY_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tpu/ir/array.h"
#include "tpu/ir/types.h"

namespace kda::tpu::ir::evaluate {

// What went wrong; whoever runs the program adds where.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr int kMaxRank = 8;
inline constexpr uint32_t kPoison = 0x7fc07fc0u;  // a NaN as f32 and as two bf16

// A rectangle of a memory. Element [i0, i1, ..] lies in word offset + sum of i * stride, where the
// packed dimension counts (half + i) / 2 and picks the half (half + i) % 2.
struct View {
  int memory = -1;
  DType dtype = DType::kI32;
  int rank = 0;
  int64_t size[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};  // in words
  int64_t offset = 0;
  int packed = -1;  // the dimension whose elements alternate between halves; -1: none does
  int half = 0;     // of bf16: the half of element 0

  int64_t Count() const;
  int64_t Bytes() const { return Count() * BitsOf(dtype) / 8; }
};

int64_t WordCount(const Type& type);
View WholeView(int memory, const Type& type);
// Each throws a Fault where the rectangle leaves the view or the layout does not allow it.
View SliceOf(const View& view, const int64_t* starts, const int64_t* sizes);
View SqueezeOf(const View& view, const std::vector<int64_t>& dropped);
View BitcastOf(const View& view, DType dtype);
View ReshapeOf(const View& view, const Shape& shape);

// State of a half word: a byte, the low half's first.
inline constexpr uint16_t kWritten = 0x0101;
inline constexpr uint16_t kCopyWrites = 0x0202;  // the destination of a copy that is not over
inline constexpr uint16_t kCopyReads = 0x0404;   // sources: from here up a counter
inline constexpr uint16_t kCopyReadsMask = 0xfcfc;

struct Memory {
  std::string name;
  Type type;
  std::vector<uint32_t> words;
  std::vector<uint16_t> states;
  const char* fixed = nullptr;  // why it cannot be written; null: it can
};

class Memories {
 public:
  Memories(bool check_unwritten, bool check_races)
      : check_unwritten_(check_unwritten), check_races_(check_races) {}

  int Add(const std::string& name, const Type& type, const char* fixed = nullptr);  // poisoned
  Memory& At(int id) { return memories_[static_cast<size_t>(id)]; }
  const Memory& At(int id) const { return memories_[static_cast<size_t>(id)]; }
  View Whole(int id) const { return WholeView(id, At(id).type); }

  void Import(int id, const Array& array);
  Array Export(int id) const;
  void Poison(int id, bool written);

  // Elements in row-major order, a word each; bf16 as the fp32 of the same value.
  void Load(const View& view, uint32_t* values) const;
  void Store(const View& view, const uint32_t* values);

  // What copies do. Begin checks; Move does not. Bits "written" travel with the data.
  void Move(const View& from, const View& to);
  void BeginReading(const View& view);
  void EndReading(const View& view);
  void BeginWriting(const View& view);
  void EndWriting(const View& view);

 private:
  [[noreturn]] void Complain(const View& view, uint16_t wrong, uint16_t expected,
                             const char* verb) const;
  std::string Place(const Memory& memory, int64_t word, int half) const;

  std::vector<Memory> memories_;
  bool check_unwritten_, check_races_;
  std::vector<uint32_t> moved_;  // of Move
  std::vector<uint16_t> moved_states_;
};

// Semaphores and the copies that count on them.
class CopyQueue {
 public:
  CopyQueue(Memories* memories, bool at_start) : memories_(memories), at_start_(at_start) {}
  void Start(const View& from, const View& to, const View& semaphore, int node);
  void Wait(const View& semaphore, int64_t bytes);
  // The node that started a copy which is not over; -1: there is none.
  int Unfinished(std::string* what) const;

 private:
  struct Copy {
    View from, to;
    int node;
  };
  struct Semaphore {
    int memory;
    int64_t index;
    int64_t bytes;  // started and not waited for
    std::vector<Copy> copies;
  };
  Semaphore& Find(const View& semaphore);

  Memories* memories_;
  bool at_start_;
  std::vector<Semaphore> semaphores_;
};

}  // namespace kda::tpu::ir::evaluate

#endif  // KDA_TPU_IR_EVALUATE_MEMORY_H_
