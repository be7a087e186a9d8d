// The index arrays of a problem, and the lists made of them: sequences, chunks, checkpoints.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/limits.h"
#include "core/tensor.h"
#include "core/validate.h"

namespace kda::core {
namespace {

// A checked kda_index.
class IndexArray {
 public:
  // `count`: the length it must have, as in `of`; of == nullptr: any.
  kda_status Check(const kda_index& in, const char* name, int64_t count, const char* of,
                   kda_error* error) {
    name_ = name;
    if (in.data == nullptr) {
      if (in.count == 0) return KDA_OK;
      return Fail(error, KDA_ERROR_NULL_POINTER, name,
                  "data is NULL but count is %" PRId64 ", must be 0 when absent", in.count);
    }
    if (in.dtype != KDA_I32 && in.dtype != KDA_I64) {
      const char* dtype = kda_dtype_name(in.dtype);
      return Fail(error, KDA_ERROR_DTYPE, name, "dtype is %d (%s), must be i32 or i64", in.dtype,
                  dtype != nullptr ? dtype : "unknown");
    }
    if (in.reserved != 0) {
      return Fail(error, KDA_ERROR_ENUM, name, "reserved is %d, must be 0", in.reserved);
    }
    if (in.count < 0) {
      return Fail(error, KDA_ERROR_SHAPE, name, "count is %" PRId64 ", must not be negative",
                  in.count);
    }
    if (of != nullptr && in.count != count) {
      return Fail(error, KDA_ERROR_SHAPE, name,
                  "count is %" PRId64 ", must be %" PRId64 ", as in %s", in.count, count, of);
    }
    if (in.stride < 0) {
      return Fail(error, KDA_ERROR_STRIDE, name, "stride is %" PRId64 ", must not be negative",
                  in.stride);
    }
    bytes_ = SizeOfDtype(in.dtype);
    stride_ = in.stride == 0 ? 1 : in.stride;
    int64_t extent;
    if (__builtin_mul_overflow(stride_, bytes_, &stride_) ||
        __builtin_mul_overflow(stride_, std::max<int64_t>(in.count, 1), &extent)) {
      return Fail(error, KDA_ERROR_OVERFLOW, name,
                  "count %" PRId64 " at stride %" PRId64 " does not fit in 2^63 - 1 bytes",
                  in.count, in.stride);
    }
    data_ = static_cast<const char*>(in.data);
    count_ = in.count;
    return KDA_OK;
  }

