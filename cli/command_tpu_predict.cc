// kda tpu predict and trace: what the compiler's static schedule says of a program.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "cli/command_tpu.h"
#include "cli/error.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tpu_flags.h"
#include "cli/tpu_report.h"
#include "tpu/pjrt/files.h"
#include "tpu/schedule/trace.h"

namespace kda::cli {
namespace {

struct PredictFlags {
  TpuFlags tpu;
  std::string output, kernel_name;  // of trace
  bool json = false;
};

const char kPredictFooter[] =
    "The time is device time: kernels, and the XLA operations around them. A kernel takes the "
    "longer "
    "of\n"
    "its cycles at the chip's clock and of its bytes at the HBM bandwidth that was fitted to "
    "published\n"
    "measurements; \"bound\" says which. docs/tpu.md: the formula, its constants, how far it is "
    "off.\n"
    "Examples:\n"
    "  kda tpu predict                                         the headline: 4 x 2048, 16 heads\n"
    "  kda tpu predict --batch 64 --seqlen 8 --heads 24        many short sequences\n"
    "  kda tpu predict --gate softplus                         Kimi-Linear's gate\n"
    "  kda tpu predict --kernel ladder --set flat_grid=0 --json\n"
    "  kda tpu predict --lengths 130,64,210 --target v5p";

const char kTraceFooter[] =
    "The picture shows one step of the kernel, a cycle per pixel: for each matrix unit what it is "
    "given\n"
    "and what it multiplies, coloured by the stage and named by the head it belongs to, and the "
    "other\n"
    "units' use.\n"
    "Example:\n"
    "  kda tpu trace --output step.svg";

void Predict(const PredictFlags& flags, const Context& context) {
  const tpu::BuiltProgram program = BuildTpuProgram(MakeTpuRequest(flags.tpu));
  tpu::Report report;
  {
    Progress progress("tpu predict");
    report = PredictWithProgress(program, flags.tpu, &progress, 0, 1, "libtpu");
  }
  if (flags.json) {
    Json json = {{"manifest", Manifest(context)}, {"program", program.description}};
    json["problem"] = TpuProblemJson(flags.tpu);
    json.update(ReportJson(report));
    json["compiled"] = CompiledJson(report.compiled, flags.tpu);
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}\n{}, for {}\n\n{}", program.description, tpu::kPredictedFigure, flags.tpu.target,
             ReportText(report));
}

// The loop that is the kernel's step, else the compiler's loop over the grid.
tpu::TraceRange RangeOf(const tpu::Program& program) {
  for (const tpu::Block& block : program.blocks) {
    if (block.kind == tpu::BlockKind::kLoop && block.label == tpu::kStepsLabel) {
      return {block.first, block.last};
    }
  }
  return tpu::StepOf(program);
}

void CheckKernelName(const tpu::BuiltProgram& program, const std::string& name) {
  std::vector<std::string> names;
  for (const tpu::hlo::Kernel& kernel : program.module->kernels()) {
    names.push_back(kernel.program.name);
  }
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return;
  BadArgument("--kernel-name: '{}' is not one of {}", name, fmt::join(names, ", "));
}

// Of the program's kernels the one asked for, else the longest.
size_t Chosen(const tpu::Report& report, const std::string& name) {
  const std::vector<tpu::PredictedOperation>& kernels = report.prediction.kernels;
  size_t best = kernels.size();
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (report.programs[i] < 0 || (!name.empty() && kernels[i].name != name)) continue;
    if (best == kernels.size() || kernels[i].us > kernels[best].us) best = i;
  }
  if (best == kernels.size()) Failed("the schedule holds no code of a kernel");
  return best;
}

void Trace(const PredictFlags& flags, const Context& context) {
  const tpu::BuiltProgram program = BuildTpuProgram(MakeTpuRequest(flags.tpu));
  CheckKernelName(program, flags.kernel_name);
  tpu::Report report;
  {
    Progress progress("tpu trace");
    report = PredictWithProgress(program, flags.tpu, &progress, 0, 1, "libtpu");
  }
  const size_t chosen = Chosen(report, flags.kernel_name);
  const std::string& name = report.prediction.kernels[chosen].name;
  const tpu::Program& code = report.schedule.programs[static_cast<size_t>(report.programs[chosen])];
  const tpu::TraceRange range = RangeOf(code);
  const std::string title = fmt::format("{}: one step, {} cycles; {}", name,
                                        range.last - range.first + 1, program.description);
  if (!tpu::WriteFile(flags.output, tpu::TraceSvg(code, range, title))) {
    Failed("--output: cannot write '{}'", flags.output);
  }
  const tpu::MatrixUse use = tpu::SummariseMatrixUse(code, range);
  const std::vector<tpu::StageUse> stages = tpu::SummariseStages(code, range);
  if (flags.json) {
    Json json = {{"manifest", Manifest(context)}, {"program", program.description}};
    json["figure"] = tpu::kPredictedFigure;
    json["output"] = flags.output;
    json["kernel"] = name;
    json["cycles"] = range.last - range.first + 1;
    json["matmul_slots"] = use.matmul;
    json["matpush_slots"] = use.matpush;
    json["interleaved"] = use.interleaved;
    json["stages"] = Json::array();
    for (const tpu::StageUse& s : stages) {
      json["stages"].push_back({{"stage", s.stage},
                                {"matmuls", s.matmuls},
                                {"pushes", s.pushes},
                                {"pops", s.pops},
                                {"others", s.others},
                                {"first", s.first - range.first},
                                {"last", s.last - range.first},
                                {"heads", s.heads}});
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}\n\n", title);
  Table table({"stage", "heads", "matmuls", "pushes", "pops", "others", "first", "last"});
  for (const tpu::StageUse& s : stages) {
    const auto number = [](int64_t n) { return fmt::format("{}", n); };
    table.Add({s.stage.empty() ? "(none)" : s.stage, number(s.heads), number(s.matmuls),
               number(s.pushes), number(s.pops), number(s.others), number(s.first - range.first),
               number(s.last - range.first)});
  }
  fmt::print("{}\n", table.Text());
  fmt::print(
      "{:.0f} % of the slots for matrix products in use, {:.0f} % of those for weights; in "
      "{:.0f} %\nof the step the matrix units work for several stages or heads at once\n",
      100 * use.matmul, 100 * use.matpush, 100 * use.interleaved);
  fmt::print("The picture is in {}\n", flags.output);
}

}  // namespace

void AddTpuPredict(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<PredictFlags>();
  CLI::App* command = tpu->add_subcommand(
      "predict", "time of a program, from the compiler's static schedule, and where it goes");
  command->footer(kPredictFooter);
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddTpuProblemFlags(command, &flags->tpu);
  AddTpuKernelFlags(command, &flags->tpu);
  AddTpuCompilerFlags(command, &flags->tpu);
  command->callback([flags, context] { Predict(*flags, *context); });
}

void AddTpuTrace(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<PredictFlags>();
  CLI::App* command =
      tpu->add_subcommand("trace", "a picture of a kernel's schedule: who uses which unit when");
  command->footer(kTraceFooter);
  command->add_option("--output", flags->output, "SVG file to write")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--kernel-name", flags->kernel_name,
                   "which of a program's kernels (default: the one that takes longest)")
      ->type_name("NAME");
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddTpuProblemFlags(command, &flags->tpu);
  AddTpuKernelFlags(command, &flags->tpu);
  AddTpuCompilerFlags(command, &flags->tpu);
  command->callback([flags, context] { Trace(*flags, *context); });
}

}  // namespace kda::cli
