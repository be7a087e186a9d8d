#include "tpu/mega/mega.h"

#include <algorithm>

#include "tpu/mega/kernel.h"

namespace kda::tpu {

using ir::DType;
using ir::Index;
using ir::Value;

int64_t MegaHeadGroup(int64_t heads) {
  for (int64_t group : {24, 16, 8}) {
    if (heads > 0 && heads % group == 0) return group;
  }
  return 0;
}

// Found by random and local search over the fields (v6e, libtpu 0.0.52); what they give is in
// docs/tpu_mega.md. A result does not depend on them: an order that would read what is not
// there yet, or overwrite what is still to be read, is refused when it is built
// (Kernel::beta_ready, qk_read, ..).
MegaOptions MegaDefaults(const TpuProblem& p) {
  const bool bounded = mega::HasBoundedWay(p);
  const int64_t group = MegaHeadGroup(p.heads);
  MegaOptions o;
  if (!bounded) {
    o.start_a = 0.16;
    o.end_c = 0.79;
    o.start_d = 0.0;
    o.end_d = 0.46;
    o.beta = 0.05;
    o.copies = 0.29;
    o.lag_a = 2;
    o.lag_c = 4;
  } else if (group == 24) {
    o.start_d = 0.29;
    o.end_d = 0.26;
    o.beta = -0.02;
    o.lag_a = 3;
    o.lag_c = 6;
  } else if (group == 16) {
    o.start_a = 0.26;
    o.start_c = -0.04;
    o.end_c = 0.76;
    o.start_d = 0.05;
    o.beta = 0.02;
    o.copies = 0.22;
  } else if (group == 8) {
    o.unroll = 2;
  }
  if (p.precise && bounded) {  // stage C is longer
    o.start_a = 0.31;
    o.start_c = -0.20;
    o.end_c = 0.96;
    o.start_d = -0.01;
    o.beta = 0.03;
    o.copies = 0.14;
    o.lag_a = o.lag_c = 5;
  }
  return o;
}

int64_t MegaCheckpointRows(const TpuProblem& p) {
  return p.checkpoint_every > 0 ? p.tokens / p.checkpoint_every : 0;
}

int64_t MegaBetaColumns(const TpuProblem& p) {
  return std::max<int64_t>((p.tokens + 127) / 128 * 128, mega::kBetaWindow);
}

namespace mega {

namespace {

// [64, 128] masks and lane patterns of one step.
void PrepareMasks(Kernel* kernel) {
  ir::Builder* const b = kernel->b;
  const ir::Shape rows = {kChunk, kDim}, block = {kBlock, kDim}, words = {kBlock / 2, kDim};
  kernel->row = b->Iota(rows, 0);
  kernel->lane = b->Iota(rows, 1);
  const Value lane = kernel->lane;
  const Value column = (ir::ShiftRight(lane, 6) << 5) + (lane & 31u);
  kernel->causal = kernel->row >= column;
  kernel->low_lanes = Rows(lane, 0, kBlock) < 64;
  kernel->strictly_lower = b->Iota(block, 0) > (b->Iota(block, 1) & 31u);
  const Value w = b->Iota(words, 1);
  const Value ones = b->Constant(DType::kI32, -1, words);
  kernel->lanes_h0 = Select((ir::ShiftRight(w, 5) & 1u) == 0, ones, 0.0);
  kernel->lanes_h1 = ~kernel->lanes_h0;
  kernel->lanes_low = Select(w < 64, ones, 0.0);
  kernel->lanes_high = ~kernel->lanes_low;
}

}  // namespace

void Kernel::PrepareStep() {
  valid_a.clear();
  valid_c.clear();
  state_c.clear();
  for (int u = 0; u < unroll; ++u) {
    valid_a.push_back(Entry(table.valid, ChunkA(step, u)));
    valid_c.push_back(Entry(table.valid, ChunkC(step, u)));
    state_c.push_back(Entry(table.state, ChunkC(step, u)));
  }
}

void Kernel::FinishStep() {
  Store(decay, Load(decay_next));
  Store(decay_next, Load(decay_new));
}

namespace {

void WriteStep(Kernel* k) {
  // A branch cuts the code in two that the scheduler does not mix: the one of MakeZeros comes
  // first, so that everything else is one piece with the arithmetic.
  k->slot = k->step & 1u;
  k->PrepareStep();
  k->WaitStates(k->step);
  k->WaitInputs(k->slot);
  k->WaitOutput(k->step - 2.0);
  k->MakeZeros(k->step);
  PrepareMasks(k);
  k->decay_columns = Transpose(Load(k->decay));
  const auto count = static_cast<size_t>(k->items);
  for (auto* done : {&k->qk_read, &k->l_read, &k->t_read, &k->state_done}) {
    done->assign(count, false);
  }
  k->decay_widened.assign(2 * count, false);
  k->beta_ready = false;

  const auto join = [](std::vector<Stage> a, const std::vector<Stage>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const MegaOptions& o = k->options;
  const std::vector<Stage> intra = k->bounded ? k->IntraChunk() : k->IntraChunkUnbounded();
  const std::vector<Step> a = Skewed(k->items, join(k->GateCumsum(), intra), o.lag_a);
  const std::vector<Stage> recurrence = join(k->InterChunk(), k->Output());
  // A chunk's state passes through all stages before the step's next chunk reads it.
  const int most = k->pairs / (static_cast<int>(recurrence.size()) - 1);
  const int lag_c = k->unroll == 1 ? o.lag_c : std::min(o.lag_c, std::max(most, 1));
  const std::vector<Step> c = Skewed(k->items, recurrence, lag_c);
  const std::vector<Step> b = Skewed(k->items, k->Solve(), o.lag_b);
  const Step beta = [k] { k->PrepareBeta(); };
  const Step copies = [k] {
    k->MoveStateIn(k->step);
    k->StartInputs(k->step + 1.0, 1.0 - k->slot);
    for (int u = 0; u < k->unroll; ++u) k->WalkTo(k->ChunkA(k->step + 2.0, u));
  };
  const std::vector<Step> d = Skewed(2 * k->items, {[k](int head) { k->WidenDecay(head); }}, 0);
  Merge({{{beta}, o.beta, o.beta},
         {{copies}, o.copies, o.copies},
         {d, o.start_d, o.end_d},
         {c, o.start_c, o.end_c},
         {b, o.start_b, o.end_b},
         {a, o.start_a, o.end_a}});

  k->FinishStep();
  k->StartOutput(k->step);
  k->StoreCheckpoint(k->step);
  k->MoveStateOut(k->step);
}

}  // namespace
}  // namespace mega

void CheckMega(const TpuProblem& problem) {
  KernelTakes takes;
  takes.kernel = "mega";
  takes.head_multiple = 8;
  takes.slots = takes.checkpoints = takes.precise = true;
  CheckProblem(problem, takes);
}

ir::Program BuildMegaKernel(const TpuProblem& problem, const MegaOptions& options) {
  ir::Builder builder("kda_mega");
  mega::Kernel kernel(&builder, problem, options);
  builder.VmemLimit(VmemForKernel(problem));
  builder.SideEffects();
  // The evaluator checks every address of the same program, CheckInputs the offsets and slots that
  // addresses are made of.
  builder.NoBoundsChecks();
  const ir::Builder::Label label(&builder, "chunks");
  kernel.group = builder.GridIndex(0);
  kernel.head0 = ir::AssumeMultiple(kernel.group * static_cast<double>(kernel.heads), 8);
  kernel.PrepareConstants();
  const Value chunks = kernel.CountChunks();
  kernel.StartWalk();
  const Value zero = builder.Constant(DType::kI32, 0);
  for (int chunk = 0; chunk < 2 * kernel.unroll; ++chunk) kernel.WalkTo(zero + chunk);
  kernel.StartInputs(zero, zero);
  const Value steps = kernel.unroll == 1 ? chunks + 2.0 : ir::ShiftRight(chunks + 1.0, 1) + 2.0;
  const ir::Builder::Label steps_label(&builder, kStepsLabel);
  builder.For(0, Index(steps), [&](Value step) {
    kernel.step = step;
    mega::WriteStep(&kernel);
  });
  kernel.Finish(steps);
  ir::Program program = builder.Take();
  CheckVmem("mega", program);
  return program;
}

ir::Program BuildMegaKernel(const TpuProblem& problem) {
  return BuildMegaKernel(problem, MegaDefaults(problem));
}

void BuildMega(const TpuProblem& problem, hlo::Module* module) {
  BuildMega(problem, module, MegaDefaults(problem));
}

void BuildMega(const TpuProblem& p, hlo::Module* m, const MegaOptions& options) {
  ir::Program program = BuildMegaKernel(p, options);
  const int64_t T = p.tokens, H = p.heads, N = p.sequences, group = MegaHeadGroup(H);
  const int64_t states = p.slots > 0 ? p.slots : N;
  const DType bf16 = DType::kBF16, f32 = DType::kF32, i32 = DType::kI32;
  std::vector<hlo::Value> operands = {m->Input("cu_seqlens", {i32, {N + 1}})};
  if (p.slots > 0) {
    operands.push_back(m->Input("initial_slots", {i32, {N}}));
    operands.push_back(m->Input("final_slots", {i32, {N}}));
  }
  if (p.gate != KDA_GATE_LOG) {
    if (p.has_a_log) {
      operands.push_back(Reshape(m->Input("A_log", {f32, {H}}), {H / group, 1, group}));
    }
    if (p.has_dt_bias) {
      operands.push_back(Reshape(m->Input("dt_bias", {f32, {H, kDim}}), {H / group, group, kDim}));
    }
  }
  for (const char* name : {"q", "k", "v", "g"}) {
    operands.push_back(Reshape(m->Input(name, {bf16, {1, T, H, kDim}}), {T, H, kDim}));
  }
  const hlo::Value beta = m->Input("beta", {p.beta_dtype, {1, T, H}});
  const hlo::Value by_head =
      Reshape(Transpose(Reshape(beta, {T, H}), {1, 0}), {H / group, group, T});
  operands.push_back(Pad(by_head, 2, 0, MegaBetaColumns(p) - T, 0));
  if (p.initial_state) {
    operands.push_back(m->Input("initial_state", {f32, {states, H, kDim, kDim}}));
  }
  const std::vector<hlo::Value> results = m->Call(std::move(program), operands);
  m->Output("o", Reshape(results[0], {1, T, H, kDim}));
  size_t next = 1;
  if (p.final_state) m->Output("final_state", results[next++]);
  if (p.checkpoint_every > 0) m->Output("checkpoints", results[next]);
  if (p.slots > 0 && p.initial_state && p.final_state) m->Donate("initial_state", "final_state");
}

}  // namespace kda::tpu
