// Prefill of several prompts packed one after another, with the state kept every 256 tokens so that
// a later request with the same beginning can start from there (prefix caching).
//
//     c++ -std=c++17 prefill_packed.cc $(pkg-config --cflags --libs kda) && ./a.out
//
// Where kda is not in a folder of the system: PKG_CONFIG_PATH=PREFIX/lib/pkgconfig for the first,
// LD_LIBRARY_PATH=PREFIX/lib for the second.
#include <cstdio>
#include <kda/kda.hpp>
#include <vector>

int main() {
  constexpr int64_t kHeads = 4, kDim = 128, kEvery = 256;
  const std::vector<int64_t> cu_seqlens = {0, 700, 708, 1300};  // three prompts: 700, 8, 592
  const int64_t sequences = static_cast<int64_t>(cu_seqlens.size()) - 1, tokens = cu_seqlens.back();

  kda::Problem problem;
  problem.gate = KDA_GATE_BOUNDED;
  problem.lower_bound = -5;
  problem.flags = KDA_FLAG_QK_L2NORM | KDA_FLAG_BETA_LOGITS;
  problem.q = problem.k = problem.v = problem.g = kda::Dense(KDA_F32, {1, tokens, kHeads, kDim});
  problem.beta = kda::Dense(KDA_F32, {1, tokens, kHeads});
  problem.o = problem.v;
  problem.cu_seqlens = kda::Index(cu_seqlens);
  problem.final_state = kda::Dense(KDA_F32, {sequences, kHeads, kDim, kDim});
  int64_t rows = 0;
  for (int64_t n = 0; n < sequences; ++n) rows += (cu_seqlens[n + 1] - cu_seqlens[n]) / kEvery;
  problem.checkpoints = kda::Dense(KDA_F32, {rows, kHeads, kDim, kDim});
  problem.checkpoint_every = kEvery;

  kda::Plan plan;
  kda::Status status = kda::Plan::Create(problem, kda::Options(), &plan);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("%s\n", plan.Describe().c_str());

  std::vector<float> q(tokens * kHeads * kDim), k(q), v(q), g(q.size(), -2.0f), o(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(i % 7) - 3;
    k[i] = static_cast<float>(i % 11) - 5;
    v[i] = static_cast<float>(i % 5) - 2;
  }
  std::vector<float> beta(tokens * kHeads), final_state(sequences * kHeads * kDim * kDim);
  std::vector<float> checkpoints(rows * kHeads * kDim * kDim);

  kda::Args args;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.g = g.data();
  args.beta = beta.data();
  args.o = o.data();
  args.final_state = final_state.data();
  args.checkpoints = checkpoints.data();
  status = plan.Run(args);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  for (int64_t row = 0; row < rows; ++row) {
    int64_t sequence = 0, token = 0;
    int32_t written = 0;
    kda_plan_checkpoint(plan.get(), row, &sequence, &token, &written);
    std::printf("state of prompt %d after %d tokens: S[0,0] = %.6f\n", static_cast<int>(sequence),
                static_cast<int>(token), checkpoints[row * kHeads * kDim * kDim]);
  }
  return 0;
}
