#include "tpu/decode/kernel.h"

#include <algorithm>
#include <string>

namespace kda::tpu {

int64_t DecodeBlock(const TpuProblem& problem) {
  return std::min(problem.sequences, decode::kBlock);
}

// As XLA lays out such an array by itself: the longer side in the lanes.
bool DecodeBetaByToken(const TpuProblem& problem) {
  return problem.sequences <= std::min(problem.heads, kDim);
}

namespace decode {

namespace {

// The ring of states takes 4 MiB, the rest is small.
constexpr int64_t kMostVmem = int64_t{32} << 20;

const TpuProblem& Checked(const TpuProblem& p) {
  KernelTakes takes;
  takes.kernel = "decode";
  takes.head_multiple = kHeads;
  takes.one_token = takes.fp32_gate = takes.slots = true;
  CheckProblem(p, takes);
  return p;
}

// VMEM of windows and scratch.
int64_t VmemOf(const TpuProblem& p) {
  Builder builder("kda_decode");
  const Kernel kernel(&builder, p);
  return builder.Take().VmemBytes();
}

int64_t LimitOf(const TpuProblem& p) { return std::min(kMostVmem, VmemForKernel(p)); }

// Windows grow with the heads: how many fit is found by trying.
void CheckHeads(const TpuProblem& p) {
  if (VmemOf(p) <= LimitOf(p)) return;
  TpuProblem fewer = p;
  int64_t fits = 0, not_fit = p.heads / kHeads;
  while (not_fit - fits > 1) {
    const int64_t middle = (fits + not_fit) / 2;
    fewer.heads = middle * kHeads;
    (VmemOf(fewer) <= LimitOf(p) ? fits : not_fit) = middle;
  }
  const std::string vmem = std::to_string(LimitOf(p)) + " bytes of VMEM";
  if (fits == 0) {
    Refuse("decode", "vmem_bytes", std::to_string(p.vmem_bytes),
           "more: 8 heads do not fit into " + vmem);
  }
  Refuse("decode", "heads", std::to_string(p.heads),
         "at most " + std::to_string(fits * kHeads) + " with " + std::to_string(p.sequences) +
             (p.sequences == 1 ? " sequence" : " sequences") + ": more do not fit into " + vmem);
}

}  // namespace

Kernel::Kernel(Builder* builder, const TpuProblem& p)
    : b(builder), problem(Checked(p)), groups(p.heads / kHeads), block(DecodeBlock(p)) {
  const int64_t N = p.sequences, H = p.heads, items = N * groups;
  const DType bf16 = DType::kBF16, f32 = DType::kF32, i32 = DType::kI32;
  b->Grid({(N + block - 1) / block});
  if (p.slots > 0) {
    initial_slots = b->Prefetch("initial_slots", i32, {N});
    final_slots = b->Prefetch("final_slots", i32, {N});
  }
  if (p.gate != KDA_GATE_LOG) {
    if (p.has_a_log) a_log = b->InputSmem("a_log", f32, {H});
    if (p.has_dt_bias) dt_bias = b->InputVmem("dt_bias", f32, {groups, kHeads, kDim});
  }
  const Shape array = {items, kHeads, kDim}, window = {block * groups, kHeads, kDim};
  const Builder::IndexMap map3 = [this](const std::vector<Value>& grid) {
    const Value zero = b->Constant(DType::kI32, 0);
    return std::vector<Value>{grid[0], zero, zero};
  };
  q = b->Input("q", bf16, array, window, map3);
  k = b->Input("k", bf16, array, window, map3);
  v = b->Input("v", bf16, array, window, map3);
  g = b->Input("g", p.gate_dtype, array, window, map3);
  if (DecodeBetaByToken(p)) {
    beta = b->InputVmem("beta", p.beta_dtype, {N, H});
  } else {
    const auto map = [this](const std::vector<Value>& grid) {
      const Value at = ir::ShiftRight(grid[0], kBetaSteps);
      return std::vector<Value>{b->Constant(DType::kI32, 0), at};
    };
    beta = b->Input("beta", p.beta_dtype, {H, N}, {H, std::min(N, kDim)}, map);
  }
  const Shape state_shape = {p.slots > 0 ? p.slots : N, H, kDim, kDim};
  if (p.initial_state) initial_state = b->Input("initial_state", f32, state_shape);
  o = b->Output("o", bf16, array, window, map3);
  if (p.final_state) final_state = b->Output("final_state", f32, state_shape);
  if (p.slots > 0 && p.initial_state && p.final_state) b->Alias("initial_state", "final_state");

  states = b->Scratch("states", f32, {kRing, kHeads, kDim, kDim});
  gate_scale = b->Scratch("gate_scale", f32, {groups, kHeads, kDim});
  gate_shift = b->Scratch("gate_shift", f32, {groups, kHeads, kDim});
  betas = b->Scratch("betas", f32, {H, std::min(N, kDim)});
  columns = b->Scratch("columns", i32, {2, kDim, 2 * kHeads});
  rows = b->Scratch("rows", f32, {2, 4, kHeads, kDim});
  o_rows = b->Scratch("o_rows", f32, {kHeads, kDim});
  sequence_of = b->ScratchSmem("sequence_of", i32, {kRing});
  group_of = b->ScratchSmem("group_of", i32, {kRing});
  writing = b->ScratchSmem("writing", i32, {kRing});
  walk = b->ScratchSmem("walk", i32, {kWalkSize});
  in_semaphore = b->Semaphores("in_semaphore", kRing);
  out_semaphore = b->Semaphores("out_semaphore", kRing);
}

void Kernel::WriteStep() {
  step = b->GridIndex(0);
  {
    const Builder::Label label(b, "start");
    b->If(step == 0, [this] {
      PrepareGates();
      StartWalk();
    });
  }
  PrepareBeta();
  const Value before = step * static_cast<double>(block * groups);  // items of the steps before
  const Value tokens =
      Min(static_cast<double>(problem.sequences) - step * static_cast<double>(block),
          b->Constant(DType::kI32, static_cast<double>(block)));
  {
    const Builder::Label label(b, "first_vectors");
    turn = before & 1u;
    place = before & static_cast<uint32_t>(kRing - 1);
    IntraChunk(b->Constant(DType::kI32, 0));
  }
  const Builder::Label label(b, "items");
  count = tokens * static_cast<double>(groups);
  b->For(0, Index(count), [&](Value i) {
    local = i;
    item = before + i;
    ReadAhead(item + static_cast<double>(kAhead));
    place = item & static_cast<uint32_t>(kRing - 1);
    turn = item & 1u;
    WaitState();
    InterChunk();
    StoreOutput();
    IntraChunkOfNext();
    StartWrite();
  });
  const Builder::Label finish(b, "finish");
  b->If(step == (problem.sequences - 1) / block, [this] {
    for (int64_t i = 0; i < kRing; ++i) WaitWrite(b->Constant(DType::kI32, static_cast<double>(i)));
  });
}

}  // namespace decode

void CheckDecode(const TpuProblem& problem) { decode::CheckHeads(problem); }

ir::Program BuildDecodeKernel(const TpuProblem& problem) {
  CheckDecode(problem);
  ir::Builder builder("kda_decode");
  decode::Kernel kernel(&builder, problem);
  builder.VmemLimit(decode::LimitOf(problem));
  builder.SideEffects();
  // The evaluator checks every address of the same program, CheckInputs the slots
  // that addresses are made of.
  builder.NoBoundsChecks();
  kernel.WriteStep();
  return builder.Take();
}

void BuildDecode(const TpuProblem& p, hlo::Module* m) {
  using ir::DType;
  ir::Program program = BuildDecodeKernel(p);
  const int64_t N = p.sequences, H = p.heads, groups = H / decode::kHeads;
  const DType bf16 = DType::kBF16, f32 = DType::kF32, i32 = DType::kI32;
  std::vector<hlo::Value> operands;
  if (p.slots > 0) {
    operands.push_back(m->Input("initial_slots", {i32, {N}}));
    operands.push_back(m->Input("final_slots", {i32, {N}}));
  }
  if (p.gate != KDA_GATE_LOG) {
    if (p.has_a_log) {
      operands.push_back(m->Input("A_log", {f32, {H}}));
    }
    if (p.has_dt_bias) {
      operands.push_back(
          Reshape(m->Input("dt_bias", {f32, {H, kDim}}), {groups, decode::kHeads, kDim}));
    }
  }
  for (const char* name : {"q", "k", "v", "g"}) {
    const DType dtype = name[0] == 'g' ? p.gate_dtype : bf16;
    operands.push_back(
        Reshape(m->Input(name, {dtype, {1, N, H, kDim}}), {N * groups, decode::kHeads, kDim}));
  }
  hlo::Value beta = Reshape(m->Input("beta", {p.beta_dtype, {1, N, H}}), {N, H});
  if (!DecodeBetaByToken(p)) beta = Transpose(beta, {1, 0});
  operands.push_back(beta);
  const hlo::Type state = {f32, {p.slots > 0 ? p.slots : N, H, kDim, kDim}};
  if (p.initial_state) operands.push_back(m->Input("initial_state", state));
  const std::vector<hlo::Value> results = m->Call(std::move(program), operands);
  m->Output("o", Reshape(results[0], {1, N, H, kDim}));
  if (p.final_state) m->Output("final_state", results[1]);
  if (p.slots > 0 && p.initial_state && p.final_state) m->Donate("initial_state", "final_state");
}

}  // namespace kda::tpu
