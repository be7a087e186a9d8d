#include "cli/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "cli/error.h"
#include "cli/progress.h"

namespace kda::cli {
namespace {

PlanOptions OracleOptions() {
  PlanOptions options;
  options.backend = KDA_BACKEND_REFERENCE;
  return options;
}

// fp32 outputs in memory of their own, in place of those of `problem`.
Case WithOracleOutputs(const Case& problem) {
  Case oracle = problem;
  for (Tensor* tensor : {&oracle.o, &oracle.final_state, &oracle.checkpoints}) {
    if (!tensor->present()) continue;
    const kda_tensor& layout = tensor->layout;
    *tensor = NewTensor(KDA_F32, std::vector<int64_t>(layout.shape, layout.shape + layout.rank));
    FillNan(*tensor);
  }
  return oracle;
}

// Slots that no sequence writes hold in both what the given pool holds.
void CopyPool(const Case& problem, const Tensor& final_state) {
  if (!problem.slots.present() || !problem.initial_state.present()) return;
  for (int64_t i = 0; i < final_state.Elements(); ++i) {
    StoreElement(final_state.data, KDA_F32, i,
                 LoadElement(problem.initial_state.data, problem.initial_state.layout.dtype, i));
  }
}

bool AllFp32(const Case& problem) {
  for (const Tensor* tensor :
       {&problem.q, &problem.k, &problem.v, &problem.g, &problem.beta, &problem.initial_state}) {
    if (tensor->present() && tensor->layout.dtype != KDA_F32) return false;
  }
  return true;
}

// Pairs in an order that meets the ends first and spreads over both ranges.
std::vector<std::pair<int64_t, int64_t>> PairOrder(int64_t sequences, int64_t heads, int64_t most) {
  std::vector<std::pair<int64_t, int64_t>> order;
  std::set<std::pair<int64_t, int64_t>> seen;
  const auto add = [&](int64_t n, int64_t h) {
    if (seen.insert({n, h}).second) order.emplace_back(n, h);
  };
  add(0, 0);
  add(sequences - 1, heads - 1);
  add(sequences / 2, heads / 2);
  add(0, heads - 1);
  add(sequences - 1, 0);
  // Steps that are odd and near the golden section of the range visit it evenly.
  const int64_t total = sequences * heads;
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(0.618 * double(total)) | 1);
  for (int64_t i = 0, at = 0; i < total && static_cast<int64_t>(order.size()) < most; ++i) {
    at = (at + step) % total;
    add(at / heads, at % heads);
  }
  return order;
}

}  // namespace

double RelativeLimit(const Case& problem, const Tensor& output) {
  return AllFp32(problem) && output.layout.dtype == KDA_F32 ? 2e-5 : 6e-3;
}

std::vector<Verdict> VerifyAll(const Case& problem, Progress* progress) {
  Case oracle = WithOracleOutputs(problem);
  CopyPool(problem, oracle.final_state);
  const int64_t heads = problem.heads();
  for (int64_t h = 0; h < heads; ++h) {
    progress->Update(double(h) / double(heads), "oracle (fp64, token by token)");
    const Case slice = HeadSlice(oracle, h, 1);
    Check(CreatePlan(slice, OracleOptions()).Run(MakeArgs(slice)));
  }
  std::vector<Verdict> verdicts;
  const auto compare = [&](const char* name, const Tensor& got, const Tensor& want) {
    if (!got.present()) return;
    verdicts.push_back({name, Compare(got, want), RelativeLimit(problem, got)});
  };
  compare("o", problem.o, oracle.o);
  compare("final_state", problem.final_state, oracle.final_state);
  compare("checkpoints", problem.checkpoints, oracle.checkpoints);
  return verdicts;
}

Sample::Sample(const Case& problem, int64_t budget, Progress* progress) {
  const std::vector<Span> spans = Spans(problem);
  const int64_t sequences = static_cast<int64_t>(spans.size());
  const int64_t heads = problem.heads();
  of_pairs_ = sequences * heads;
  of_token_heads_ = SequenceTokens(problem) * heads;
  if (of_pairs_ == 0) return;
  for (const auto& [n, h] : PairOrder(sequences, heads, budget)) {
    const int64_t length = spans[static_cast<size_t>(n)].length;
    const int64_t left = budget - token_heads_;
    if (length > left && !pieces_.empty()) continue;  // a later sequence may be shorter
    const int64_t tokens = std::min(length, left);
    progress->Note("oracle (fp64, token by token)");
    const Case slice = HeadSlice(SequenceSlice(problem, n, tokens), h, 1);
    const Case oracle = WithOracleOutputs(slice);
    Check(CreatePlan(oracle, OracleOptions()).Run(MakeArgs(oracle)));
    const bool whole = tokens == length && oracle.final_state.present();
    pieces_.push_back({n, h, tokens, whole, oracle.o, oracle.final_state});
    token_heads_ += tokens;
    states_ += whole ? 1 : 0;
    if (token_heads_ >= budget) break;
  }
}

std::vector<Verdict> Sample::Compare(const Case& problem) const {
  Verdict o{"o", {}, RelativeLimit(problem, problem.o)};
  Verdict state{"final_state", {}, RelativeLimit(problem, problem.final_state)};
  for (const Piece& piece : pieces_) {
    const Case slice =
        HeadSlice(SequenceSlice(problem, piece.sequence, piece.tokens), piece.head, 1);
    o.difference.Add(cli::Compare(slice.o, piece.o));
    if (piece.whole) state.difference.Add(cli::Compare(slice.final_state, piece.final_state));
  }
  return {o, state};
}

std::string Sample::Describe() const {
  return fmt::format("{} of {} (sequence, head) pairs, {} of {} token-heads, {} final states",
                     pairs(), of_pairs_, token_heads_, of_token_heads_, states_);
}

}  // namespace kda::cli
