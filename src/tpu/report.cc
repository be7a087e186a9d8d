#include "tpu/report.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>

#include "tpu/counts.h"
#include "tpu/decode/decode.h"
#include "tpu/hlo/printer.h"
#include "tpu/mega/kernel.h"
#include "tpu/shard.h"

namespace kda::tpu {

namespace {

const char* GateName(kda_gate gate) {
  switch (gate) {
    case KDA_GATE_BOUNDED:
      return "bounded";
    case KDA_GATE_SOFTPLUS:
      return "softplus";
    default:
      return "log";
  }
}

// "fp32" and "bf16", as the options have it.
const char* DtypeName(ir::DType dtype) { return dtype == ir::DType::kF32 ? "fp32" : "bf16"; }

// All that makes programs differ.
std::string Words(const TpuProblem& p) {
  char text[160];
  std::snprintf(text, sizeof text, "T = %lld in %lld sequence%s, H = %lld, K = V = %lld, %s gate",
                static_cast<long long>(p.tokens), static_cast<long long>(p.sequences),
                p.sequences == 1 ? "" : "s", static_cast<long long>(p.heads),
                static_cast<long long>(kDim), GateName(p.gate));
  std::string words = text;
  if (p.gate == KDA_GATE_BOUNDED) {
    std::snprintf(text, sizeof text, " (lower_bound %g)", p.lower_bound);
    words += text;
  }
  words += std::string(", g ") + DtypeName(p.gate_dtype) + ", beta " + DtypeName(p.beta_dtype);
  if (p.beta_logits) words += " logits";
  if (p.qk_l2norm) words += ", qk_l2norm";
  if (!p.initial_state) words += ", states from zero";
  if (!p.final_state) words += ", no final states";
  if (p.slots > 0) words += ", " + std::to_string(p.slots) + " slots";
  if (p.checkpoint_every > 0) words += ", checkpoints every " + std::to_string(p.checkpoint_every);
  return words;
}

// A module of one chip, or of several that share out the heads.
BuiltProgram BuildShared(const ProgramRequest& request, const char* name,
                         const ModuleBuilder& build) {
  const TpuProblem& p = request.problem;
  BuiltProgram built;
  built.module = std::make_unique<hlo::Module>(name);
  if (request.partitions == 1) {
    build(p, built.module.get());
    built.counts = CountModule(*built.module, p);
    return built;
  }
  BuildSharded(p, request.partitions, build, built.module.get());
  built.counts = CountModule(*built.module, ShardOf(p, request.partitions));
  return built;
}

TpuProblem OfOneChip(const ProgramRequest& request) {
  if (request.partitions == 1) return request.problem;
  return ShardOf(request.problem, request.partitions);
}

// A chunk runs more than 3 blocks of mega's code: of more chunks than this counting would end in
// the same refusal, only some seconds later.
constexpr int64_t kMostMegaChunks = ir::kMostBlockRuns / 3;

void CheckMegaChunks(const TpuProblem& p) {
  int64_t chunks = 0;
  for (const int64_t length : p.lengths) chunks += std::max<int64_t>(ChunksOf(length), 1);
  RefuseOutside("mega", "chunks x groups of heads, which is counted one by one,",
                chunks * (p.heads / MegaHeadGroup(p.heads)), 1, kMostMegaChunks);
}

std::string Chips(int partitions) {
  return partitions == 1 ? "" : ", on " + std::to_string(partitions) + " chips";
}

BuiltProgram BuildMegaProgram(const ProgramRequest& request) {
  const TpuProblem& p = request.problem;
  BuiltProgram built = BuildShared(
      request, "mega",
      [&](const TpuProblem& problem, hlo::Module* module) { BuildMega(problem, module); });
  built.description = "mega, " + std::to_string(MegaHeadGroup(p.heads / request.partitions)) +
                      " heads in a step, " + (p.precise ? "precise, " : "") +
                      (mega::HasBoundedWay(p) ? "gates by their bound" : "gates without a bound") +
                      "; " + Words(p) + Chips(request.partitions);
  return built;
}

BuiltProgram BuildDecodeProgram(const ProgramRequest& request) {
  BuiltProgram built = BuildShared(request, "decode", BuildDecode);
  built.description = "decode; " + Words(request.problem) + Chips(request.partitions);
  return built;
}

BuiltProgram BuildLadderProgram(const ProgramRequest& request) {
  Ladder ladder = BuildLadder(request.problem, request.ladder);
  BuiltProgram built;
  built.module = std::move(ladder.module);
  built.counts = CountModule(*built.module, request.problem);
  built.description = ladder.plan.description + "; " + Words(request.problem);
  return built;
}

KernelStep StepOf(const Program* program, const PredictedOperation& kernel,
                  const KernelCounts& counts) {
  KernelStep step{kernel.steps, kernel.cycles_per_step};
  if (program == nullptr) return step;
  const Executions executions = CountExecutions(*program, counts);
  for (size_t i = 0; i < program->blocks.size(); ++i) {
    const Block& block = program->blocks[i];
    if (block.kind != BlockKind::kLoop || block.label != kStepsLabel) continue;
    step.steps = executions.blocks[i];
    step.cycles = std::accumulate(executions.bundles.begin() + block.first,
                                  executions.bundles.begin() + block.last + 1, 0.0) /
                  std::max(1.0, step.steps);
  }
  return step;
}

}  // namespace

TpuProblem PackedProblem(const std::vector<int64_t>& lengths, int64_t heads) {
  TpuProblem problem;
  problem.lengths = lengths;
  problem.sequences = static_cast<int64_t>(lengths.size());
  // Of too many tokens CheckProblem says so.
  for (const int64_t length : lengths) {
    if (__builtin_add_overflow(problem.tokens, length, &problem.tokens)) {
      problem.tokens = std::numeric_limits<int64_t>::max();
      break;
    }
  }
  problem.heads = heads;
  return problem;
}

void CheckProgram(const ProgramRequest& request) {
  switch (request.family) {
    case Family::kMega:
      CheckMega(OfOneChip(request));
      return CheckMegaChunks(OfOneChip(request));
    case Family::kLadder:
      RefuseOutside("ladder", "partitions", request.partitions, 1, 1);
      PlanLadder(request.problem, request.ladder);
      return;
    case Family::kDecode:
      return CheckDecode(OfOneChip(request));
  }
  RefuseOutside("a program", "family", static_cast<int64_t>(request.family), 0, 2);
}

BuiltProgram BuildProgram(const ProgramRequest& request) {
  CheckProgram(request);
  if (request.family == Family::kMega) return BuildMegaProgram(request);
  return request.family == Family::kLadder ? BuildLadderProgram(request)
                                           : BuildDecodeProgram(request);
}

CompileResult CompileProgram(const BuiltProgram& program, const CompileSettings& settings,
                             bool schedule) {
  CompileRequest request;
  if (program.module == nullptr) return Compile(request);  // which says what is needed
  request.module = hlo::Print(*program.module);
  request.target = settings.target;
  request.child = settings.child;
  request.libtpu = settings.libtpu;
  request.timeout_seconds = settings.timeout_seconds;
  request.keep_executable = settings.keep_executable;
  request.schedule = schedule;
  if (settings.target != nullptr && settings.target->partitions != program.module->partitions) {
    CompileResult result;
    result.status = CompileStatus::kBadRequest;
    result.message = std::string("target ") + settings.target->name + " runs a program on " +
                     std::to_string(settings.target->partitions) +
                     " cores; this one is built for " + std::to_string(program.module->partitions);
    return result;
  }
  return Compile(request);
}

Report PredictProgram(const BuiltProgram& program, const CompileSettings& settings) {
  Report report;
  report.compiled = CompileProgram(program, settings, /*schedule=*/true);
  if (!report.compiled.ok()) {  // no target, no module
    report.error = report.compiled.message;
    return report;
  }
  if (!ReadSchedule(report.compiled.dumps, settings.target->delay_slots, &report.schedule,
                    &report.error)) {
    return report;
  }
  report.prediction = Predict(report.schedule, program.counts, *settings.target);
  size_t next = 0;
  for (const Operation& operation : report.schedule.operations) {
    if (operation.kind != OperationKind::kKernel) continue;
    const Program* code = operation.program < 0
                              ? nullptr
                              : &report.schedule.programs[static_cast<size_t>(operation.program)];
    const auto counts = program.counts.find(operation.kernel);
    report.steps.push_back(
        StepOf(code, report.prediction.kernels[next++],
               counts == program.counts.end() ? KernelCounts{} : counts->second));
    report.programs.push_back(operation.program);
  }
  return report;
}

}  // namespace kda::tpu
