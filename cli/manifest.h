// What a result depends on: written with every one.
#ifndef KDA_CLI_MANIFEST_H_
#define KDA_CLI_MANIFEST_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kda/kda.hpp"

namespace kda::cli {

using Json = nlohmann::ordered_json;

// What main knows.
struct Context {
  std::string command;          // as typed
  std::string program = "kda";  // the path it was called by, for hints to type
  int exit_code = 0;            // set by a sub-command that ran
};

struct CpuInfo {
  std::string model;
  std::vector<std::string> features;  // those that kernels use
  int processors = 0;                 // this process may use
};
// Looked up at the first call, which main makes: later, pinned threads see one processor.
const CpuInfo& ReadCpuInfo();

// Command, commit, compiler and flags, CPU, libraries, KDA_MAX_ISA, time. Callers add seeds,
// switches and threads.
Json Manifest(const Context& context);

// What a plan runs: backend, isa, solver, threads, switches, fallback, and
// the one-line description.
Json RanJson(const Plan& plan);
std::string IsaRan(const Json& ran);  // "-" for the reference backend: the recurrence in fp64

}  // namespace kda::cli

#endif  // KDA_CLI_MANIFEST_H_
