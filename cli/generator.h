// Seeded inputs. Every value is a function of (seed, tensor, index) alone, so the same flags give
// the same bits whatever the number of threads.
#ifndef KDA_CLI_GENERATOR_H_
#define KDA_CLI_GENERATOR_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/case.h"
#include "cli/workload.h"

namespace kda::cli {

class Progress;

struct GeneratorFlags {
  std::string gate = "bounded";
  std::string values = "mix";
  std::string dtype = "bf16";
  std::string gate_dtype = "bf16";
  bool beta_logits = false;
  int64_t dim_k = 128, dim_v = 128;
  int64_t group = 1;  // value heads per query/key head
  uint64_t seed = 1;
};
// `semantics`: also --gate and --beta-logits, which run and verify have among their own.
std::vector<CLI::Option*> AddGeneratorFlags(CLI::App* app, bool semantics, GeneratorFlags* flags);

// Unit q and k rows, v ~ N(0, 1), a raw gate, beta in (0, 1) or its logits, A_log, dt_bias and a
// non-zero fp32 initial state, for `tokens` packed tokens and `sequences` states. `progress`, where
// given, is told.
Case MakeInputs(const GeneratorFlags& flags, int64_t heads, int64_t tokens, int64_t sequences,
                Progress* progress = nullptr);
// The same without memory: enough to make a plan of, so that options are refused before the inputs
// of a large problem are made.
Case DescribeInputs(const GeneratorFlags& flags, int64_t heads, int64_t tokens, int64_t sequences);

// The first tokens and states of `inputs`, packed into the lengths of `batch`; shares memory,
// outputs included.
Case PackedCase(const Case& inputs, const Batch& batch);

int64_t InputBytes(const GeneratorFlags& flags, int64_t heads, int64_t tokens, int64_t sequences);

}  // namespace kda::cli

#endif  // KDA_CLI_GENERATOR_H_
