// kda tpu predict and trace: what the compiler's static schedule says of a program.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "cli/command_tpu.h"
#include "cli/error.h"
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
    "off, and\n"
    "under Words what the units are.\n"
    "HBM is the chip's memory, VMEM its on-chip memory of vectors; spills are registers stored to "
    "VMEM.\n"
    "Examples:\n"
    "  kda tpu predict                                         the headline: 4 x 2048, 16 heads\n"
    "  kda tpu predict --batch 64 --seqlen 8 --heads 24        many short sequences\n"
    "  kda tpu predict --gate softplus                         Kimi-Linear's gate\n"
    "  kda tpu predict --kernel ladder --set flat_grid=0 --json\n"
    "  kda tpu predict --lengths 130,64,210 --target v5p";

const char kTraceFooter[] =
    "The picture shows the code of one step of the kernel from its first bundle on, a cycle each: "
    "for each\n"
    "matrix unit what it is given and what it multiplies, coloured by the stage and named by the "
    "heads it\n"
    "belongs to, and the other units' use. mega works on pairs of heads, h0+1, h2+3, ..; with 8 "
    "heads\n"
    "on two chunks a step, of which the second is c1. Code that some steps skip or repeat, such "
    "as zeroing\n"
    "rows beyond a sequence, is there once: a step's bundles are not the cycles/step of kda tpu "
    "predict.\n"
    "\"intra_chunk: solve\" is a part of a stage; rows below the stages are copies, tables and\n"
    "what the compiler adds; \"(no label)\" is what it adds without saying for what. A kernel of "
    "the "
    "ladder\n"
    "names the stage alone, not the head; decode has no matrix products.\n"
    "matmuls are instructions that multiply rows in a matrix unit, pushes put weights into it, "
    "pops "
    "take\n"
    "results out, others are all the rest; first and last count bundles, the instructions of one "
    "cycle.\n"
    "Examples:\n"
    "  kda tpu trace --output step.svg\n"
    "  kda tpu trace --kernel decode --batch 64 --heads 24 --output decode.svg\n"
    "  kda tpu trace --kernel ladder --kernel-name gate_intra --output gate_intra.svg";

