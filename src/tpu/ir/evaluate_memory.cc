#include "tpu/ir/evaluate_memory.h"

#include <algorithm>
#include <cstring>

namespace kda::tpu::ir::evaluate {

namespace {

enum class Half { kLow, kHigh, kBoth };

constexpr uint16_t MaskOf(Half half) {
  return half == Half::kBoth ? 0xffff : half == Half::kLow ? 0x00ff : 0xff00;
}

// Calls row(word, half, count, at) for runs of consecutive words, in row-major order of the
// elements; `at` counts the elements before.
template <class Row>
void ForEachRow(const View& view, Row&& row) {
  int outer = view.rank;
  int64_t run = 1;
  while (outer > 0 && view.packed != outer - 1 &&
         (view.size[outer - 1] == 1 || view.stride[outer - 1] == run)) {
    run *= view.size[--outer];
  }
  int64_t index[kMaxRank] = {};
  const int64_t total = view.Count();
  for (int64_t at = 0; at < total; at += run) {
    int64_t word = view.offset;
    int half = view.half;
    for (int i = 0; i < outer; ++i) {
      if (i == view.packed) {
        word += (half + index[i]) / 2 * view.stride[i];
        half = static_cast<int>((half + index[i]) % 2);
      } else {
        word += index[i] * view.stride[i];
      }
    }
    row(word,
        view.dtype != DType::kBF16 ? Half::kBoth
        : half == 0                ? Half::kLow
                                   : Half::kHigh,
        run, at);
    for (int i = outer - 1; i >= 0 && ++index[i] == view.size[i]; --i) index[i] = 0;
  }
}

// Whether a state in [states, states + count) differs from `expected` in the bits of `mask`.
bool AnyDiffers(const uint16_t* states, int64_t count, uint16_t expected, uint16_t mask) {
  uint16_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong |= static_cast<uint16_t>(states[i] ^ expected);
  return (wrong & mask) != 0;
}

void LoadRow(const uint32_t* words, Half half, int64_t count, uint32_t* values) {
  switch (half) {
    case Half::kBoth:
      std::memcpy(values, words, static_cast<size_t>(count) * sizeof *values);
      break;
    case Half::kLow:
      for (int64_t i = 0; i < count; ++i) values[i] = words[i] << 16;
      break;
    case Half::kHigh:
      for (int64_t i = 0; i < count; ++i) values[i] = words[i] & 0xffff0000u;
      break;
  }
}

void StoreRow(const uint32_t* values, Half half, int64_t count, uint32_t* words) {
  switch (half) {
    case Half::kBoth:
      std::memcpy(words, values, static_cast<size_t>(count) * sizeof *values);
      break;
    case Half::kLow:
      for (int64_t i = 0; i < count; ++i) words[i] = (words[i] & 0xffff0000u) | (values[i] >> 16);
      break;
    case Half::kHigh:
      for (int64_t i = 0; i < count; ++i) {
        words[i] = (words[i] & 0xffffu) | (values[i] & 0xffff0000u);
      }
      break;
  }
}

// Of each half word: counts `readers` up or down, sets bits, clears bits.
void Adjust(std::vector<uint16_t>* states, const View& view, int readers, uint16_t set,
            uint16_t clear) {
  ForEachRow(view, [&](int64_t word, Half half, int64_t count, int64_t) {
    const uint16_t mask = MaskOf(half);
    const int change = readers * (kCopyReads & mask);
    const auto s = static_cast<uint16_t>(set & mask);
    const auto keep = static_cast<uint16_t>(~(clear & mask));
    uint16_t* const at = states->data() + word;
    for (int64_t i = 0; i < count; ++i)
      at[i] = static_cast<uint16_t>(((at[i] + change) | s) & keep);
  });
}

}  // namespace

int Memories::Add(const std::string& name, const Type& type, const char* fixed) {
  const size_t words = static_cast<size_t>(WordCount(type));
  memories_.push_back(
      {name, type, std::vector<uint32_t>(words, kPoison), std::vector<uint16_t>(words, 0), fixed});
  return static_cast<int>(memories_.size()) - 1;
}

void Memories::Import(int id, const Array& array) {
  Memory& memory = At(id);
  const View view = Whole(id);
  const size_t count = static_cast<size_t>(array.size());
  moved_.resize(count);
  switch (array.dtype()) {
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) moved_[i] = static_cast<uint32_t>(array.bf16()[i]) << 16;
      break;
    case DType::kI1:
      for (size_t i = 0; i < count; ++i) {
        moved_[i] = static_cast<const unsigned char*>(array.data())[i];
      }
      break;
    default:
      std::memcpy(moved_.data(), array.data(), count * sizeof(uint32_t));
  }
  ForEachRow(view, [&](int64_t word, Half half, int64_t n, int64_t at) {
    StoreRow(moved_.data() + at, half, n, memory.words.data() + word);
  });
  Adjust(&memory.states, view, 0, kWritten, 0);
}

