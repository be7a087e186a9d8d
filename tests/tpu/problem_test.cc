// What kernels refuse of a problem and of the inputs that addresses are made of.
#include "tpu/problem.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/limits.h"
#include "tpu/decode/decode.h"
#include "tpu/inputs.h"
#include "tpu/ladder/ladder.h"
#include "tpu/mega/mega.h"

namespace kda::tpu {
namespace {

using ir::Array;
using ir::DType;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kTooMany = int64_t{1} << 31;

struct Kernel {
  const char* name;
  std::function<void(const TpuProblem&)> build;
  TpuProblem good;
};

std::vector<Kernel> Kernels() {
  TpuProblem p;
  p.tokens = 128;
  p.heads = 8;
  p.sequences = 2;
  p.lengths = {64, 60};
  TpuProblem decode = p;
  decode.tokens = 2;
  decode.lengths = {1, 1};
  return {{"mega", [](const TpuProblem& x) { BuildMegaKernel(x); }, p},
          {"ladder", [](const TpuProblem& x) { PlanLadder(x, {}); }, p},
          {"decode", [](const TpuProblem& x) { BuildDecodeKernel(x); }, decode}};
}

// Every message names the kernel, the argument, what it is and what it may be.
void ExpectRefused(const Kernel& kernel, const TpuProblem& p,
                   const std::vector<std::string>& words) {
  try {
    kernel.build(p);
    ADD_FAILURE() << kernel.name << " does not refuse: " << words.front() << " " << words.back();
  } catch (const ir::BuildError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.rfind(kernel.name + std::string(": "), 0), 0U) << text;
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
    }
  }
}

TEST(ProblemRefused, Sizes) {
  for (const Kernel& kernel : Kernels()) {
    EXPECT_NO_THROW(kernel.build(kernel.good)) << kernel.name;
    const bool ladder = std::string(kernel.name) == "ladder";
    for (int64_t heads : {0, -8, 1, 12, 100}) {
      if (ladder && heads > 0) continue;
      TpuProblem p = kernel.good;
      p.heads = heads;
      ExpectRefused(kernel, p, {"heads is " + std::to_string(heads), ladder ? "1" : "8"});
    }
    for (int64_t tokens : {int64_t{0}, int64_t{-1}, kTooMany}) {
      TpuProblem p = kernel.good;
      p.tokens = tokens;
      ExpectRefused(kernel, p, {"tokens is " + std::to_string(tokens), "1 to"});
    }
    for (int64_t sequences : {int64_t{0}, int64_t{-3}, kTooMany}) {
      TpuProblem p = kernel.good;
      p.sequences = sequences;
      ExpectRefused(kernel, p, {"sequences is " + std::to_string(sequences), "1 to"});
    }
    TpuProblem p = kernel.good;
    p.heads = kMostHeads;
    p.sequences = int64_t{1} << 20;
    ExpectRefused(kernel, p, {"sequences x heads is 68719476736", "1 to"});
    p = kernel.good;
    p.slots = -7;
    ExpectRefused(kernel, p, {"slots is -7", "0"});
    p = kernel.good;
    p.checkpoint_every = -64;
    ExpectRefused(kernel, p, {"checkpoint_every is -64", "0"});
    p.checkpoint_every = p.tokens + 1;
    ExpectRefused(kernel, p, {"checkpoint_every is " + std::to_string(p.tokens + 1)});
  }
}

