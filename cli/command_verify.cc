// kda verify: a problem against the fp64 oracle.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/error.h"
#include "cli/generator.h"
#include "cli/oracle.h"
#include "cli/problem_flags.h"
#include "cli/progress.h"
#include "cli/safetensors.h"
#include "cli/verdicts.h"
#include "cli/workload.h"

namespace kda::cli {
namespace {

struct VerifyFlags {
  std::string input, save_input;
  int64_t batch = 2, seqlen = 200, heads = 2;
  GeneratorFlags generator;
  ProblemFlags problem;
  ExecutionFlags execution;
  double tolerance = 0;  // 0: RelativeLimit
  bool json = false;
};

const char kFooter[] =
    "A tensor passes when its relative Frobenius error ||x - oracle|| / ||oracle|| is at most "
    "6e-3,\n"
    "or 2e-5 where all inputs and the output are fp32 (another limit: --tolerance), and it is "
    "finite\n"
    "where the oracle is. Exit code 1 when one does not.\n"
    "Examples:\n"
    "  kda verify --batch 3 --seqlen 130 --heads 4             generated inputs, bounded gate\n"
    "  kda verify --input in.safetensors --gate softplus       your own (tensors: kda run --help)\n"
    "  kda verify --seqlen 100 --save-input made.safetensors   also keeps the inputs, and what "
    "they "
    "are\n"
    "  kda verify --input made.safetensors                     the same problem again\n"
    "  kda verify --dtype fp32 --gate-dtype fp32 --rung original --isa baseline";

int Verify(VerifyFlags* flags, const Context& context) {
  if (!flags->input.empty()) CheckNotInput("--save-input", flags->save_input, flags->input);
  std::optional<Progress> progress("verify");
  const PlanOptions options =
      MakeOptions(flags->execution, flags->execution.rungs[0], flags->execution.isas[0]);
  const auto plan_of = [&](Case* problem) {
    ApplyProblemFlags(flags->problem, problem);
    DescribeOutputs(OutputDtype(flags->problem, *problem), problem);
    return CreatePlan(*problem, options);
  };
  const Batch batch = Batch::Of(flags->batch, flags->seqlen);
  if (flags->input.empty()) {  // options are refused before a large problem's inputs are made
    FillGenerator(&flags->problem, &flags->generator);
    Case shape = PackedCase(
        DescribeInputs(flags->generator, flags->heads, batch.Tokens(), batch.sequences()), batch);
    plan_of(&shape);
  }
  FromFile from;
  progress->Note(flags->input.empty() ? "making inputs" : "reading " + OneLine(flags->input));
  InputFile input = FileOrGenerated(flags->input, batch, flags->heads, &flags->generator,
                                    &flags->problem, &from, &*progress);
  Case& problem = input.problem;
  const Plan plan = plan_of(&problem);
  if (!flags->save_input.empty()) {
    progress->Note("writing " + OneLine(flags->save_input));
    WriteSafetensors("--save-input", flags->save_input, InputTensors(problem),
                     ToMetadata(flags->problem));
  }
  AllocateOutputs(&problem);
  FillNan(problem.o);
  if (!problem.slots.present()) FillNan(problem.final_state);
  FillNan(problem.checkpoints);
  progress->Note("the run to be verified");
  Check(plan.Run(MakeArgs(problem)));

  std::vector<Verdict> verdicts = VerifyAll(problem, &*progress);
  progress.reset();
  for (Verdict& verdict : verdicts) {
    if (flags->tolerance > 0) verdict.limit = flags->tolerance;
  }
  const bool passed = std::all_of(verdicts.begin(), verdicts.end(),
                                  [](const Verdict& verdict) { return verdict.Passed(); });
  for (const std::string& note : Notes(flags->input, input, from)) {
    fmt::print(stderr, "kda verify: note: {}\n", note);
  }
  if (flags->json) {
    Json json = {{"manifest", Manifest(context)}, {"ran", RanJson(plan)}};
    if (flags->input.empty()) json["manifest"]["seed"] = flags->generator.seed;
    json["from_file"] = from.ToJson();
    json["passed"] = passed;
    json["tensors"] = VerdictsJson(verdicts);
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("ran: {}\n", plan.Describe());
    if (!from.taken.empty()) fmt::print("from {}: {}\n", flags->input, from.Describe());
    fmt::print("{}", VerdictsText(verdicts));
  }
  if (!passed && !flags->json) {
    fmt::print("\nNot verified: the result differs from the fp64 recurrence.\n");
  }
  return passed ? 0 : kExitFailed;
}

}  // namespace

void AddVerify(CLI::App* app, Context* context) {
  const auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command = app->add_subcommand("verify", "a problem against the fp64 oracle");
  command->footer(kFooter);
  CLI::Option* input =
      command->add_option("--input", flags->input, "safetensors file; without it, inputs are made")
          ->type_name("IN");
  command->add_option("--save-input", flags->save_input, "write the inputs to this file")
      ->type_name("OUT");
  const std::string group = "Generated inputs";
  std::vector<CLI::Option*> shape = {
      command->add_option("--batch", flags->batch, "sequences, packed")
          ->check(WholeNumberIn(1, 65536)),
      command->add_option("--seqlen", flags->seqlen, "tokens of each")
          ->check(WholeNumberIn(0, 1 << 24)),
      command->add_option("--heads", flags->heads, "query/key heads")
          ->check(WholeNumberIn(1, 1024))};
  for (CLI::Option* option : shape) {
    option->capture_default_str()->excludes(input)->group(group);
  }
  for (CLI::Option* option : AddGeneratorFlags(command, /*semantics=*/false, &flags->generator)) {
    option->excludes(input);
  }
  command->add_option("--tolerance", flags->tolerance, "largest relative error taken")
      ->check(PositiveNumber());
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddProblemFlags(command, "Default: bounded for inputs made here, else the file's, else log",
                  &flags->problem);
  AddExecutionFlags(command, /*lists=*/false, &flags->execution);
  command->callback([flags, context] { context->exit_code = Verify(flags.get(), *context); });
}

}  // namespace kda::cli