Array Memories::Export(int id) const {
  const Memory& memory = At(id);
  Array array(memory.type.dtype, memory.type.shape);
  const size_t count = static_cast<size_t>(array.size());
  std::vector<uint32_t> values(count);
  ForEachRow(Whole(id), [&](int64_t word, Half half, int64_t n, int64_t at) {
    LoadRow(memory.words.data() + word, half, n, values.data() + at);
  });
  switch (array.dtype()) {
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) array.bf16()[i] = static_cast<uint16_t>(values[i] >> 16);
      break;
    case DType::kI1:
      for (size_t i = 0; i < count; ++i) array.Set(static_cast<int64_t>(i), values[i]);
      break;
    default:
      if (count > 0) std::memcpy(array.data(), values.data(), count * sizeof(uint32_t));
  }
  return array;
}

void Memories::Poison(int id, bool written) {
  Memory& memory = At(id);
  std::fill(memory.words.begin(), memory.words.end(), kPoison);
  std::fill(memory.states.begin(), memory.states.end(), written ? kWritten : uint16_t{0});
}

void Memories::Load(const View& view, uint32_t* values) const {
  const Memory& memory = At(view.memory);
  const auto checked =
      static_cast<uint16_t>((check_unwritten_ ? kWritten : 0) | (check_races_ ? kCopyWrites : 0));
  bool wrong = false;
  ForEachRow(view, [&](int64_t word, Half half, int64_t count, int64_t at) {
    wrong |= AnyDiffers(memory.states.data() + word, count, kWritten,
                        static_cast<uint16_t>(checked & MaskOf(half)));
    LoadRow(memory.words.data() + word, half, count, values + at);
  });
  if (wrong) Complain(view, checked, kWritten, "reads");
}

void Memories::Store(const View& view, const uint32_t* values) {
  Memory& memory = At(view.memory);
  if (memory.fixed != nullptr) throw Fault("writes " + memory.name + ", " + memory.fixed);
  const uint16_t checked = check_races_ ? kCopyWrites | kCopyReadsMask : 0;
  bool wrong = false;
  ForEachRow(view, [&](int64_t word, Half half, int64_t count, int64_t at) {
    uint16_t* const states = memory.states.data() + word;
    wrong |= AnyDiffers(states, count, 0, static_cast<uint16_t>(checked & MaskOf(half)));
    StoreRow(values + at, half, count, memory.words.data() + word);
    const auto written = static_cast<uint16_t>(kWritten & MaskOf(half));
    for (int64_t i = 0; i < count; ++i) states[i] |= written;
  });
  if (wrong) Complain(view, checked, 0, "writes");
}

void Memories::Move(const View& from, const View& to) {
  const size_t count = static_cast<size_t>(from.Count());
  moved_.resize(count);
  moved_states_.resize(count);
  const Memory& source = At(from.memory);
  ForEachRow(from, [&](int64_t word, Half half, int64_t n, int64_t at) {
    LoadRow(source.words.data() + word, half, n, moved_.data() + at);
    const uint16_t* const states = source.states.data() + word;
    const int shift = half == Half::kHigh ? 8 : 0;
    for (int64_t i = 0; i < n; ++i) {
      moved_states_[static_cast<size_t>(at + i)] = static_cast<uint16_t>(states[i] >> shift);
    }
  });
  Memory& target = At(to.memory);
  ForEachRow(to, [&](int64_t word, Half half, int64_t n, int64_t at) {
    StoreRow(moved_.data() + at, half, n, target.words.data() + word);
    uint16_t* const states = target.states.data() + word;
    const int shift = half == Half::kHigh ? 8 : 0;
    const uint16_t written = kWritten & MaskOf(half);
    for (int64_t i = 0; i < n; ++i) {
      const int moved = moved_states_[static_cast<size_t>(at + i)] << shift;
      states[i] = static_cast<uint16_t>((states[i] & ~written) | (moved & written));
    }
  });
}

void Memories::BeginReading(const View& view) {
  Memory& memory = At(view.memory);
  bool busy = false, many = false;
  ForEachRow(view, [&](int64_t word, Half half, int64_t count, int64_t) {
    const uint16_t mask = MaskOf(half);
    const uint16_t* const states = memory.states.data() + word;
    busy |= AnyDiffers(states, count, 0, kCopyWrites & mask);
    for (int64_t i = 0; i < count; ++i) {
      many |= (states[i] & mask & 0x00fc) == 0xfc || (states[i] & mask & 0xfc00) == 0xfc00;
    }
  });
  if (check_races_ && busy) Complain(view, kCopyWrites, 0, "starts to copy from");
  if (many) throw Fault("more copies of " + memory.name + " at once than can be followed");
  Adjust(&memory.states, view, 1, 0, 0);
}

