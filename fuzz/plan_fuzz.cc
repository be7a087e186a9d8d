// Problems and options with fields overwritten: kda_plan_create refuses or takes them. A refusal
// names an argument; what is taken is small enough to be made, and its
// queries work. Nothing is run.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kda/kda.hpp"

namespace {

constexpr int64_t kValues[] = {0,         1,         -1,        2,         3,         64,
                               128,       256,       257,       65535,     65536,     65537,
                               INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1LL << 31, 1LL << 32,
                               1LL << 40, 1LL << 60, 5,         4,         8};

int64_t Number(FuzzedDataProvider* bytes) {
  return bytes->ConsumeBool() ? bytes->PickValueInArray(kValues)
                              : bytes->ConsumeIntegralInRange<int64_t>(-300, 300);
}

// The fields of `tensor`, one of which is overwritten.
void Spoil(FuzzedDataProvider* bytes, kda_tensor* tensor) {
  const int which = bytes->ConsumeIntegralInRange<int>(0, 9);
  const int64_t value = Number(bytes);
  if (which == 0) {
    tensor->dtype = static_cast<int32_t>(value);
  } else if (which == 1) {
    tensor->rank = static_cast<int32_t>(value);
  } else if (which < 6) {
    tensor->shape[which - 2] = value;
  } else {
    tensor->stride[which - 6] = value;
  }
}

// Never `data` alone: the library must be able to trust that it holds `count` numbers.
void Spoil(FuzzedDataProvider* bytes, const std::vector<int64_t>& numbers, kda_index* index) {
  *index = kda::Index(numbers);
  switch (bytes->ConsumeIntegralInRange<int>(0, 4)) {
    case 0:
      index->dtype = static_cast<int32_t>(Number(bytes));
      break;
    case 1:
      index->reserved = static_cast<int32_t>(Number(bytes));
      break;
    case 2:
      index->stride = -1;
      break;
    case 3:
      index->count = -index->count;
      break;
    default:
      break;
  }
}

struct Fuzzed {
  kda::Problem problem;
  kda::Options options;
  std::vector<int64_t> indices[5];

