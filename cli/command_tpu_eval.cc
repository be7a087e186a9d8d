// kda tpu eval: a TPU program's arithmetic, run on the CPU, against the fp64 oracle.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "cli/command_tpu.h"
#include "cli/error.h"
#include "cli/flags.h"
#include "cli/generator.h"
#include "cli/oracle.h"
#include "cli/problem_flags.h"
#include "cli/progress.h"
#include "cli/timing.h"
#include "cli/tpu_case.h"
#include "cli/tpu_flags.h"
#include "cli/verdicts.h"
#include "cli/workload.h"
#include "tpu/inputs.h"
#include "tpu/limits.h"

namespace kda::cli {
namespace {

struct EvalFlags {
  std::string input, output;
  TpuFlags tpu;
  GeneratorFlags generator;
  ProblemFlags problem;
  double tolerance = 0;  // 0: tpu::RelativeLimit
  bool json = false;
};

const char kFooter[] =
    "The evaluator runs the very program that kda tpu compile, predict, emit and trace make of the "
    "same\n"
    "shape and options (here the shape is a smaller one by default), grid step by grid step: bf16\n"
    "rounding, the matrix units' passes with fp32 sums, copies and their semaphores. It stops at "
    "what a\n"
    "TPU would do silently: memory read before it is written, accesses out of bounds, races with a "
    "copy.\n"
    "No TPU and no libtpu are needed. A chunk of 64 tokens takes some 10 ms a head.\n"
    "Limits of the relative error: of mega and the ladder, whose products are of bf16 operands, "
    "6e-3; of\n"
    "decode, whose products are fp32's, 2e-5 for states and 3.9e-3 for o, which is stored in bf16\n"
    "(docs/numerics.md).\n"
    "Examples:\n"
    "  kda tpu eval                                        a small problem made here\n"
    "  kda tpu eval --lengths 64,3,0,70 --values slow      slow decays\n"
    "  kda tpu eval --kernel ladder --rung original --seqlen 64\n"
    "  kda tpu eval --kernel decode --batch 3\n"
    "  kda tpu eval --input in.safetensors --output out.safetensors --gate softplus\n"
    "                                                      your own (tensors: kda run --help)\n"
    "A file is one that kda verify --save-input writes or kda run --help describes, with K = V = "
    "128, as\n"
    "many value heads as heads, q, k, v in bf16 and, for mega and decode, H a multiple of 8; the "
    "program\n"
    "is one for its dtypes of g and beta:\n"
    "  kda verify --heads 8 --seqlen 130 --save-input in.safetensors";

// Options of kda run and kda verify that TPU programs take one value of: not in
// the help, refused by name.
constexpr const char* kHidden[] = {"--dtype",     "--dim-k",        "--dim-v", "--group",
                                   "--out-dtype", "--state-layout", "--decode"};

tpu::hlo::Arrays Run(const tpu::BuiltProgram& program, const TpuCase& problem) {
  tpu::hlo::Arrays outputs;
  Progress progress("tpu eval");
  try {
    tpu::CheckInputs(*program.module, problem.inputs);
    WithProgress([&] { progress.Tick("evaluator"); },
                 [&] { outputs = tpu::hlo::Evaluate(*program.module, problem.inputs); });
  } catch (const tpu::ir::BuildError& error) {
    BadArgument("{}", error.what());
  } catch (const tpu::ir::EvaluationError& error) {
    Failed("{}", error.what());
  }
  return outputs;
}

int Eval(EvalFlags* flags, const Context& context) {
  CheckNotInput("--output", flags->output, flags->input);
  CheckWritable("--output", flags->output);
  if (flags->problem.decode) {
    BadArgument("--decode: belongs to kda run; a TPU program of single tokens is --kernel decode");
  }
  if (flags->tpu.kernel == "decode") flags->problem.decode = true;
  FromFile from;
  flags->generator.gate_dtype = DtypeName(flags->tpu.gate_dtype, flags->tpu.kernel);
  InputFile input = FileOrGenerated(flags->input, Batch{LengthsOf(flags->tpu)}, flags->tpu.heads,
                                    &flags->generator, &flags->problem, &from);
  Case& problem = input.problem;
  if (flags->input.empty()) {
    problem.beta =
        InDtype(problem.beta, DtypeFromFlag(DtypeName(flags->tpu.beta_dtype, flags->tpu.kernel)));
  }
  ApplyProblemFlags(flags->problem, &problem);
  DescribeOutputs(OutputDtype(flags->problem, problem), &problem);
  PlanOptions reference;
  reference.backend = KDA_BACKEND_REFERENCE;
  CreatePlan(problem, reference);  // is it a problem at all?
  const TpuCase tpu_case = ToTpu(problem);
  tpu::ProgramRequest request = MakeTpuRequest(flags->tpu);
  request.problem = tpu_case.problem;
  request.problem.precise = flags->tpu.precise;
  const tpu::BuiltProgram program = BuildTpuProgram(request);
  const Stopwatch watch;
  const tpu::hlo::Arrays outputs = Run(program, tpu_case);
  const double seconds = watch.Milliseconds() / 1e3;
  AllocateOutputs(&problem);
  TakeTpuOutputs(outputs, &problem);
  if (!flags->output.empty()) {
    std::vector<std::pair<std::string, Tensor>> tensors = {{"o", problem.o},
                                                           {"final_state", problem.final_state}};
    if (problem.checkpoints.present()) tensors.emplace_back("checkpoints", problem.checkpoints);
    WriteSafetensors("--output", flags->output, tensors, ToMetadata(flags->problem));
  }
  std::vector<Verdict> verdicts;
  {
    Progress progress("tpu eval");
    verdicts = VerifyAll(problem, &progress);
  }
  for (Verdict& verdict : verdicts) {
    const Tensor& output = verdict.tensor == "o"             ? problem.o
                           : verdict.tensor == "final_state" ? problem.final_state
                                                             : problem.checkpoints;
    verdict.limit = flags->tolerance > 0
                        ? flags->tolerance
                        : tpu::RelativeLimit(request.family, output.layout.dtype == KDA_BF16);
  }
  const bool passed = std::all_of(verdicts.begin(), verdicts.end(),
                                  [](const Verdict& verdict) { return verdict.Passed(); });
  for (const std::string& note : Notes(flags->input, input, from)) {
    fmt::print(stderr, "kda tpu eval: note: {}\n", note);
  }
  if (flags->json) {
    Json json = {{"manifest", Manifest(context)}, {"program", program.description}};
    if (flags->input.empty()) json["manifest"]["seed"] = flags->generator.seed;
    json["from_file"] = from.ToJson();
    json["seconds"] = seconds;
    json["passed"] = passed;
    json["tensors"] = VerdictsJson(verdicts);
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("evaluated in {:.1f} s, without a TPU: {}\n", seconds, program.description);
    if (!from.taken.empty()) fmt::print("from {}: {}\n", flags->input, from.Describe());
    fmt::print("{}", VerdictsText(verdicts));
    if (!passed) fmt::print("\nNot verified: the result differs from the fp64 recurrence.\n");
  }
  return passed ? 0 : kExitFailed;
}

}  // namespace

void AddTpuEval(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<EvalFlags>();
  flags->tpu.batch = 2;
  flags->tpu.usual_seqlen = 70;
  flags->tpu.heads = 8;
  CLI::App* command =
      tpu->add_subcommand("eval", "a program's arithmetic on this CPU, against the fp64 oracle");
  command->footer(kFooter);
  CLI::Option* input =
      command->add_option("--input", flags->input, "safetensors file; without it, inputs are made")
          ->type_name("IN");
  command->add_option("--output", flags->output, "write the results to this safetensors file")
      ->type_name("OUT");
  AddTpuShapeFlags(command, &flags->tpu, "Generated inputs", input);
  for (CLI::Option* option : AddGeneratorFlags(command, /*semantics=*/false, &flags->generator)) {
    option->excludes(input);
  }
  // Of the dtypes that programs take, and by the kernel's own default.
  command->remove_option(command->get_option("--gate-dtype"));
  AddTpuDtypeFlags(command, &flags->tpu, "Generated inputs", input);
  command
      ->add_option("--tolerance", flags->tolerance,
                   "largest relative error taken (default: the limits below)")
      ->check(PositiveNumber());
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddProblemFlags(command, "Default: bounded for inputs made here, else the file's, else log",
                  &flags->problem);
  AddTpuKernelFlags(command, &flags->tpu);
  for (const char* name : kHidden) command->get_option(name)->group("");
  command->callback([flags, context] { context->exit_code = Eval(flags.get(), *context); });
}

}  // namespace kda::cli