TEST(ProblemRefused, WhatOnlySomeTake) {
  const std::vector<Kernel> kernels = Kernels();
  const Kernel &mega = kernels[0], &ladder = kernels[1], &decode = kernels[2];
  TpuProblem p = ladder.good;
  p.slots = 4;
  ExpectRefused(ladder, p, {"slots is 4", "be 0"});
  p = ladder.good;
  p.checkpoint_every = 64;
  ExpectRefused(ladder, p, {"checkpoint_every is 64", "be 0"});
  p = ladder.good;
  p.tokens = kMostTokens;  // and 63 rows more for each sequence
  ExpectRefused(ladder, p, {"tokens + 63 sequences is 2147483646", "1 to"});
  p = decode.good;
  p.checkpoint_every = 1;
  ExpectRefused(decode, p, {"checkpoint_every is 1", "be 0"});
  p = decode.good;
  p.tokens = 3;
  ExpectRefused(decode, p, {"tokens is 3", "2, one token per sequence"});
  p = mega.good;
  p.gate_dtype = DType::kF32;
  ExpectRefused(mega, p, {"gate_dtype is f32", "bf16"});
  p = mega.good;
  p.checkpoint_every = 128;
  EXPECT_NO_THROW(mega.build(p));
}

// Refused before anything is built: code and tables that grow with the heads
// would not fit into memory.
TEST(ProblemRefused, MoreHeadsThanTheLibraryHas) {
  EXPECT_EQ(kMostHeads, core::LimitOf(core::Limit::kHeads).max);
  for (const Kernel& kernel : Kernels()) {
    for (int64_t heads : {kMostHeads + 8, int64_t{1} << 28, int64_t{1} << 40}) {
      TpuProblem p = kernel.good;
      p.heads = heads;
      ExpectRefused(kernel, p, {"heads is " + std::to_string(heads), "1 to 65536"});
    }
    for (int64_t bytes : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      TpuProblem p = kernel.good;
      p.vmem_bytes = bytes;
      ExpectRefused(kernel, p, {"vmem_bytes is " + std::to_string(bytes), "1 to"});
    }
  }
}

TEST(ProblemRefused, PoolsBeyondWhatCanBeAddressed) {
  for (const Kernel& kernel : Kernels()) {
    if (std::string(kernel.name) == "ladder") continue;
    TpuProblem p = kernel.good;
    p.slots = kMostTokens;
    ExpectRefused(kernel, p, {"slots x heads is 17179868160", "0 to 2147483520"});
  }
}

// What decode has no VMEM for it says in heads, and takes all that it says it takes.
TEST(ProblemRefused, HeadsOfDecodeByTheirVmem) {
  const Kernel decode = Kernels()[2];
  for (int64_t sequences : {1, 16, 300}) {
    TpuProblem p = decode.good;
    p.tokens = p.sequences = sequences;
    p.lengths.assign(static_cast<size_t>(sequences), 1);
    p.heads = kMostHeads;
    std::string text;
    try {
      decode.build(p);
    } catch (const Refusal& refusal) {
      EXPECT_EQ(refusal.argument, "heads");
      EXPECT_EQ(refusal.value, "65536");
      text = refusal.allowed;
    }
    ASSERT_EQ(text.rfind("at most ", 0), 0U) << text;
    EXPECT_NE(text.find(std::to_string(sequences) + " sequence"), std::string::npos) << text;
    const int64_t most = std::stoll(text.substr(8));
    p.heads = most;
    EXPECT_NO_THROW(decode.build(p)) << most;
    p.heads = most + 8;
    ExpectRefused(
        decode, p,
        {"heads is " + std::to_string(most + 8), "at most " + std::to_string(most) + " with"});
  }
  TpuProblem p = decode.good;
  p.vmem_bytes = 1 << 20;
  ExpectRefused(decode, p, {"vmem_bytes is 1048576", "more: 8 heads"});
}

TEST(ProblemRefused, OrdersOfEmissionThatAreNone) {
  const TpuProblem p = Kernels()[0].good;
  for (double MegaOptions::*place :
       {&MegaOptions::start_a, &MegaOptions::end_a, &MegaOptions::start_b, &MegaOptions::end_b,
        &MegaOptions::start_c, &MegaOptions::end_c, &MegaOptions::start_d, &MegaOptions::end_d,
        &MegaOptions::beta, &MegaOptions::copies}) {
    for (double value : {kNaN, kInfinity, -kInfinity, 1e300}) {
      MegaOptions options = MegaDefaults(p);
      options.*place = value;
      try {
        BuildMegaKernel(p, options);
        ADD_FAILURE() << value;
      } catch (const Refusal& refusal) {
        EXPECT_EQ(refusal.allowed, "-1e6 to 1e6 steps");
        EXPECT_LT(refusal.value.size(), 10u) << refusal.value;
      }
    }
  }
}

