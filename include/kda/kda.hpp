// libkda: Kimi Delta Attention (KDA), forward pass. C++17, header-only over the C ABI of kda.h,
// which documents every field: shapes, dtypes, units and errors.
//
//   kda::Problem problem;                        // shapes, dtypes, gate
//   problem.q = kda::Dense(KDA_BF16, {1, T, H, 128});
//   ...
//   kda::Plan plan;
//   kda::Status status = kda::Plan::Create(problem, kda::Options(), &plan);
//   if (!status.ok()) return Fail(status.message());
//   kda::Args args;                              // pointers
//   args.q = q; ...
//   status = plan.Run(args);                     // as often as wanted, from any thread
#ifndef KDA_KDA_HPP_
#define KDA_KDA_HPP_

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "kda/kda.h"

namespace kda {

// A kda_status with the argument at fault and a one-line message.
class Status {
 public:
  Status() = default;
  Status(kda_status code, const kda_error& error)
      : code_(code), argument_(error.argument), message_(error.message) {}

  bool ok() const { return code_ == KDA_OK; }
  kda_status code() const { return code_; }
  const std::string& argument() const { return argument_; }
  const std::string& message() const { return message_; }

 private:
  kda_status code_ = KDA_OK;
  std::string argument_;
  std::string message_;
};

// Structs of the C ABI, initialised.
struct Problem : kda_problem {
  Problem() { kda_problem_init(this); }
};
struct Options : kda_options {
  Options() { kda_options_init(this); }
};
struct Args : kda_args {
  Args() { kda_args_init(this); }
};
struct PlanInfo : kda_plan_info {
  PlanInfo() { kda_plan_info_init(this); }
};

// A dense, row-major tensor. More than KDA_MAX_RANK dimensions make a rank the library refuses.
inline kda_tensor Dense(kda_dtype dtype, std::initializer_list<int64_t> shape) {
  kda_tensor tensor = {};
  tensor.dtype = dtype;
  for (int64_t size : shape) {
    if (tensor.rank < KDA_MAX_RANK) tensor.shape[tensor.rank] = size;
    ++tensor.rank;
  }
  return tensor;
}

// Views of host vectors, which must outlive the call that makes the plan.
inline kda_index Index(const std::vector<int64_t>& values) {
  static const int64_t kNone = 0;  // an empty vector is "given, of size 0", not "absent"
  return kda_index_of(values.empty() ? &kNone : values.data(), KDA_I64,
                      static_cast<int64_t>(values.size()));
}
inline kda_index Index(const std::vector<int32_t>& values) {
  static const int32_t kNone = 0;
  return kda_index_of(values.empty() ? &kNone : values.data(), KDA_I32,
                      static_cast<int64_t>(values.size()));
}

// A validated problem, ready to run. Movable; Run and the queries are safe from many threads.
class Plan {
 public:
  Plan() = default;
  Plan(Plan&& other) noexcept : plan_(std::exchange(other.plan_, nullptr)) {}
  Plan& operator=(Plan&& other) noexcept {
    std::swap(plan_, other.plan_);
    return *this;
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() { kda_plan_destroy(plan_); }

  static Status Create(const kda_problem& problem, const kda_options& options, Plan* plan) {
    kda_error error = {};
    kda_plan* created = nullptr;
    const kda_status code = kda_plan_create(&problem, &options, &created, &error);
    if (code == KDA_OK) {
      kda_plan_destroy(plan->plan_);
      plan->plan_ = created;
    }
    return Status(code, error);
  }

  Status Run(const kda_args& args) const {
    kda_error error = {};
    const kda_status code = kda_run(plan_, &args, &error);
    return Status(code, error);
  }

  PlanInfo Info() const {
    PlanInfo info;
    kda_plan_get_info(plan_, &info);
    return info;
  }
  std::string Describe() const { return plan_ == nullptr ? "" : kda_plan_describe(plan_); }
  const kda_plan* get() const { return plan_; }

 private:
  kda_plan* plan_ = nullptr;
};

}  // namespace kda

#endif  // KDA_KDA_HPP_
