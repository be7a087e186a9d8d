// What is printed of results that were compared with the oracle.
#ifndef KDA_CLI_VERDICTS_H_
#define KDA_CLI_VERDICTS_H_

#include <string>
#include <vector>

#include "cli/manifest.h"
#include "cli/oracle.h"

namespace kda::cli {

std::string VerdictsText(const std::vector<Verdict>& verdicts);
Json VerdictsJson(const std::vector<Verdict>& verdicts);

}  // namespace kda::cli

#endif  // KDA_CLI_VERDICTS_H_
