#include "cli/verdicts.h"

#include <fmt/format.h>

#include "cli/table.h"

namespace kda::cli {

std::string VerdictsText(const std::vector<Verdict>& verdicts) {
  Table table({"tensor", "max error", "relative error", "limit", "elements", "result"});
  for (const Verdict& verdict : verdicts) {
    const Difference& d = verdict.difference;
    const std::string result =
        verdict.Passed() ? "good"
        : d.mismatched_non_finite > 0
            ? fmt::format("OFF: {} elements not finite as they should be", d.mismatched_non_finite)
            : "OFF";
    table.Add({verdict.tensor, fmt::format("{:.2e}", d.max_abs),
               fmt::format("{:.2e}", d.RelativeFrobenius()), fmt::format("{:.0e}", verdict.limit),
               fmt::format("{}", d.elements), result});
  }
  std::string text = table.Text();
  for (const Verdict& verdict : verdicts) {
    const Difference& d = verdict.difference;
    if (d.non_finite_got + d.non_finite_want == 0) continue;
    text += fmt::format("{}: of {} elements {} of the result and {} of the oracle are not finite\n",
                        verdict.tensor, d.elements, d.non_finite_got, d.non_finite_want);
  }
  return text;
}

Json VerdictsJson(const std::vector<Verdict>& verdicts) {
  Json tensors = Json::object();
  for (const Verdict& verdict : verdicts) {
    const Difference& d = verdict.difference;
    tensors[verdict.tensor] = {{"max_error", d.max_abs},
                               {"relative_error", d.RelativeFrobenius()},
                               {"relative_limit", verdict.limit},
                               {"elements", d.elements},
                               {"not_finite_as_oracle", d.mismatched_non_finite},
                               {"not_finite", d.non_finite_got},
                               {"oracle_not_finite", d.non_finite_want},
                               {"passed", verdict.Passed()}};
  }
  return tensors;
}

}  // namespace kda::cli
