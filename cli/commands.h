// The sub-commands of `kda`; each adds itself to the application.
#ifndef KDA_CLI_COMMANDS_H_
#define KDA_CLI_COMMANDS_H_

#include <CLI/CLI.hpp>

#include "cli/manifest.h"

namespace kda::cli {

void AddInfo(CLI::App* app, Context* context);
void AddRun(CLI::App* app, Context* context);
void AddVerify(CLI::App* app, Context* context);
void AddBench(CLI::App* app, Context* context);
void AddLadder(CLI::App* app, Context* context);
void AddDemo(CLI::App* app, Context* context);
void AddTpu(CLI::App* app, Context* context);

}  // namespace kda::cli

#endif  // KDA_CLI_COMMANDS_H_