  bool present() const { return data_ != nullptr; }
  int64_t count() const { return count_; }
  const char* name() const { return name_; }
  int64_t operator[](int64_t i) const {
    const char* const at = data_ + i * stride_;
    if (bytes_ == 4) {
      int32_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    int64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  // Offsets: the first 0, none decreasing, the last at most `last`.
  kda_status CheckOffsets(int64_t last, kda_status code, kda_error* error) const {
    if ((*this)[0] != 0) {
      return Fail(error, code, name_, "[0] is %" PRId64 ", must be 0", (*this)[0]);
    }
    for (int64_t i = 1; i < count_; ++i) {
      if ((*this)[i] < (*this)[i - 1]) {
        return Fail(error, code, name_,
                    "[%" PRId64 "] is %" PRId64 ", must not be below [%" PRId64 "], %" PRId64, i,
                    (*this)[i], i - 1, (*this)[i - 1]);
      }
      if ((*this)[i] > last) {
        return Fail(error, code, name_, "[%" PRId64 "] is %" PRId64 ", must be at most %" PRId64, i,
                    (*this)[i], last);
      }
    }
    return KDA_OK;
  }

 private:
  const char* name_ = "";
  const char* data_ = nullptr;
  int64_t count_ = 0;
  int64_t stride_ = 0;  // bytes
  int64_t bytes_ = 0;   // of one number
};

// Where each sequence lies.
kda_status MakeSequences(const kda_problem& in, kda_plan* plan, kda_error* error) {
  const Problem& p = plan->problem;
  plan->zero_from = p.tokens;
  IndexArray offsets;
  kda_status status = offsets.Check(in.cu_seqlens, "cu_seqlens", 0, nullptr, error);
  if (status != KDA_OK) return status;
  if (!offsets.present()) {
    plan->sequences.resize(static_cast<size_t>(p.batch));
    for (int64_t n = 0; n < p.batch; ++n) {
      plan->sequences[static_cast<size_t>(n)].batch = n;
      plan->sequences[static_cast<size_t>(n)].length = p.tokens;
    }
    return KDA_OK;
  }
  if (p.batch != 1) {
    return Fail(error, KDA_ERROR_SHAPE, "cu_seqlens",
                "given with B = %" PRId64 ", must be absent or B must be 1", p.batch);
  }
  if (offsets.count() < 1) {
    return Fail(error, KDA_ERROR_CU_SEQLENS, "cu_seqlens",
                "count is 0, must be the number of sequences plus 1");
  }
  status = CheckLimit(Limit::kSequences, offsets.count() - 1, "cu_seqlens", KDA_ERROR_SHAPE, error);
  if (status == KDA_OK) status = offsets.CheckOffsets(p.tokens, KDA_ERROR_CU_SEQLENS, error);
  if (status != KDA_OK) return status;
  plan->sequences.resize(static_cast<size_t>(offsets.count() - 1));
  for (int64_t n = 0; n + 1 < offsets.count(); ++n) {
    Sequence& s = plan->sequences[static_cast<size_t>(n)];
    s.first = offsets[n];
    s.length = offsets[n + 1] - s.first;
  }
  plan->zero_from = offsets[offsets.count() - 1];
  return KDA_OK;
}

kda_status CheckState(const kda_tensor& in, Axis rows, bool output, const Problem& p,
                      kda_tensor* out, kda_error* error) {
  if (in.rank == 0) return KDA_OK;
  const Axis hv = {"HV", p.value_heads, "v"}, k = {"K", p.dim_k, "q"}, v = {"V", p.dim_v, "v"};
  const char* const name = out == &p.initial_state ? "initial_state"
                           : out == &p.final_state ? "final_state"
                                                   : "checkpoints";
  if (p.state_order == KDA_STATE_VK) {
    return CheckTensor({name, kStateDtypes, 4, {rows, hv, v, k}, 2, output}, in, out, error);
  }
  return CheckTensor({name, kStateDtypes, 4, {rows, hv, k, v}, 2, output}, in, out, error);
}

kda_status CheckSlot(int64_t n, int64_t slot, const kda_tensor& state, const char* name,
                     kda_error* error) {
  if (state.rank == 0 || slot < state.shape[0]) return KDA_OK;
  return Fail(error, KDA_ERROR_SLOT, "slots",
              "[%" PRId64 "] is %" PRId64 ", must be -1 (skip) or from 0 to %" PRId64
              ", the last row of %s",
              n, slot, state.shape[0] - 1, name);
}

kda_status CheckNoneTwice(const std::vector<Sequence>& sequences, kda_error* error) {
  std::vector<int64_t> written;
  written.reserve(sequences.size());
  for (const Sequence& s : sequences) {
    if (s.final_slot >= 0) written.push_back(s.final_slot);
  }
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  if (twice == written.end()) return KDA_OK;
  return Fail(error, KDA_ERROR_SLOT, "slots",
              "%" PRId64
              " is given to more than one sequence, must be given to one at most where "
              "final_state is written",
              *twice);
}

// The states' tensors and the row of each sequence in them.
kda_status PlaceStates(const kda_problem& in, kda_plan* plan, kda_error* error) {
  Problem* const p = &plan->problem;
  const auto count = static_cast<int64_t>(plan->sequences.size());
  const char* const of = in.cu_seqlens.data != nullptr ? "cu_seqlens" : "q (B)";
  IndexArray slots, has_initial;
  kda_status status = slots.Check(in.slots, "slots", count, of, error);
  if (status == KDA_OK) status = has_initial.Check(in.has_initial, "has_initial", count, of, error);
  const Axis rows = slots.present() ? Axis{"slots", 0, nullptr} : Axis{"N", count, of};
  if (status == KDA_OK) {
    status = CheckState(in.initial_state, rows, false, *p, &p->initial_state, error);
  }
  if (status == KDA_OK) {
    status = CheckState(in.final_state, rows, true, *p, &p->final_state, error);
  }
  if (status != KDA_OK) return status;
  for (int64_t n = 0; n < count; ++n) {
    Sequence& s = plan->sequences[static_cast<size_t>(n)];
    const int64_t slot = slots.present() ? slots[n] : n;
    if (slot < -1) {
      return Fail(error, KDA_ERROR_SLOT, "slots",
                  "[%" PRId64 "] is %" PRId64 ", must be -1 (skip) or a row of the states", n,
                  slot);
    }
    status = CheckSlot(n, slot, p->initial_state, "initial_state", error);
    if (status == KDA_OK) status = CheckSlot(n, slot, p->final_state, "final_state", error);
    if (status != KDA_OK) return status;
    s.skip = slot < 0;
    const bool starts = !has_initial.present() || has_initial[n] != 0;
    if (p->initial_state.rank != 0 && starts) s.initial_slot = slot;
    if (p->final_state.rank != 0) s.final_slot = slot;
  }
  return slots.present() ? CheckNoneTwice(plan->sequences, error) : KDA_OK;
}

// Every n tokens: how many rows.
int64_t CountEvery(const std::vector<Sequence>& sequences, int64_t every) {
  int64_t rows = 0;
  for (const Sequence& s : sequences) rows += s.length / every;
  return rows;
}

void ListEvery(int64_t every, int64_t rows, kda_plan* plan) {
  plan->checkpoints.reserve(static_cast<size_t>(rows));
  for (size_t n = 0; n < plan->sequences.size(); ++n) {
    Sequence& s = plan->sequences[n];
    s.checkpoint_begin = static_cast<int64_t>(plan->checkpoints.size());
    for (int64_t c = 1; c <= s.length / every; ++c) {
      plan->checkpoints.push_back({static_cast<int64_t>(n), c * every, !s.skip});
    }
    s.checkpoint_end = static_cast<int64_t>(plan->checkpoints.size());
  }
}

kda_status ListGiven(const IndexArray& offsets, const IndexArray& tokens, kda_plan* plan,
                     kda_error* error) {
  const kda_status status = offsets.CheckOffsets(tokens.count(), KDA_ERROR_CHECKPOINT, error);
  if (status != KDA_OK) return status;
  const int64_t last = offsets[offsets.count() - 1];
  if (last != tokens.count()) {
    return Fail(error, KDA_ERROR_CHECKPOINT, "checkpoint_offsets",
                "the last one is %" PRId64 ", must be %" PRId64 ", the count of checkpoint_tokens",
                last, tokens.count());
  }
  plan->checkpoints.reserve(static_cast<size_t>(tokens.count()));
  for (size_t n = 0; n < plan->sequences.size(); ++n) {
    Sequence& s = plan->sequences[n];
    s.checkpoint_begin = offsets[static_cast<int64_t>(n)];
    s.checkpoint_end = offsets[static_cast<int64_t>(n) + 1];
    int64_t before = 0;
    for (int64_t i = s.checkpoint_begin; i < s.checkpoint_end; ++i) {
      const int64_t token = tokens[i];
      if (token <= before) {
        return Fail(error, KDA_ERROR_CHECKPOINT, "checkpoint_tokens",
                    "[%" PRId64 "] is %" PRId64 ", must be above %" PRId64
                    ": increasing from 1 on within a sequence",
                    i, token, before);
      }
      plan->checkpoints.push_back({static_cast<int64_t>(n), token, !s.skip && token <= s.length});
      before = token;
    }
  }
  return KDA_OK;
}

kda_status MakeCheckpoints(const kda_problem& in, kda_plan* plan, kda_error* error) {
  Problem* const p = &plan->problem;
  kda_status status = CheckLimit(Limit::kCheckpointEvery, in.checkpoint_every, "checkpoint_every",
                                 KDA_ERROR_CHECKPOINT, error);
  IndexArray offsets, tokens;
  if (status == KDA_OK) {
    status =
        offsets.Check(in.checkpoint_offsets, "checkpoint_offsets",
                      static_cast<int64_t>(plan->sequences.size()) + 1, "sequences plus 1", error);
  }
  if (status == KDA_OK) {
    status = tokens.Check(in.checkpoint_tokens, "checkpoint_tokens", 0, nullptr, error);
  }
  if (status != KDA_OK) return status;
  const bool listed = offsets.present() || tokens.present();
  if (listed && (!offsets.present() || !tokens.present())) {
    return Fail(error, KDA_ERROR_CHECKPOINT,
                offsets.present() ? "checkpoint_tokens" : "checkpoint_offsets",
                "absent, must be given together with %s",
                offsets.present() ? offsets.name() : tokens.name());
  }
  if (listed && in.checkpoint_every != 0) {
    return Fail(error, KDA_ERROR_CHECKPOINT, "checkpoint_every",
                "value is %" PRId64 ", must be 0 when checkpoint_tokens is given",
                in.checkpoint_every);
  }
  const bool wanted = listed || in.checkpoint_every != 0;
  if (wanted != (in.checkpoints.rank != 0)) {
    return Fail(error, KDA_ERROR_CHECKPOINT, "checkpoints", "rank is %d, must be %s",
                in.checkpoints.rank,
                wanted ? "4: checkpoint_every or checkpoint_tokens is given"
                       : "0 (absent): neither checkpoint_every nor checkpoint_tokens is given");
  }
  if (!wanted) return KDA_OK;
  const int64_t rows = listed ? tokens.count() : CountEvery(plan->sequences, in.checkpoint_every);
  const Axis axis = {"C", rows, listed ? "checkpoint_tokens" : "checkpoint_every"};
  status = CheckState(in.checkpoints, axis, true, *p, &p->checkpoints, error);
  if (status != KDA_OK) return status;
  if (listed) return ListGiven(offsets, tokens, plan, error);
  ListEvery(in.checkpoint_every, rows, plan);
  return KDA_OK;
}

void ListChunks(kda_plan* plan) {
  int64_t chunks = 0;
  for (Sequence& s : plan->sequences) {
    s.chunk_base = chunks;
    if (s.skip) continue;
    const int64_t own = CeilDiv(s.length, kChunk);
    chunks += own;
    plan->max_chunks = std::max(plan->max_chunks, own);
    plan->sequence_tokens += s.length;
  }
  plan->chunks.reserve(static_cast<size_t>(chunks));
  for (size_t n = 0; n < plan->sequences.size(); ++n) {
    const Sequence& s = plan->sequences[n];
    const int64_t own = s.skip ? 0 : CeilDiv(s.length, kChunk);
    for (int64_t c = 0; c < own; ++c) {
      plan->chunks.push_back({static_cast<int32_t>(n), static_cast<int32_t>(c)});
    }
  }
}

}  // namespace

kda_status MakeSchedule(const kda_problem& in, kda_plan* plan, kda_error* error) {
  kda_status status = MakeSequences(in, plan, error);
  if (status == KDA_OK) status = PlaceStates(in, plan, error);
  if (status == KDA_OK) status = MakeCheckpoints(in, plan, error);
  if (status == KDA_OK) ListChunks(plan);
  return status;
}

}  // namespace kda::core
