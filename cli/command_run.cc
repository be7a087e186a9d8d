// kda run: a problem from a safetensors file, its results into another.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/error.h"
#include "cli/problem_flags.h"
#include "cli/progress.h"
#include "cli/safetensors.h"
#include "cli/table.h"
#include "cli/timing.h"

namespace kda::cli {
namespace {

struct RunFlags {
  std::string input, output;
  ProblemFlags problem;
  ExecutionFlags execution;
  bool json = false;
};

const char kFooter[] =
    "Tensors of IN (shapes; bf16, fp16 or fp32):\n"
    "  q, k [B,T,H,K]   v [B,T,HV,V]   g [B,T,HV,K]   beta [B,T,HV]\n"
    "  optional: initial_state [N,HV,K,V] (bf16 or fp32), A_log [HV] and dt_bias [HV,K] (fp32),\n"
    "  cu_seqlens [N+1] (I32 or I64; packs N sequences along T, B = 1), slots [N],\n"
    "  has_initial [N], checkpoint_offsets [N+1], checkpoint_tokens [C]\n"
    "Tensors of OUT: o [B,T,HV,V], final_state, and checkpoints where asked for.\n"
    "What the tensors are (the options under \"What is computed\") can be in the file too, as\n"
    "metadata kda.gate, kda.lower_bound, kda.beta_logits, kda.qk_l2norm, kda.scale,\n"
    "kda.state_layout, kda.out_dtype, kda.decode, kda.checkpoint_every; an option given here "
    "wins.\n"
    "Example, a file made in Python (pip install safetensors torch), then Kimi K3's gate:\n"
    "  import torch; from safetensors.torch import save_file\n"
    "  x = lambda *s: torch.randn(*s, dtype=torch.bfloat16)\n"
    "  save_file({'q': x(1,100,2,128), 'k': x(1,100,2,128), 'v': x(1,100,2,128),\n"
    "             'g': x(1,100,2,128), 'beta': x(1,100,2), 'A_log': torch.zeros(2)},\n"
    "            'in.safetensors')\n"
    "  kda run --input in.safetensors --output out.safetensors --gate bounded --lower-bound -5 \\\n"
    "          --beta-logits --qk-l2norm\n"
    "  # or save_file(.., metadata={'kda.gate': 'bounded', 'kda.beta_logits': 'true',\n"
    "  #                            'kda.qk_l2norm': 'true'}), and no options\n"
    "Without Python, a file that says what it holds:\n"
    "  kda verify --seqlen 100 --save-input made.safetensors\n"
    "  kda run --input made.safetensors --output out.safetensors";

void Run(RunFlags* flags, const Context& context) {
  CheckNotInput("--output", flags->output, flags->input);
  std::optional<Progress> progress("run");
  progress->Note("reading " + OneLine(flags->input));
  InputFile input = ReadInput(flags->input);
  Case& problem = input.problem;
  const FromFile from = TakeFromFile(flags->input, input.metadata, &flags->problem);
  FillDefaults("log", &flags->problem);
  ApplyProblemFlags(flags->problem, &problem);
  DescribeOutputs(OutputDtype(flags->problem, problem), &problem);
  const PlanOptions options =
      MakeOptions(flags->execution, flags->execution.rungs[0], flags->execution.isas[0]);
  const Plan plan = CreatePlan(problem, options);
  AllocateOutputs(&problem);
  progress->Note("computing");
  const Stopwatch watch;
  Check(plan.Run(MakeArgs(problem)));
  const double milliseconds = watch.Milliseconds();

  std::vector<std::pair<std::string, Tensor>> outputs = {{"o", problem.o},
                                                         {"final_state", problem.final_state}};
  if (problem.checkpoints.present()) outputs.emplace_back("checkpoints", problem.checkpoints);
  progress->Note("writing " + OneLine(flags->output));
  WriteSafetensors("--output", flags->output, outputs, ToMetadata(flags->problem));
  progress.reset();
  for (const std::string& note : Notes(flags->input, input, from)) {
    fmt::print(stderr, "kda run: note: {}\n", note);
  }
  if (flags->json) {
    Json json = {{"manifest", Manifest(context)}, {"ran", RanJson(plan)}};
    json["first_run_ms"] = milliseconds;
    json["unused_tensors"] = input.unused;
    json["from_file"] = from.ToJson();
    json["outputs"] = Json::object();
    for (const auto& [name, tensor] : outputs) {
      const kda_tensor& layout = tensor.layout;
      json["outputs"][name] = {
          {"dtype", SafetensorsDtype(layout.dtype)},
          {"shape", std::vector<int64_t>(layout.shape, layout.shape + layout.rank)}};
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  const PlanInfo info = plan.Info();
  fmt::print("{}; {}, {}, {} in {} (first run){}\n", plan.Describe(),
             Counted(info.sequences, "sequence"), Counted(info.tokens, "token"),
             Counted(problem.value_heads(), "value head"), HumanTime(milliseconds),
             from.taken.empty() ? "" : "; from the file: " + from.Describe());
}

}  // namespace

void AddRun(CLI::App* app, Context* context) {
  const auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app->add_subcommand("run", "compute one problem from a safetensors file");
  command->footer(kFooter);
  command->add_option("--input", flags->input, "safetensors file to read")
      ->required()
      ->type_name("IN");
  command->add_option("--output", flags->output, "safetensors file to write")
      ->required()
      ->type_name("OUT");
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddProblemFlags(command, "Default: the file's, else log", &flags->problem);
  AddExecutionFlags(command, /*lists=*/false, &flags->execution);
  command->callback([flags, context] { Run(flags.get(), *context); });
}

}  // namespace kda::cli
