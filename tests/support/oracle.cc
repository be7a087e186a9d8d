#include "support/oracle.h"

#include <algorithm>

#include "reference/dtypes.h"
#include "reference/recurrence.h"

namespace kda::test {
namespace {

// Token t of [0, B * T), value head `head`, activated.
struct ActiveToken {
  std::vector<double> q, k, g;
  double beta;

  ActiveToken(const Case& c, int64_t t, int64_t head) {
    const int64_t qk_row = t * c.H + head / (c.HV / c.H), row = t * c.HV + head;
    q.assign(c.q.begin() + qk_row * c.K, c.q.begin() + (qk_row + 1) * c.K);
    k.assign(c.k.begin() + qk_row * c.K, c.k.begin() + (qk_row + 1) * c.K);
    g.assign(c.g.begin() + row * c.K, c.g.begin() + (row + 1) * c.K);
    beta = c.beta[static_cast<size_t>(row)];
    if (c.beta_logits) beta = reference::Sigmoid(beta);
    if (c.qk_l2norm) {
      reference::L2Normalize(c.K, q.data());
      reference::L2Normalize(c.K, k.data());
    }
    const double A_log = c.A_log.empty() ? 0 : c.A_log[static_cast<size_t>(head)];
    for (int64_t d = 0; d < c.K; ++d) {
      double& x = g[static_cast<size_t>(d)];
      if (!c.dt_bias.empty()) x += c.dt_bias[static_cast<size_t>(head * c.K + d)];
      x = reference::LogDecay({c.gate, c.lower_bound}, x, A_log);
    }
  }
};

// Rows of `checkpoints` that sequence n fills: [first, last), and the token count of each.
struct CheckpointRange {
  int64_t first, last;
  std::vector<int64_t> tokens;
};

CheckpointRange CheckpointsOf(const Case& c, int64_t n) {
  CheckpointRange range = {0, 0, {}};
  if (c.checkpoint_every != 0) {
    for (int64_t m = 0; m < n; ++m) range.first += c.Length(m) / c.checkpoint_every;
    range.last = range.first + c.Length(n) / c.checkpoint_every;
    for (int64_t r = range.first; r < range.last; ++r) {
      range.tokens.push_back((r - range.first + 1) * c.checkpoint_every);
    }
  } else if (!c.checkpoint_offsets.empty()) {
    range.first = c.checkpoint_offsets[static_cast<size_t>(n)];
    range.last = c.checkpoint_offsets[static_cast<size_t>(n) + 1];
    range.tokens.assign(c.checkpoint_tokens.begin() + range.first,
                        c.checkpoint_tokens.begin() + range.last);
  }
  return range;
}

void SolveHead(const Case& c, int64_t n, int64_t head, Oracle* out) {
  const int64_t size = c.K * c.V;
  const int64_t row = c.slots.empty() ? n : c.slots[static_cast<size_t>(n)];
  const CheckpointRange range = CheckpointsOf(c, n);
  std::vector<double> state(static_cast<size_t>(size));
  const bool starts =
      !c.S0.empty() && (c.has_initial.empty() || c.has_initial[static_cast<size_t>(n)] != 0);
  const int64_t at = (row * c.HV + head) * size;
  if (starts) std::copy_n(c.S0.begin() + at, size, state.begin());
  for (int64_t t = 0; t < c.Length(n); ++t) {
    const ActiveToken token(c, c.First(n) + t, head);
    const int64_t o_row = ((c.First(n) + t) * c.HV + head) * c.V;
    reference::Step(
        {c.K, c.V},
        {token.q.data(), token.k.data(), c.v.data() + o_row, token.g.data(), token.beta}, c.Scale(),
        state.data(), out->o.data() + o_row);
    if (c.KeptDtype() == KDA_BF16) {
      for (double& x : state) x = reference::Round(KDA_BF16, x);
    }
    for (size_t i = 0; i < range.tokens.size(); ++i) {
      if (range.tokens[i] != t + 1) continue;
      const int64_t r = range.first + static_cast<int64_t>(i);
      std::copy(state.begin(), state.end(), out->checkpoints.begin() + (r * c.HV + head) * size);
      out->checkpoint_written[static_cast<size_t>(r)] = true;
    }
  }
  std::copy(state.begin(), state.end(), out->S.begin() + at);
  out->S_written[static_cast<size_t>(row)] = true;
}

}  // namespace

Oracle Solve(const Case& c) {
  Oracle out;
  const int64_t state = c.HV * c.K * c.V;
  out.o.resize(static_cast<size_t>(c.B * c.T * c.HV * c.V));
  out.S.resize(static_cast<size_t>(c.States() * state));
  out.S_written.resize(static_cast<size_t>(c.States()));
  out.checkpoints.resize(static_cast<size_t>(c.Checkpoints() * state));
  out.checkpoint_written.resize(static_cast<size_t>(c.Checkpoints()));
  for (int64_t n = 0; n < c.Sequences(); ++n) {
    if (!c.slots.empty() && c.slots[static_cast<size_t>(n)] < 0) continue;
    for (int64_t head = 0; head < c.HV; ++head) SolveHead(c, n, head, &out);
  }
  return out;
}

}  // namespace kda::test
