// Verification against the oracle: the recurrence in fp64 (backend
// `reference`), fed the same bytes.
#ifndef KDA_CLI_ORACLE_H_
#define KDA_CLI_ORACLE_H_

#include <string>
#include <vector>

#include "cli/case.h"

namespace kda::cli {

class Progress;

// One output against the oracle.
struct Verdict {
  std::string tensor;
  Difference difference;
  double limit = 0;  // of the relative Frobenius error
  bool Passed() const {
    return difference.mismatched_non_finite == 0 && difference.RelativeFrobenius() <= limit;
  }
};

// 2e-5 where every input and the output are fp32, 6e-3 else.
double RelativeLimit(const Case& problem, const Tensor& output);

// Every output of `problem`, which has run, against an oracle run over all of it.
std::vector<Verdict> VerifyAll(const Case& problem, Progress* progress);

// Oracle results for some heads of some sequences of a packed problem, for problems too large to
// check whole. Made once, compared with each implementation's outputs.
class Sample {
 public:
  // Checks (sequence, head) pairs, first and last of both foremost, until `budget` token-heads are
  // spent; a sequence longer than that is checked over its first tokens, and its final state not.
  Sample(const Case& problem, int64_t budget, Progress* progress);

  // Of o and final_state, against outputs that lie as in the problem.
  std::vector<Verdict> Compare(const Case& problem) const;

  int64_t pairs() const { return static_cast<int64_t>(pieces_.size()); }
  // "2 of 16 (sequence, head) pairs, 100 of 800 token-heads, 2 final states"
  std::string Describe() const;

 private:
  struct Piece {
    int64_t sequence, head, tokens;
    bool whole;
    Tensor o, final_state;
  };
  std::vector<Piece> pieces_;
  int64_t of_pairs_ = 0, token_heads_ = 0, of_token_heads_ = 0, states_ = 0;
};

}  // namespace kda::cli

#endif  // KDA_CLI_ORACLE_H_