TEST(ProblemRefused, Lengths) {
  for (const Kernel& kernel : Kernels()) {
    TpuProblem p = kernel.good;
    p.lengths = {1};
    ExpectRefused(kernel, p, {"number of lengths is 1", "2, one for each"});
    p.lengths = {1, 1, 1};
    ExpectRefused(kernel, p, {"number of lengths is 3", "2, one for each"});
    p.lengths = {1, -1};
    ExpectRefused(kernel, p, {"lengths[1] is -1", "0 to " + std::to_string(p.tokens - 1)});
    p.lengths = {1, kTooMany * kTooMany};
    ExpectRefused(kernel, p, {"lengths[1] is", "0 to " + std::to_string(p.tokens - 1)});
    p.lengths = {p.tokens, 1};
    ExpectRefused(kernel, p, {"lengths[1] is 1", "be 0"});
  }
  const Kernel decode = Kernels()[2];
  TpuProblem p = decode.good;
  p.lengths = {1, 0};
  ExpectRefused(decode, p, {"lengths[1] is 0", "1 token of each sequence"});
  p.lengths = {0, 2};
  ExpectRefused(decode, p, {"lengths[0] is 0", "1 token of each sequence"});
}

TEST(ProblemRefused, DtypesAndNumbers) {
  for (const Kernel& kernel : Kernels()) {
    TpuProblem p = kernel.good;
    p.gate_dtype = DType::kI32;
    ExpectRefused(kernel, p, {"gate_dtype is i32", "bf16"});
    p = kernel.good;
    p.beta_dtype = DType::kI32;
    ExpectRefused(kernel, p, {"beta_dtype is i32", "bf16 or f32"});
    for (double bound : {1.0, kInfinity, -kInfinity, kNaN, -1.01e38, -1e300}) {
      p = kernel.good;
      p.lower_bound = bound;
      ExpectRefused(kernel, p, {"lower_bound is", "at most 0"});
      p.gate = KDA_GATE_SOFTPLUS;  // which has none
      EXPECT_NO_THROW(kernel.build(p)) << kernel.name;
    }
    for (double scale : {kNaN, kInfinity, 1e300}) {
      p = kernel.good;
      p.scale = scale;
      ExpectRefused(kernel, p, {"scale is", "finite"});
    }
    p = kernel.good;
    p.gate = static_cast<kda_gate>(3);
    ExpectRefused(kernel, p, {"gate is 3", "bounded, softplus or log"});
  }
}

// --- Inputs ---

struct Inputs {
  hlo::Module module{"kda"};
  hlo::Arrays arrays;

  // Zeros, sequences as the problem has them, slots in turn.
  Inputs(const TpuProblem& p, const std::function<void(const TpuProblem&, hlo::Module*)>& build) {
    build(p, &module);
    for (const hlo::Port& port : module.inputs()) {
      const hlo::Type type = module.Whole(port);
      Array array(type.dtype, type.shape);
      double token = 0;
      for (int64_t i = 0; i < array.size() && type.dtype == DType::kI32; ++i) {
        array.Set(i, port.name == "cu_seqlens" ? token : static_cast<double>(i));
        if (i < p.sequences) token += static_cast<double>(p.lengths[static_cast<size_t>(i)]);
      }
      arrays[port.name] = array;
    }
  }

