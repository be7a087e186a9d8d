#include "tpu/ladder/ladder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/switches.h"
#include "tpu/ir/counter.h"
#include "tpu/ladder/kernels.h"
#include "tpu/ladder/layout.h"

namespace kda::tpu {

namespace {

using hlo::DType;
using hlo::Shape;
using hlo::Value;

bool Has(uint32_t switches, uint32_t bit) { return (switches & bit) != 0; }

std::string Megabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

const char* FormName(HeadForm form) {
  switch (form) {
    case HeadForm::kGrid:
      return "heads in the grid";
    case HeadForm::kSerial:
      return "heads in a loop";
    case HeadForm::kInterleaved:
      break;
  }
  return "heads interleaved";
}

// Of the table that says which chunk is whose: it is made when what runs how often is counted.
constexpr int64_t kMostCells = int64_t{1} << 26;

void CheckOptions(const LadderOptions& options) {
  const auto hex = [](uint32_t bits) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%x", bits);
    return std::string(text);
  };
  const uint32_t unknown = ~static_cast<uint32_t>(KDA_SWITCHES_ALL);
  for (const auto& [name, bits] : {std::pair<const char*, uint32_t>{"switches", options.switches},
                                   std::pair<const char*, uint32_t>{"forced", options.forced}}) {
    if ((bits & unknown) == 0) continue;
    Refuse("ladder", name, hex(bits), "of the bits " + hex(KDA_SWITCHES_ALL));
  }
  if (kda_solver_name(options.solver) == nullptr) {
    Refuse("ladder", "solver", std::to_string(options.solver),
           "auto, substitution, block or neumann64");
  }
  RefuseOutside("ladder", "form", static_cast<int64_t>(options.form),
                static_cast<int64_t>(HeadForm::kGrid),
                static_cast<int64_t>(HeadForm::kInterleaved));
  RefuseOutside("ladder", "vmem_bytes of one kernel", options.vmem_bytes, 1, kMostVmemBytes);
}

void Check(const TpuProblem& p) {
  KernelTakes takes;
  takes.kernel = "ladder";
  takes.fp32_gate = true;
  CheckProblem(p, takes);
  // Rows of the aligned layout are i32.
  RefuseOutside("ladder", "tokens + 63 sequences", p.tokens + (kChunk - 1) * p.sequences, 1,
                kMostTokens);
  const int64_t chunks = AlignedChunks(p.tokens, p.sequences);
  RefuseOutside("ladder", "chunks x sequences", chunks * p.sequences, 1, kMostCells);
  RefuseOutside("ladder", "chunks x heads", chunks * p.heads, 1, ir::kMostBlockRuns);
}

// What one kernel may take.
int64_t VmemOf(const TpuProblem& p, const LadderOptions& options) {
  return std::min(options.vmem_bytes, VmemForKernel(p));
}

// What cannot be on, given what is; each with its reason.
uint32_t Possible(const TpuProblem& p, const LadderOptions& options, std::string* reasons) {
  uint32_t on = options.switches;
  const auto drop = [&](uint32_t bit, const std::string& reason) {
    if (!Has(on, bit)) return;
    on &= ~bit;
    *reasons += "; " + core::SwitchNames(bit) + " off: " + reason;
  };
  if (p.gate != KDA_GATE_BOUNDED) {
    drop(KDA_SWITCH_SAFE_GATE, "the gate has no bound");
  } else if (!StripsFit(p.lower_bound)) {
    drop(KDA_SWITCH_SAFE_GATE, "lower_bound is too low for its exponents");
  }
  if (options.form == HeadForm::kGrid) drop(KDA_SWITCH_HEAD_BLOCK, "heads in the grid asked for");
  if (p.heads % 8 != 0) drop(KDA_SWITCH_HEAD_BLOCK, "needs heads that are a multiple of 8");
  const bool safe = Has(on, KDA_SWITCH_SAFE_GATE);
  const int64_t bytes = HeadBlockVmemBytes(p, safe);
  if (bytes > VmemOf(p, options)) {
    drop(KDA_SWITCH_HEAD_BLOCK, "takes up to " + Megabytes(bytes) + " of VMEM" +
                                    (safe ? "" : " without safe_gate") + ", there are " +
                                    Megabytes(VmemOf(p, options)));
  }
  return core::ResolveSwitches(on, reasons);
}

}  // namespace

