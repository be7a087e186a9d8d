#include "cli/case.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "cli/error.h"

namespace kda::cli {
namespace {

int64_t IndexAt(const Tensor& index, int64_t i) {
  if (index.layout.dtype == KDA_I32) {
    int32_t value;
    std::memcpy(&value, index.data + i * 4, sizeof value);
    return value;
  }
  if (index.layout.dtype == KDA_I64) {
    int64_t value;
    std::memcpy(&value, index.data + i * 8, sizeof value);
    return value;
  }
  return 0;  // refused by name when the plan is made
}

int64_t SequenceCount(const Case& problem) {
  if (!problem.cu_seqlens.present()) return problem.batch();
  return std::max<int64_t>(problem.cu_seqlens.shape(0) - 1, 0);
}

int64_t StateRows(const Case& problem) {
  if (!problem.slots.present()) return SequenceCount(problem);
  if (problem.initial_state.present()) return problem.initial_state.shape(0);
  int64_t rows = 1;
  for (int64_t i = 0; i < problem.slots.shape(0); ++i) {
    const int64_t slot = IndexAt(problem.slots, i);
    if (slot >= int64_t{1} << 20) {
      BadArgument("slots: [{}] is {}; without initial_state the pool is made to fit, up to 2^20", i,
                  slot);
    }
    rows = std::max(rows, slot + 1);
  }
  return rows;
}

int64_t CheckpointRows(const Case& problem) {
  if (problem.checkpoint_tokens.present()) return problem.checkpoint_tokens.shape(0);
  int64_t rows = 0;
  for (const Span& span : Spans(problem)) {
    rows += std::max<int64_t>(span.length, 0) / problem.checkpoint_every;
  }
  return rows;
}

kda_index IndexOf(const Tensor& tensor) {
  if (!tensor.present()) return kda_index_of(nullptr, KDA_I64, 0);
  return kda_index_of(tensor.data, static_cast<kda_dtype>(tensor.layout.dtype), tensor.shape(0));
}

void CheckRank(const char* name, const Tensor& tensor) {
  if (tensor.layout.rank == 4) return;
  BadArgument("{}: shape [{}] has {} dimensions; [B, T, heads, dim] has 4", name,
              fmt::join(tensor.layout.shape, tensor.layout.shape + tensor.layout.rank, ", "),
              tensor.layout.rank);
}

// The reason in a plan's description: "..; fuse,head_block off: token by token; ..".
std::string WhyOff(const std::string& description, const std::string& name) {
  const std::string off = " off: ";
  for (size_t at = description.find(off); at != std::string::npos;
       at = description.find(off, at + 1)) {
    const size_t begin = description.rfind(' ', at - 1) + 1;
    const std::string names = "," + description.substr(begin, at - begin) + ",";
    if (names.find("," + name + ",") == std::string::npos) continue;
    const size_t from = at + off.size();
    return description.substr(from, description.find("; ", from) - from);
  }
  return description;
}

}  // namespace

std::vector<Span> Spans(const Case& problem) {
  std::vector<Span> spans;
  const int64_t count = SequenceCount(problem);
  for (int64_t n = 0; n < count; ++n) {
    if (problem.cu_seqlens.present()) {
      const int64_t first = IndexAt(problem.cu_seqlens, n);
      spans.push_back({0, first, IndexAt(problem.cu_seqlens, n + 1) - first});
    } else {
      spans.push_back({n, 0, problem.tokens()});
    }
  }
  return spans;
}

int64_t SequenceTokens(const Case& problem) {
  int64_t tokens = 0;
  for (const Span& span : Spans(problem)) tokens += span.length;
  return tokens;
}

void DescribeOutputs(kda_dtype o_dtype, Case* problem) {
  CheckRank("q", problem->q);
  CheckRank("v", problem->v);
  const auto state_shape = [&](int64_t rows) {
    std::vector<int64_t> shape = {rows, problem->value_heads(), problem->dim_k(), problem->dim_v()};
    if (problem->state_order == KDA_STATE_VK) std::swap(shape[2], shape[3]);
    return shape;
  };
  const kda_dtype state_dtype = problem->initial_state.present()
                                    ? static_cast<kda_dtype>(problem->initial_state.layout.dtype)
                                    : KDA_F32;
  problem->o.layout = DenseLayout(
      o_dtype, {problem->batch(), problem->tokens(), problem->value_heads(), problem->dim_v()});
  problem->final_state.layout = DenseLayout(state_dtype, state_shape(StateRows(*problem)));
  if (problem->checkpoint_every > 0 || problem->checkpoint_tokens.present()) {
    problem->checkpoints.layout = DenseLayout(KDA_F32, state_shape(CheckpointRows(*problem)));
  }
}

void AllocateOutputs(Case* problem) {
  problem->o = NewTensor(problem->o.layout);
  problem->final_state = NewTensor(problem->final_state.layout);
  if (problem->slots.present() && problem->initial_state.present()) {
    std::memcpy(problem->final_state.data, problem->initial_state.data,
                static_cast<size_t>(problem->final_state.Bytes()));
  }
  if (problem->checkpoints.layout.rank > 0) {
    problem->checkpoints = NewTensor(problem->checkpoints.layout);
  }
}

Problem MakeProblem(const Case& problem) {
  Problem p;
  p.mode = problem.mode;
  p.gate = problem.gate;
  p.state_order = problem.state_order;
  p.flags = problem.flags;
  p.scale = problem.scale;
  p.lower_bound = problem.lower_bound;
  p.q = problem.q.layout;
  p.k = problem.k.layout;
  p.v = problem.v.layout;
  p.g = problem.g.layout;
  p.beta = problem.beta.layout;
  p.A_log = problem.A_log.layout;
  p.dt_bias = problem.dt_bias.layout;
  p.o = problem.o.layout;
  p.initial_state = problem.initial_state.layout;
  p.final_state = problem.final_state.layout;
  p.checkpoints = problem.checkpoints.layout;
  p.checkpoint_every = problem.checkpoint_every;
  p.cu_seqlens = IndexOf(problem.cu_seqlens);
  p.slots = IndexOf(problem.slots);
  p.has_initial = IndexOf(problem.has_initial);
  p.checkpoint_offsets = IndexOf(problem.checkpoint_offsets);
  p.checkpoint_tokens = IndexOf(problem.checkpoint_tokens);
  return p;
}

Args MakeArgs(const Case& problem) {
  Args args;
  args.q = problem.q.data;
  args.k = problem.k.data;
  args.v = problem.v.data;
  args.g = problem.g.data;
  args.beta = problem.beta.data;
  args.A_log = problem.A_log.data;
  args.dt_bias = problem.dt_bias.data;
  args.initial_state = problem.initial_state.data;
  args.o = problem.o.data;
  args.final_state = problem.final_state.data;
  args.checkpoints = problem.checkpoints.data;
  return args;
}

Plan CreatePlan(const Case& problem, const PlanOptions& options) {
  Plan plan;
  Check(Plan::Create(MakeProblem(problem), options, &plan));
  const uint32_t refused = plan.Info().switches_fallback & options.forced_on;
  for (int32_t i = 0; const kda_switch_info* row = kda_switch(i); ++i) {
    if ((refused & row->bit) == 0) continue;
    BadArgument("--set: {}=1 is not possible here: {}", row->name,
                WhyOff(plan.Describe(), row->name));
  }
  return plan;
}

Case HeadSlice(const Case& problem, int64_t head, int64_t count) {
  const int64_t group = problem.value_heads() / problem.heads();
  const int64_t first = head * group, values = count * group;
  Case slice = problem;
  slice.q = Slice(problem.q, 2, head, count);
  slice.k = Slice(problem.k, 2, head, count);
  slice.v = Slice(problem.v, 2, first, values);
  slice.g = Slice(problem.g, 2, first, values);
  slice.beta = Slice(problem.beta, 2, first, values);
  slice.A_log = Slice(problem.A_log, 0, first, values);
  const int64_t bias_width = problem.dt_bias.layout.rank == 1 ? problem.dim_k() : 1;
  slice.dt_bias = Slice(problem.dt_bias, 0, first * bias_width, values * bias_width);
  slice.o = Slice(problem.o, 2, first, values);
  slice.initial_state = Slice(problem.initial_state, 1, first, values);
  slice.final_state = Slice(problem.final_state, 1, first, values);
  slice.checkpoints = Slice(problem.checkpoints, 1, first, values);
  return slice;
}

Case SequenceSlice(const Case& problem, int64_t n, int64_t tokens) {
  const Span span = Spans(problem)[static_cast<size_t>(n)];
  Case slice = problem;
  for (Tensor* tensor : {&slice.q, &slice.k, &slice.v, &slice.g, &slice.beta, &slice.o}) {
    *tensor = Slice(Slice(*tensor, 0, span.batch, 1), 1, span.first, tokens);
  }
  slice.initial_state = Slice(problem.initial_state, 0, n, 1);
  slice.final_state = Slice(problem.final_state, 0, n, 1);
  slice.cu_seqlens = Tensor();
  return slice;
}

}  // namespace kda::cli