void Predict(const PredictFlags& flags, const Context& context) {
  const tpu::BuiltProgram program = BuildTpuProgram(MakeTpuRequest(flags.tpu));
  const tpu::Report report = PredictWithProgress(program, flags.tpu, "tpu predict");
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

// mega counts the heads of a group on through the chunks of a step, two of them a label.
tpu::HeadNames HeadNamesOf(const tpu::ProgramRequest& request) {
  if (request.family != tpu::Family::kMega) return {};
  return {static_cast<int>(tpu::MegaHeadGroup(request.problem.heads / request.partitions)), true};
}

// A loop or a branch of a step that does not run just once in it.
struct Part {
  std::string label;
  int32_t bundles = 0;
  double runs = 0;  // a step
};

struct Traced {
  std::string kernel, title;
  int32_t bundles = 0;  // of a step's code
  double cycles = 0;    // that a step takes on average
  tpu::MatrixUse use;
  std::vector<tpu::StageUse> stages;
  std::vector<Part> parts;

  bool HasHeads() const {
    return std::any_of(stages.begin(), stages.end(), [](const auto& s) { return s.heads > 0; });
  }
  bool HasProducts() const {
    return std::any_of(stages.begin(), stages.end(), [](const auto& s) { return s.matmuls > 0; });
  }
};

std::vector<Part> RarePartsOf(const tpu::Program& code, tpu::TraceRange range,
                              const tpu::KernelCounts& counts, double steps) {
  std::vector<Part> parts;
  const tpu::Executions executions = tpu::CountExecutions(code, counts);
  for (size_t i = 0; i < code.blocks.size(); ++i) {
    const tpu::Block& block = code.blocks[i];
    const bool whole = block.first <= range.first && block.last >= range.last;
    if (whole || block.first < range.first || block.last > range.last || block.label.empty() ||
        block.kind == tpu::BlockKind::kGuard) {
      continue;
    }
    const double runs = executions.blocks[i] / std::max(1.0, steps);
    const std::string label = tpu::RowName("", tpu::PartsOf(block.label).part);
    if (std::fabs(runs - 1) > 0.005) parts.push_back({label, block.last - block.first + 1, runs});
  }
  return parts;
}

void PrintTraceJson(const Traced& traced, const tpu::BuiltProgram& program,
                    const PredictFlags& flags, const Context& context) {
  Json json = {{"manifest", Manifest(context)}, {"program", program.description}};
  json["figure"] = tpu::kPredictedFigure;
  json["output"] = flags.output;
  json["kernel"] = traced.kernel;
  json["bundles"] = traced.bundles;
  json["cycles_per_step"] = traced.cycles;
  json["matmul_slots"] = traced.use.matmul;
  json["matpush_slots"] = traced.use.matpush;
  json["interleaved"] = traced.use.interleaved;
  json["stages"] = Json::array();
  for (const tpu::StageUse& s : traced.stages) {
    json["stages"].push_back({{"stage", s.stage},
                              {"part", s.part},
                              {"matmuls", s.matmuls},
                              {"pushes", s.pushes},
                              {"pops", s.pops},
                              {"others", s.others},
                              {"first", s.first},
                              {"last", s.last},
                              {"heads", s.heads},
                              {"chunks", s.chunks}});
  }
  json["parts"] = Json::array();
  for (const Part& part : traced.parts) {
    json["parts"].push_back(
        {{"label", part.label}, {"bundles", part.bundles}, {"runs_per_step", part.runs}});
  }
  fmt::print("{}\n", json.dump(2));
}

void PrintTrace(const Traced& traced, const tpu::HeadNames& names, const std::string& output) {
  fmt::print("{}\n\n", traced.title);
  Table table({"stage", "heads", "chunks", "matmuls", "pushes", "pops", "others", "first", "last"});
  const auto number = [](int64_t n) { return n == 0 ? "-" : fmt::format("{}", n); };
  for (const tpu::StageUse& s : traced.stages) {
    table.Add({tpu::RowName(s.stage, s.part), number(s.heads), number(s.chunks), number(s.matmuls),
               number(s.pushes), number(s.pops), number(s.others), fmt::format("{}", s.first),
               fmt::format("{}", s.last)});
  }
  fmt::print("{}\n", table.Text());
  fmt::print(
      "matmuls: products of rows in a matrix unit; pushes: weights put into it; pops: results "
      "taken out;\nfirst, last: bundles from the step's first; (no label): added by the "
      "compiler\n\n");
  fmt::print(
      "A step's code has {} bundles; a step takes {:.0f} cycles on average, the cycles/step "
      "of\nkda tpu predict{}\n",
      traced.bundles, traced.cycles,
      traced.parts.empty() ? "" : ". The difference is what does not run just once in it:");
  if (!traced.parts.empty()) {
    Table parts({"loop or branch", "bundles", "runs a step"});
    for (const Part& part : traced.parts) {
      parts.Add({part.label, fmt::format("{}", part.bundles), fmt::format("{:.2f}", part.runs)});
    }
    fmt::print("\n{}\n", parts.Text());
  }
  if (!traced.HasHeads()) fmt::print("This kernel's labels name stages, not heads\n");
  if (names.pairs) {
    fmt::print("The picture names heads in pairs, h0+1 to {}\n", names.NameOf(names.heads - 2));
  }
  if (traced.HasProducts()) {
    fmt::print(
        "{:.0f} % of the slots for matrix products in use, {:.0f} % of those for weights; in "
        "{:.0f} %\nof the step the matrix units work for several stages or heads at once\n",
        100 * traced.use.matmul, 100 * traced.use.matpush, 100 * traced.use.interleaved);
  }
  fmt::print("The picture is in {}\n", output);
}

void Trace(const PredictFlags& flags, const Context& context) {
  if (flags.output.empty()) BadArgument("--output: a file is needed, not ''");
  CheckWritable("--output", flags.output);
  const tpu::ProgramRequest request = MakeTpuRequest(flags.tpu);
  const tpu::BuiltProgram program = BuildTpuProgram(request);
  CheckKernelName(program, flags.kernel_name);
  const tpu::Report report = PredictWithProgress(program, flags.tpu, "tpu trace");
  const size_t chosen = Chosen(report, flags.kernel_name);
  const tpu::Program& code = report.schedule.programs[static_cast<size_t>(report.programs[chosen])];
  const tpu::TraceRange range = RangeOf(code);
  const tpu::HeadNames names = HeadNamesOf(request);
  Traced traced;
  traced.kernel = report.prediction.kernels[chosen].name;
  traced.bundles = range.last - range.first + 1;
  traced.cycles = report.steps[chosen].cycles;
  traced.title =
      fmt::format("{}: one step, {} bundles, {:.0f} cycles on average; of the program {}",
                  traced.kernel, traced.bundles, traced.cycles, program.description);
  traced.use = tpu::SummariseMatrixUse(code, range);
  traced.stages = tpu::SummariseStages(code, range, names);
  const auto counts = program.counts.find(traced.kernel);
  if (counts != program.counts.end()) {
    traced.parts = RarePartsOf(code, range, counts->second, report.steps[chosen].steps);
  }
  if (!tpu::WriteFile(flags.output, tpu::TraceSvg(code, range, traced.title, names))) {
    Failed("--output: cannot write '{}'", flags.output);
  }
  if (flags.json) {
    PrintTraceJson(traced, program, flags, context);
  } else {
    PrintTrace(traced, names, flags.output);
  }
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
