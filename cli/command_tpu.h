// The sub-commands of `kda tpu`; each adds itself to it.
#ifndef KDA_CLI_COMMAND_TPU_H_
#define KDA_CLI_COMMAND_TPU_H_

#include <CLI/CLI.hpp>

#include "cli/manifest.h"

namespace kda::cli {

void AddTpuEmit(CLI::App* tpu, Context* context);
void AddTpuCompile(CLI::App* tpu, Context* context);
void AddTpuPredict(CLI::App* tpu, Context* context);
void AddTpuTrace(CLI::App* tpu, Context* context);
void AddTpuLadder(CLI::App* tpu, Context* context);
void AddTpuBars(CLI::App* tpu, Context* context);
void AddTpuValidate(CLI::App* tpu, Context* context);
void AddTpuEval(CLI::App* tpu, Context* context);

}  // namespace kda::cli

#endif  // KDA_CLI_COMMAND_TPU_H_