LadderPlan PlanLadder(const TpuProblem& problem, const LadderOptions& options) {
  CheckOptions(options);
  Check(problem);
  LadderPlan plan;
  std::string reasons;
  plan.switches = Possible(problem, options, &reasons);
  const uint32_t refused = options.forced & ~plan.switches;
  if (refused != 0) {
    throw ir::BuildError("ladder: " + core::SwitchNames(refused) + " is forced, but cannot be on" +
                         reasons);
  }
  const bool safe = Has(plan.switches, KDA_SWITCH_SAFE_GATE);
  plan.solver = static_cast<kda_solver>(options.solver);
  if (plan.solver == KDA_SOLVER_AUTO) {
    plan.solver = safe ? KDA_SOLVER_NEUMANN64 : KDA_SOLVER_SUBSTITUTION;
  }
  plan.form = Has(plan.switches, KDA_SWITCH_HEAD_BLOCK) ? options.form : HeadForm::kGrid;
  plan.chunks = AlignedChunks(problem.tokens, problem.sequences);
  if (!Has(plan.switches, KDA_SWITCH_FLAT_GRID)) {
    RefuseOutside("ladder", "sequences x heads x chunks of all tokens, without flat_grid",
                  problem.sequences * problem.heads * ChunksOf(problem.tokens), 1,
                  ir::kMostBlockRuns);
  }
  plan.description = "ladder, switches " + core::SwitchNames(plan.switches) + ", solver " +
                     kda_solver_name(plan.solver) + ", " + FormName(plan.form) + reasons;
  return plan;
}

namespace {

LadderKernel KernelOf(const TpuProblem& p, const LadderPlan& plan) {
  LadderKernel k;
  k.heads = p.heads;
  k.chunks = plan.chunks;
  k.sequences = p.sequences;
  k.head_block = Has(plan.switches, KDA_SWITCH_HEAD_BLOCK);
  k.serial = k.head_block && plan.form == HeadForm::kSerial;
  k.longest = Has(plan.switches, KDA_SWITCH_FLAT_GRID) ? 0 : ChunksOf(p.tokens);
  k.gate = {p.gate, p.lower_bound};
  k.intra.strips = Has(plan.switches, KDA_SWITCH_SAFE_GATE);
  k.intra.solver = plan.solver;
  k.intra.scale = p.scale;
  k.intra.inverse = !Has(plan.switches, KDA_SWITCH_FUSE);
  k.l2norm = p.qk_l2norm;
  k.scale = p.scale;
  k.gate_dtype = p.gate_dtype;
  k.beta_dtype = p.beta_logits ? DType::kF32 : p.beta_dtype;
  return k;
}

// Tokens between two stages: aligned, [64 chunks, H, D], or as kernels
// take them, [H, 64 chunks, D].
struct Tokens {
  Value value;
  bool by_head = false;
};

class Composer {
 public:
  Composer(const TpuProblem& p, const LadderPlan& plan, int64_t vmem_bytes)
      : p_(p), k_(KernelOf(p, plan)), unified_(Has(plan.switches, KDA_SWITCH_UNIFIED_LAYOUT)) {
    if (k_.head_block) k_.vmem_limit = vmem_bytes;
    module_ = std::make_unique<hlo::Module>("ladder");
    module_->pin_windows = true;
  }

  std::unique_ptr<hlo::Module> Build(bool fuse) {
    Inputs();
    Value o, S;
    if (fuse) {
      Fused(&o, &S);
    } else {
      FourStages(&o, &S);
    }
    module_->Output("o", hlo::Reshape(Unalign(tables_, o), {1, p_.tokens, p_.heads, kDim}));
    if (p_.final_state) module_->Output("final_state", S);
    return std::move(module_);
  }