  // The message for other numbers; empty: they are taken.
  std::string With(const std::string& name, const std::vector<int32_t>& numbers) const {
    hlo::Arrays changed = arrays;
    changed[name] = Array::I32({static_cast<int64_t>(numbers.size())}, numbers);
    try {
      CheckInputs(module, changed);
    } catch (const ir::BuildError& error) {
      return error.what();
    }
    return "";
  }
};

void Mega(const TpuProblem& p, hlo::Module* m) { BuildMega(p, m); }
TEST(ProblemRefused, PreciseButForMega) {
  for (const Kernel& kernel : Kernels()) {
    TpuProblem p = kernel.good;
    p.precise = true;
    if (std::string(kernel.name) == "mega") {
      EXPECT_NO_THROW(kernel.build(p));
    } else {
      ExpectRefused(kernel, p, {"precise is 1", "0"});
    }
  }
}

TEST(CheckInputs, Offsets) {
  const Inputs in(Kernels()[0].good, Mega);
  for (const std::vector<int32_t>& good :
       {std::vector<int32_t>{0, 64, 124}, {0, 0, 0}, {0, 128, 128}, {0, 0, 128}}) {
    EXPECT_EQ(in.With("cu_seqlens", good), "");
  }
  EXPECT_EQ(in.With("cu_seqlens", {1, 64, 128}), "input: cu_seqlens[0] is 1, but must be 0");
  EXPECT_EQ(in.With("cu_seqlens", {-64, 64, 128}), "input: cu_seqlens[0] is -64, but must be 0");
  EXPECT_EQ(in.With("cu_seqlens", {0, 64, 63}),
            "input: cu_seqlens[2] is 63, but must be 64 to 128");
  EXPECT_EQ(in.With("cu_seqlens", {0, 129, 129}),
            "input: cu_seqlens[1] is 129, but must be 0 to 128");
  EXPECT_NE(in.With("cu_seqlens", {0, 64}).find("cu_seqlens is tensor<2xi32>"), std::string::npos);
}

TEST(CheckInputs, Slots) {
  for (size_t kernel : {0, 2}) {
    TpuProblem p = Kernels()[kernel].good;
    p.sequences = 3;
    p.lengths.push_back(kernel == 0 ? 2 : 1);
    if (kernel == 2) p.tokens = 3;
    p.slots = 5;
    const auto build = kernel == 0 ? Mega : BuildDecode;
    const Inputs in(p, build);
    EXPECT_EQ(in.With("initial_slots", {0, 1, 2}), "");
    EXPECT_EQ(in.With("initial_slots", {4, 1, -1}), "");
    EXPECT_EQ(in.With("final_slots", {0, -1, 4}), "");
    EXPECT_EQ(in.With("initial_slots", {0, 1, 5}),
              "input: initial_slots[2] is 5, but must be 0 to 4");
    EXPECT_EQ(in.With("final_slots", {7, 1, 2}), "input: final_slots[0] is 7, but must be 0 to 4");
    EXPECT_EQ(in.With("final_slots", {3, 1, 3}),
              "input: final_slots[2] is 3, but must be another than final_slots[0]");
    EXPECT_EQ(in.With("final_slots", {1, 4, 3}),
              "input: initial_slots[1] is 1, but must be another than final_slots[0]");
    p.initial_state = false;
    EXPECT_EQ(Inputs(p, build).With("initial_slots", {3, 3, 3}), "");
    p.initial_state = true;
    p.final_state = false;
    EXPECT_EQ(Inputs(p, build).With("final_slots", {3, 3, 3}), "");
  }
}

// What a skipped sequence does not write may be written by another.
TEST(CheckInputs, SkippedSequencesWriteNothing) {
  TpuProblem p = Kernels()[0].good;
  p.slots = 3;
  Inputs in(p, Mega);
  in.arrays["initial_slots"] = Array::I32({2}, {-1, 2});
  EXPECT_EQ(in.With("final_slots", {2, 2}), "");
}

}  // namespace
}  // namespace kda::tpu
