// kda tpu: kernels for TPUs, built, compiled and predicted without one. Here: emit and compile.
#include "cli/command_tpu.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/error.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tpu_flags.h"
#include "tpu/hlo/printer.h"
#include "tpu/ir/printer.h"
#include "tpu/pjrt/files.h"

namespace kda::cli {
namespace {

const char kFooter[] =
    "The kernels are built in C++, as Mosaic in StableHLO. libtpu, the TPU's own compiler, "
    "compiles "
    "them\n"
    "here, without a TPU; it comes with: scripts/setup tpu. emit and eval work without it. Times "
    "are\n"
    "predicted from the compiler's static schedule, never measured, and say so (docs/tpu.md).\n"
    "Examples:\n"
    "  kda tpu predict                                     4 sequences of 2048 tokens, 16 heads\n"
    "  kda tpu predict --batch 1 --seqlen 8192 --heads 24  Kimi K3's share of a chip\n"
    "  kda tpu predict --kernel ladder --rung original     as it was published first\n"
    "  kda tpu ladder                                      every rung, beside what was measured\n"
    "  kda tpu trace --output step.svg                     who uses the matrix units when\n"
    "  kda tpu eval --seqlen 130 --batch 2 --heads 8       is it right? no TPU, no libtpu\n"
    "  kda tpu emit --output out                           the programs' text\n"
    "  kda tpu compile --output kda.bin                    the executable";

const char kEmitFooter[] =
    "Two kinds of text: NAME.stablehlo.mlir, the whole program as XLA takes it (StableHLO), each "
    "kernel\n"
    "packed into a custom call; and KERNEL.mosaic.mlir, each kernel readable (Mosaic, the MLIR "
    "dialect of\n"
    "TPU kernels). No libtpu is needed. docs/tpu.md has a glossary.\n"
    "Examples:\n"
    "  kda tpu emit --output out                                the headline: 4 x 2048, 16 heads\n"
    "  kda tpu emit --kernel decode --batch 64 --heads 24 --output out\n"
    "  kda tpu emit --kernel ladder --rung original --output out";

const char kCompileFooter[] =
    "The executable is a serialised PJRT executable of libtpu, for one --target, shape and set of "
    "options,\n"
    "as the libtpu that compiled it reads it. On a machine with such a TPU it is loaded through "
    "the "
    "PJRT C\n"
    "API (PJRT_Executable_DeserializeAndLoad) and called with the inputs of emit's StableHLO, in "
    "turn; this\n"
    "library compiles on the machine instead (src/tpu/pjrt/execute.h). The fingerprint says "
    "whether "
    "two are\n"
    "the same. Without --output only sizes are printed. A compilation takes 5 to 60 s.\n"
    "Examples:\n"
    "  kda tpu compile                                      does it compile? what does it need?\n"
    "  kda tpu compile --output kda.bin                     the headline: 4 x 2048, 16 heads\n"
    "  kda tpu compile --kernel decode --batch 64 --heads 24 --slots 128 --output decode.bin\n"
    "  kda tpu compile --target v6e:2x2 --heads 64          four chips share out the heads";

struct EmitFlags {
  TpuFlags tpu;
  std::string output;
  bool json = false;
};

void WriteText(const std::string& path, const std::string& text) {
  if (!tpu::WriteFile(path, text)) Failed("--output: cannot write '{}'", path);
}

// "kernel.mosaic.mlir"; a second of that name is "kernel.2.mosaic.mlir".
void Emit(const EmitFlags& flags, const Context& context) {
  const tpu::BuiltProgram program = BuildTpuProgram(MakeTpuRequest(flags.tpu));
  CheckFolder("--output", flags.output);
  CheckWritable("--output", flags.output + "/" + program.module->name() + ".stablehlo.mlir");
  std::vector<std::pair<std::string, int64_t>> files;
  const auto write = [&](const std::string& name, const std::string& text) {
    WriteText(flags.output + "/" + name, text);
    files.emplace_back(flags.output + "/" + name, static_cast<int64_t>(text.size()));
  };
  write(program.module->name() + ".stablehlo.mlir", tpu::hlo::Print(*program.module));
  for (const tpu::hlo::Kernel& kernel : program.module->kernels()) {
    write(kernel.program.name + ".mosaic.mlir", tpu::ir::Print(kernel.program));
  }
  if (flags.json) {
    Json json = {{"manifest", Manifest(context)},
                 {"program", program.description},
                 {"problem", TpuProblemJson(flags.tpu)},
                 {"files", Json::array()}};
    for (const auto& [path, bytes] : files) {
      json["files"].push_back({{"path", path}, {"bytes", bytes}});
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}\n", program.description);
  for (const auto& [path, bytes] : files) fmt::print("  {}  {}\n", path, Bytes(bytes));
}

void CompileOnly(const EmitFlags& flags, const Context& context) {
  CheckWritable("--output", flags.output);
  const tpu::BuiltProgram program = BuildTpuProgram(MakeTpuRequest(flags.tpu));
  tpu::CompileSettings settings = MakeSettings(flags.tpu);
  settings.keep_executable = !flags.output.empty();
  tpu::CompileResult result;
  {
    Progress progress("tpu compile");
    WithProgress([&] { progress.Tick("libtpu compiles"); },
                 [&] { result = tpu::CompileProgram(program, settings, /*schedule=*/false); });
  }
  CheckCompiled(result);
  if (!flags.output.empty()) WriteText(flags.output, result.executable);
  std::vector<std::pair<std::string, int64_t>> vmem;
  for (const tpu::hlo::Kernel& kernel : program.module->kernels()) {
    vmem.emplace_back(kernel.program.name, kernel.program.VmemBytes());
  }
  if (flags.json) {
    Json json = {{"manifest", Manifest(context)},
                 {"program", program.description},
                 {"problem", TpuProblemJson(flags.tpu)},
                 {"compiled", CompiledJson(result, flags.tpu)},
                 {"kernels", Json::array()}};
    for (const auto& [name, bytes] : vmem) {
      json["kernels"].push_back({{"name", name}, {"declared_vmem_bytes", bytes}});
    }
    if (!flags.output.empty()) json["output"] = flags.output;
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}\n", program.description);
  fmt::print("compiled for {} in {:.1f} s by {}\n", flags.tpu.target, result.seconds,
             OneLine(result.compiler));
  fmt::print("fingerprint {}\n\n", result.fingerprint);
  Table table({"what", "bytes", ""});
  const auto row = [&](const std::string& what, int64_t bytes) {
    table.Add({what, fmt::format("{}", bytes), Bytes(bytes)});
  };
  row("executable", result.executable_bytes);
  row("code", result.code_bytes);
  row("HBM: arguments", result.argument_bytes);
  row("HBM: outputs", result.output_bytes);
  row("HBM: temporaries", result.temporary_bytes);
  for (const auto& [name, bytes] : vmem) row("VMEM that " + name + " declares", bytes);
  fmt::print("{}", table.Text());
  if (!flags.output.empty()) fmt::print("\nThe executable is in {}\n", flags.output);
}

void AddCompileChild(CLI::App* tpu, Context* context) {
  const auto folder = std::make_shared<std::string>();
  CLI::App* command = tpu->add_subcommand("compile-child", "")->group("");
  command->add_option("folder", *folder)->required();
  command->callback([folder, context] { context->exit_code = tpu::CompileChild(*folder); });
}

}  // namespace

void AddTpuEmit(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<EmitFlags>();
  CLI::App* command =
      tpu->add_subcommand("emit", "write the program's StableHLO and each kernel's Mosaic text");
  command->footer(kEmitFooter);
  command->add_option("--output", flags->output, "folder to write to")
      ->required()
      ->type_name("DIR");
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddTpuProblemFlags(command, &flags->tpu);
  AddTpuKernelFlags(command, &flags->tpu);
  command->callback([flags, context] { Emit(*flags, *context); });
}

void AddTpuCompile(CLI::App* tpu, Context* context) {
  const auto flags = std::make_shared<EmitFlags>();
  CLI::App* command =
      tpu->add_subcommand("compile", "compile with libtpu: sizes, fingerprint, the executable");
  command->footer(kCompileFooter);
  command->add_option("--output", flags->output, "write the serialised executable here")
      ->type_name("FILE");
  command->add_flag("--json", flags->json, "print JSON, with a manifest");
  AddTpuProblemFlags(command, &flags->tpu);
  AddTpuKernelFlags(command, &flags->tpu);
  AddTpuCompilerFlags(command, &flags->tpu);
  command->callback([flags, context] { CompileOnly(*flags, *context); });
}

void AddTpu(CLI::App* app, Context* context) {
  CLI::App* command =
      app->add_subcommand("tpu", "kernels for TPUs: compiled, predicted, evaluated; no TPU needed");
  command->footer(kFooter);
  command->require_subcommand(0, 1);
  command->callback([command] {
    if (!command->get_subcommands().empty()) return;
    BadArgument(
        "a command is needed: predict, ladder, bars, validate, trace, compile, emit or eval");
  });
  AddTpuPredict(command, context);
  AddTpuLadder(command, context);
  AddTpuBars(command, context);
  AddTpuValidate(command, context);
  AddTpuTrace(command, context);
  AddTpuCompile(command, context);
  AddTpuEmit(command, context);
  AddTpuEval(command, context);
  AddCompileChild(command, context);
}

}  // namespace kda::cli