 private:
  void Inputs() {
    const int64_t T = p_.tokens, H = p_.heads;
    const auto tokens = [&](const char* name, DType dtype) {
      return hlo::Reshape(module_->Input(name, {dtype, {1, T, H, kDim}}), {T, H, kDim});
    };
    const Value q = tokens("q", DType::kBF16), k = tokens("k", DType::kBF16);
    const Value v = tokens("v", DType::kBF16), g = tokens("g", p_.gate_dtype);
    Value beta = hlo::Reshape(module_->Input("beta", {p_.beta_dtype, {1, T, H}}), {T, H});
    if (p_.beta_logits) beta = hlo::Logistic(hlo::Cast(beta, DType::kF32));
    PerHeadInputs();
    tables_ = MakeChunkTables(module_->Input("cu_seqlens", {DType::kI32, {p_.sequences + 1}}), T);
    const Shape states = {p_.sequences, H, kDim, kDim};
    S0_ = p_.initial_state ? module_->Input("initial_state", {DType::kF32, states})
                           : module_->Constant(DType::kF32, 0, states);
    q_.value = Align(tables_, q);
    key_.value = Align(tables_, k);
    v_.value = Align(tables_, v);
    g_.value = Align(tables_, g);
    beta_.value = Align(tables_, beta);
    if (!k_.native()) {
      beta_.value = hlo::Reshape(beta_.value, {beta_.value.shape()[0], H, 1});
    }
  }

  // exp(A_log), its overflow kept finite, and dt_bias, each as a row per head.
  void PerHeadInputs() {
    const Shape row = {p_.heads, 1, kDim};
    const bool log = p_.gate == KDA_GATE_LOG;
    if (p_.has_a_log && !log) {
      const Value A_log = module_->Input("A_log", {DType::kF32, {p_.heads}});
      a_ = hlo::Broadcast(hlo::Exp(hlo::Min(A_log, 88.0)), row, {0});
    } else {
      a_ = module_->Constant(DType::kF32, 1, row);
    }
    bias_ = p_.has_dt_bias && !log
                ? hlo::Reshape(module_->Input("dt_bias", {DType::kF32, {p_.heads, kDim}}), row)
                : module_->Constant(DType::kF32, 0, row);
  }

  // What a stage's kernel takes, and what it leaves for the next.
  Value Enter(const Tokens& tokens, bool native = false) const {
    if (tokens.by_head) return tokens.value;
    if (native) return unified_ ? tokens.value : GatherRowsOf(tokens.value);
    return unified_ ? ToHeads(tokens.value) : GatherChunks(tables_, tokens.value);
  }
  // Chunks as rows of the aligned layout, without turning them.
  Value GatherRowsOf(Value aligned) const {
    return hlo::Reshape(hlo::GatherSlices(aligned, tables_.start, 0, kChunk), aligned.shape());
  }
  Tokens Leave(Value by_head) const {
    return unified_ ? Tokens{by_head, true} : Tokens{ScatterChunks(tables_, by_head), false};
  }
  Value Aligned(Value by_head) const {
    return unified_ ? FromHeads(by_head) : ScatterChunks(tables_, by_head);
  }

  std::vector<Value> SequenceTables() const {
    if (k_.longest > 0) return {tables_.first_chunk, tables_.chunk_count};
    return {tables_.sequence, tables_.begins, tables_.ends};
  }

  std::vector<Value> Run(ir::Program program, std::vector<Value> tables,
                         const std::vector<Value>& inputs) {
    tables.insert(tables.end(), inputs.begin(), inputs.end());
    return module_->Call(std::move(program), tables);
  }