  explicit Fuzzed(FuzzedDataProvider* bytes);
  void SpoilOne(FuzzedDataProvider* bytes);
  void SpoilScalar(FuzzedDataProvider* bytes);
};

Fuzzed::Fuzzed(FuzzedDataProvider* bytes) {
  problem.q = problem.k = problem.v = problem.g = problem.o = kda::Dense(KDA_BF16, {1, 70, 2, 64});
  problem.beta = kda::Dense(KDA_F32, {1, 70, 2});
  problem.gate = bytes->ConsumeIntegralInRange<int32_t>(0, 2);
  if (problem.gate != KDA_GATE_LOG) problem.A_log = kda::Dense(KDA_F32, {2});
  if (problem.gate == KDA_GATE_BOUNDED) problem.lower_bound = -5;
  if (bytes->ConsumeBool()) problem.initial_state = kda::Dense(KDA_F32, {1, 2, 64, 64});
  if (bytes->ConsumeBool()) problem.final_state = kda::Dense(KDA_BF16, {1, 2, 64, 64});
  const int spoilt = bytes->ConsumeIntegralInRange<int>(1, 4);
  for (int i = 0; i < spoilt; ++i) SpoilOne(bytes);
}

void Fuzzed::SpoilOne(FuzzedDataProvider* bytes) {
  kda_tensor* const tensors[] = {&problem.q,           &problem.k,          &problem.v,
                                 &problem.g,           &problem.beta,       &problem.A_log,
                                 &problem.dt_bias,     &problem.o,          &problem.initial_state,
                                 &problem.final_state, &problem.checkpoints};
  kda_index* const fields[] = {&problem.cu_seqlens, &problem.slots, &problem.has_initial,
                               &problem.checkpoint_offsets, &problem.checkpoint_tokens};
  switch (bytes->ConsumeIntegralInRange<int>(0, 2)) {
    case 0:
      return Spoil(bytes, tensors[bytes->ConsumeIntegralInRange<int>(0, 10)]);
    case 1: {
      const int which = bytes->ConsumeIntegralInRange<int>(0, 4);
      indices[which].clear();
      for (int n = bytes->ConsumeIntegralInRange<int>(0, 6); n > 0; --n) {
        indices[which].push_back(Number(bytes));
      }
      return Spoil(bytes, indices[which], fields[which]);
    }
    default:
      return SpoilScalar(bytes);
  }
}

void Fuzzed::SpoilScalar(FuzzedDataProvider* bytes) {
  const int64_t value = Number(bytes);
  const auto word = static_cast<int32_t>(value);
  switch (bytes->ConsumeIntegralInRange<int>(0, 15)) {
    case 0:
      problem.struct_size = static_cast<size_t>(value) % (sizeof(kda_problem) + 1);
      break;
    case 1:
      options.struct_size = static_cast<size_t>(value) % (sizeof(kda_options) + 1);
      break;
    case 2:
      problem.mode = word;
      break;
    case 3:
      problem.gate = word;
      break;
    case 4:
      problem.state_order = word;
      break;
    case 5:
      problem.reserved = word;
      break;
    case 6:
      problem.flags = static_cast<uint64_t>(value);
      break;
    case 7:
      problem.scale = bytes->ConsumeFloatingPoint<double>();
      break;
    case 8:
      problem.lower_bound = bytes->ConsumeFloatingPoint<double>();
      break;
    case 9:
      problem.checkpoint_every = value;
      break;
    case 10:
      options.backend = word;
      break;
    case 11:
      options.isa = word;
      break;
    case 12:
      options.solver = word;
      break;
    case 13:
      options.threads = word % 9;  // not a thousand real threads
      break;
    case 14:
      options.switches_off = static_cast<uint32_t>(value);
      break;
    default:
      options.flags = static_cast<uint32_t>(value);
      break;
  }
}

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "plan_fuzz: %s\n", what);
  std::abort();
}

void CheckPlan(kda_plan* plan) {
  kda::PlanInfo info;
  Require(kda_plan_get_info(plan, &info) == KDA_OK, "no info");
  Require(std::strlen(kda_plan_describe(plan)) > 0, "no description");
  Require(info.chunks >= 0 && info.tokens >= 0 && info.sequences >= 0, "negative sizes");
  int64_t sequence = 0, token = 0;
  int32_t written = 0;
  for (int64_t row = 0; row < info.checkpoints && row < 100; ++row) {
    Require(kda_plan_checkpoint(plan, row, &sequence, &token, &written) == KDA_OK, "checkpoint");
    Require(sequence >= 0 && sequence < info.sequences && token >= 1, "checkpoint out of range");
  }
  Require(kda_plan_checkpoint(plan, info.checkpoints, &sequence, &token, &written) != KDA_OK,
          "a checkpoint past the last");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider bytes(data, size);
  const Fuzzed fuzzed(&bytes);
  kda_plan* plan = nullptr;
  kda_error error = {};
  const kda_status status = kda_plan_create(&fuzzed.problem, &fuzzed.options, &plan, &error);
  if (status == KDA_OK) {
    CheckPlan(plan);
    kda_plan_destroy(plan);
    return 0;
  }
  Require(plan == nullptr, "a plan despite an error");
  Require(kda_status_name(status) != nullptr, "a status without a name");
  Require(std::memchr(error.argument, 0, sizeof error.argument) != nullptr &&
              std::memchr(error.message, 0, sizeof error.message) != nullptr,
          "an unterminated message");
  Require(error.argument[0] != 0 && error.message[0] != 0, "a refusal without words");
  Require(std::strchr(error.message, '\n') == nullptr, "a message of several lines");
  return 0;
}