void Memories::EndReading(const View& view) { Adjust(&At(view.memory).states, view, -1, 0, 0); }

void Memories::BeginWriting(const View& view) {
  Memory& memory = At(view.memory);
  if (memory.fixed != nullptr) throw Fault("copies to " + memory.name + ", " + memory.fixed);
  bool wrong = false;
  ForEachRow(view, [&](int64_t word, Half half, int64_t count, int64_t) {
    wrong |= AnyDiffers(memory.states.data() + word, count, 0,
                        static_cast<uint16_t>((kCopyWrites | kCopyReadsMask) & MaskOf(half)));
  });
  if (check_races_ && wrong) {
    Complain(view, kCopyWrites | kCopyReadsMask, 0, "starts to copy to");
  }
  Adjust(&memory.states, view, 0, kCopyWrites, 0);
}

void Memories::EndWriting(const View& view) {
  Adjust(&At(view.memory).states, view, 0, 0, kCopyWrites);
}

// Names the first element of the view whose state differs from `expected` in the bits of `checked`.
void Memories::Complain(const View& view, uint16_t checked, uint16_t expected,
                        const char* verb) const {
  const Memory& memory = At(view.memory);
  std::string what;
  ForEachRow(view, [&](int64_t word, Half half, int64_t count, int64_t) {
    for (int64_t i = 0; i < count && what.empty(); ++i) {
      const uint16_t state = memory.states[static_cast<size_t>(word + i)];
      const uint16_t wrong = (state ^ expected) & checked & MaskOf(half);
      if (wrong == 0) continue;
      what = std::string(verb) + " " +
             Place(memory, word + i,
                   half == Half::kBoth   ? -1
                   : half == Half::kHigh ? 1
                                         : 0);
      if ((wrong & kCopyWrites) != 0) {
        what += ", where a copy that is not over writes";
      } else if ((wrong & kCopyReadsMask) != 0) {
        what += ", which a copy that is not over reads";
      } else {
        what += ", which was never written";
      }
    }
  });
  throw Fault(what);
}

// A word's place in its memory's own shape: q[3, 70, 0] of bf16 4x128x64.
std::string Memories::Place(const Memory& memory, int64_t word, int half) const {
  const View whole = WholeView(0, memory.type);
  std::string indices;
  for (int i = 0; i < whole.rank; ++i) {
    int64_t index = word / whole.stride[i];
    word %= whole.stride[i];
    if (i == whole.packed) index = 2 * index + (half == 1 ? 1 : 0);
    indices += (i == 0 ? "" : ", ") + std::to_string(index);
  }
  return memory.name + "[" + indices + "] of " + ToString(memory.type.dtype) + " " +
         ToString(memory.type.shape);
}

CopyQueue::Semaphore& CopyQueue::Find(const View& semaphore) {
  for (Semaphore& s : semaphores_) {
    if (s.memory == semaphore.memory && s.index == semaphore.offset) return s;
  }
  semaphores_.push_back({semaphore.memory, semaphore.offset, 0, {}});
  return semaphores_.back();
}

void CopyQueue::Start(const View& from, const View& to, const View& semaphore, int node) {
  memories_->BeginReading(from);
  memories_->BeginWriting(to);
  if (at_start_) memories_->Move(from, to);
  Semaphore& s = Find(semaphore);
  s.bytes += from.Bytes();
  s.copies.push_back({from, to, node});
}

// Which of several copies on a semaphore a wait was for cannot be told: they finish in any order,
// or a part of each. So all are over when all bytes have been waited for, and none before.
void CopyQueue::Wait(const View& semaphore, int64_t bytes) {
  Semaphore& s = Find(semaphore);
  if (bytes > s.bytes) {
    throw Fault("waits for " + std::to_string(bytes) + " bytes of copies on " +
                memories_->At(s.memory).name + "[" + std::to_string(s.index) + "], where " +
                std::to_string(s.bytes) + " are on their way: it would wait for ever");
  }
  s.bytes -= bytes;
  if (s.bytes != 0) return;
  for (const Copy& copy : s.copies) {
    memories_->EndReading(copy.from);
    memories_->EndWriting(copy.to);
    if (!at_start_) memories_->Move(copy.from, copy.to);
  }
  s.copies.clear();
}

int CopyQueue::Unfinished(std::string* what) const {
  for (const Semaphore& s : semaphores_) {
    if (s.copies.empty()) continue;
    *what = std::to_string(s.bytes) + " bytes of copies on " + memories_->At(s.memory).name + "[" +
            std::to_string(s.index) + "] were not waited for";
    return s.copies.back().node;
  }
  return -1;
}

}  // namespace kda::tpu::ir::evaluate