  void FourStages(Value* o, Value* S) {
    const Tokens G = Leave(Run(GateCumsumKernel(k_), {tables_.rows}, {Enter(g_), a_, bias_})[0]);
    const std::vector<Value> intra =
        Run(IntraKernel(k_), {}, {Enter(q_), Enter(key_), Enter(v_), Enter(G), Enter(beta_)});
    const Tokens u = Leave(intra[0]), w = Leave(intra[1]), kg = Leave(intra[2]);
    const Tokens Aqk = Leave(intra[3]);
    const std::vector<Value> inter =
        Run(InterKernel(k_), SequenceTables(), {Enter(u), Enter(w), Enter(kg), Enter(G), S0_});
    const Tokens v_new = Leave(inter[0]);
    *S = inter[2];
    *o = Aligned(
        Run(OutputKernel(k_), {}, {Enter(q_), Enter(v_new), Enter(G), inter[1], Enter(Aqk)})[0]);
  }

  void Fused(Value* o, Value* S) {
    const bool native = k_.native();
    const std::vector<Value> intra = Run(GateIntraKernel(k_), {tables_.rows},
                                         {Enter(q_, native), Enter(key_, native), Enter(v_, native),
                                          Enter(g_, native), Enter(beta_, native), a_, bias_});
    const Tokens G = Leave(intra[0]), u = Leave(intra[1]), w = Leave(intra[2]);
    const Tokens kg = Leave(intra[3]), Aqk = Leave(intra[4]);
    const std::vector<Value> out =
        Run(InterOutputKernel(k_), SequenceTables(),
            {Enter(q_, native), Enter(u), Enter(w), Enter(kg), Enter(G), Enter(Aqk), S0_});
    *S = out[1];
    if (!native) {
      *o = Aligned(out[0]);
    } else {
      *o = unified_ ? out[0] : ScatterRowsOf(out[0]);
    }
  }
  Value ScatterRowsOf(Value rows) const {
    const Value zeros = module_->Constant(rows.dtype(), 0, rows.shape());
    return hlo::ScatterRows(zeros, tables_.row, rows, 0, false);
  }

  const TpuProblem& p_;
  LadderKernel k_;
  const bool unified_;
  std::unique_ptr<hlo::Module> module_;
  ChunkTables tables_;
  Value a_, bias_, S0_;
  Tokens q_, key_, v_, g_, beta_;
};

}  // namespace

int64_t HeadBlockVmemBytes(const TpuProblem& problem, bool safe_gate) {
  LadderPlan plan;
  plan.switches = KDA_SWITCHES_ALL & ~(safe_gate ? 0 : KDA_SWITCH_SAFE_GATE);
  plan.form = HeadForm::kInterleaved;
  plan.solver = safe_gate ? KDA_SOLVER_NEUMANN64 : KDA_SOLVER_SUBSTITUTION;
  plan.chunks = 1;
  const LadderKernel k = KernelOf(problem, plan);
  // Beside the windows: values that the registers cannot hold. Per head, as libtpu 0.0.52
  // places them: some 290 KiB of products in inter_output, 110 KiB in gate_intra. Without
  // strips also the decays, [64, 64, 128] f32, of which stage by stage those of all heads may
  // be alive: the published kernel took 45.13 MB with 16 heads (libtpu 0.0.52 reorders ours to
  // 23.5 MiB, which is nothing to plan on).
  const int64_t decays = safe_gate ? 0 : kChunk * kChunk * kDim * 4;
  return std::max(GateIntraWindows(k) + problem.heads * ((int64_t{110} << 10) + decays),
                  InterOutputWindows(k) + problem.heads * (int64_t{290} << 10));
}

Ladder BuildLadder(const TpuProblem& problem, const LadderOptions& options) {
  Ladder ladder;
  ladder.plan = PlanLadder(problem, options);
  Composer composer(problem, ladder.plan, VmemOf(problem, options));
  ladder.module = composer.Build(Has(ladder.plan.switches, KDA_SWITCH_FUSE));
  for (const hlo::Kernel& kernel : ladder.module->kernels()) {
    ladder.plan.vmem_bytes = std::max(ladder.plan.vmem_bytes, kernel.program.VmemBytes());
  }
  return ladder;
}

}  // namespace kda::tpu
