#include "tpu/mega/kernel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tpu/activation.h"

namespace kda::tpu::mega {

Value Ones(Value mask) {
  Builder* const b = mask.builder();
  return Select(mask, b->Constant(DType::kF32, 1.0, mask.shape()), 0.0);
}

Halves InHalves(Value x) {
  const Value high = Bits(Bits(x, DType::kI32) & 0xffff0000u, DType::kF32);
  return {ToBF16(high), ToBF16(x - high)};
}

Value BlockDiagonal(Value a, Value b) {
  const Value zero = a.builder()->Constant(a.dtype(), 0, a.shape());
  return Concat({Concat({a, zero}, 1), Concat({zero, b}, 1)}, 0);
}

// Prefix sums within a block run from its middle token: exponents then lie within 16 gates of zero
// on either side. Of the 126 binades below 1 ten are left to the numbers that they scale: a unit
// vector's components would fade into subnormals, which count as zeros, from a bound of -5.1 on.
bool HasBoundedWay(const TpuProblem& p) {
  return p.gate == KDA_GATE_BOUNDED &&
         static_cast<double>(kBlock) / 2 * -p.lower_bound / std::log(2.0) <= 116;
}

namespace {

// Two chunks a step where nothing has to leave the chip between them: the ramps at a step's ends,
// where the matrix units wait, then come half as often.
int UnrollOf(const TpuProblem& p, const MegaOptions& o) {
  if (p.checkpoint_every > 0 || p.precise)
    return 1;  // precise: stage C has more steps than a chunk pairs
  return o.unroll;
}

constexpr int kMostLag = 64;  // more than there are items
constexpr double kMostPlace = 1e6;

const TpuProblem& Checked(const TpuProblem& p, const MegaOptions& o) {
  CheckMega(p);
  RefuseOutside("mega", "unroll", o.unroll, 1, 2);
  RefuseOutside("mega", "lag_a", o.lag_a, 0, kMostLag);
  RefuseOutside("mega", "lag_b", o.lag_b, 0, kMostLag);
  RefuseOutside("mega", "lag_c", o.lag_c, 0, kMostLag);
  const std::pair<const char*, double> places[] = {
      {"start_a", o.start_a}, {"end_a", o.end_a},  {"start_b", o.start_b}, {"end_b", o.end_b},
      {"start_c", o.start_c}, {"end_c", o.end_c},  {"start_d", o.start_d}, {"end_d", o.end_d},
      {"beta", o.beta},       {"copies", o.copies}};
  for (const auto& [name, place] : places) {
    if (!(std::fabs(place) <= kMostPlace)) {
      Refuse("mega", name, Text(place), "-1e6 to 1e6 steps");
    }
  }
  return p;
}

}  // namespace

Kernel::Kernel(Builder* builder, const TpuProblem& p, const MegaOptions& o)
    : b(builder),
      problem(Checked(p, o)),
      options(o),
      heads(MegaHeadGroup(p.heads)),
      groups(p.heads / heads),
      pairs(static_cast<int>(heads / 2)),
      unroll(UnrollOf(p, o)),
      items(unroll * pairs),
      ring(8 * unroll),
      state_ring(3 * unroll),
      copy_rows(std::min(kChunk, p.tokens)),
      bounded(HasBoundedWay(p)) {
  b->Grid({groups});
  DeclareArguments();
  DeclareScratch();
  DeclareTables();
  const auto n = static_cast<size_t>(items);
  for (auto* values : {&gate_hi_lo, &prefix, &x0, &x1, &v_new, &left_over_of, &update})
    values->resize(n);
  kg_columns.resize(n);
  for (auto* values :
       {&exponents, &q_up, &k_up, &k_down, &k_cross, &q_start, &k_start, &k_end, &read, &rest}) {
    values->resize(n);
  }
}

void Kernel::DeclareArguments() {
  const TpuProblem& p = problem;
  const int64_t T = p.tokens, H = p.heads, N = p.sequences;
  const DType bf16 = DType::kBF16, f32 = DType::kF32, i32 = DType::kI32;
  cu_seqlens = b->Prefetch("cu_seqlens", i32, {N + 1});
  if (p.slots > 0) {
    initial_slots = b->Prefetch("initial_slots", i32, {N});
    final_slots = b->Prefetch("final_slots", i32, {N});
  }
  if (p.gate != KDA_GATE_LOG) {
    if (p.has_a_log) a_log = b->InputVmem("a_log", f32, {groups, 1, heads});
    if (p.has_dt_bias) dt_bias = b->InputVmem("dt_bias", f32, {groups, heads, kDim});
  }
  q = b->Input("q", bf16, {T, H, kDim});
  k = b->Input("k", bf16, {T, H, kDim});
  v = b->Input("v", bf16, {T, H, kDim});
  g = b->Input("g", bf16, {T, H, kDim});
  beta = b->Input("beta", p.beta_dtype, {groups, heads, MegaBetaColumns(p)});
  const int64_t states = p.slots > 0 ? p.slots : N;
  const Shape state_shape = {states, H, kDim, kDim};
  if (p.initial_state) initial_state = b->Input("initial_state", f32, state_shape);
  o = b->Output("o", bf16, {T, H, kDim});
  if (p.final_state) final_state = b->Output("final_state", f32, state_shape);
  if (p.checkpoint_every > 0) {
    const Shape shape = {MegaCheckpointRows(p), H, kDim, kDim};
    checkpoints = b->Output("checkpoints", f32, shape);
  }
  if (p.slots > 0 && p.initial_state && p.final_state) b->Alias("initial_state", "final_state");
}

void Kernel::DeclareScratch() {
  const DType bf16 = DType::kBF16, f32 = DType::kF32, i32 = DType::kI32;
  const Shape in = {2, unroll, kBufferRows, heads, kDim};
  q_in = b->Scratch("q_in", bf16, in);
  k_in = b->Scratch("k_in", bf16, in);
  v_in = b->Scratch("v_in", bf16, in);
  g_in = b->Scratch("g_in", bf16, in);
  beta_in = b->Scratch("beta_in", problem.beta_dtype, {2, unroll, heads, kBetaWindow});
  o_out = b->Scratch("o_out", bf16, {2, unroll, kChunk, heads, kDim});
  state = b->Scratch("state", f32, {state_ring + 1, heads, kDim, kDim});
  if (problem.gate != KDA_GATE_LOG) {
    gate_scale = b->Scratch("gate_scale", f32, {heads, kDim});
    gate_shift = b->Scratch("gate_shift", f32, {heads, kDim});
  }
  if (problem.gate == KDA_GATE_SOFTPLUS) {
    gate_factor = b->Scratch("gate_factor", f32, {heads, kDim});
  }
  beta_lanes = b->Scratch("beta_lanes", f32, {unroll * heads, kDim});
  if (bounded) {
    prefix_matrix = Packed(b, "prefix_matrix", 1, 80);
  } else {
    level_sums = Packed(b, "level_sums", 4, kChunk);
    level_map = b->Scratch("level_map", i32, {kChunk, kDim});
    if (problem.qk_l2norm) unit_rows = b->Scratch("unit_rows", f32, {4 * items, kChunk, kDim});
  }
  level_masks = Packed(b, "level_masks", 6, kBlock);
  const int64_t P = items;
  l_both = Packed(b, "l_both", P, 64);
  l_diag = Packed(b, "l_diag", P, 64);
  l_off = Packed(b, "l_off", P, 32);
  t_work = Packed(b, "t_work", P, 64);
  t_done = Packed(b, "t_done", P, 64);
  product = Packed(b, "product", P, 32);
  qk_next = Packed(b, "qk_next", 2 * P, 128);
  qk = Packed(b, "qk", 2 * P, 128);
  kg_next = b->Scratch("kg_next", f32, {P, kDim, kDim});
  kg = b->Scratch("kg", f32, {P, kDim, kDim});
  aqk_next = Packed(b, "aqk_next", P, 64);
  aqk = Packed(b, "aqk", P, 64);
  aqk_low_next = Packed(b, "aqk_low_next", P, 64);
  aqk_low = Packed(b, "aqk_low", P, 64);
  if (problem.precise) {
    ln_next = Packed(b, "ln_next", P, 64);
    ln = Packed(b, "ln", P, 64);
    ln_low_next = Packed(b, "ln_low_next", P, 64);
    ln_low = Packed(b, "ln_low", P, 64);
  }
  decay_new = b->Scratch("decay_new", f32, {unroll * heads, kDim});
  decay_next = b->Scratch("decay_next", f32, {unroll * heads, kDim});
  decay = b->Scratch("decay", f32, {unroll * heads, kDim});
  decay_wide = b->Scratch("decay_wide", f32, {unroll * heads, kDim, kDim});
  beta_next = b->Scratch("beta_next", f32, {P, kDim});
  beta_now = b->Scratch("beta_now", f32, {P, kDim});
}

// In SMEM, and the semaphores.
void Kernel::DeclareTables() {
  const DType i32 = DType::kI32;
  const std::pair<Ref*, const char*> fields[] = {
      {&table.token, "table_token"}, {&table.valid, "table_valid"},
      {&table.rows, "table_rows"},   {&table.first, "table_first"},
      {&table.last, "table_last"},   {&table.sequence, "table_sequence"},
      {&table.state, "table_state"}};
  for (const auto& [field, name] : fields) *field = b->ScratchSmem(name, i32, {ring});
  walk = b->ScratchSmem("walk", i32, {kWalkSize});
  if (problem.checkpoint_every > 0) {
    table.checkpoint = b->ScratchSmem("table_checkpoint", i32, {ring});
    checkpoint_semaphore = b->Semaphores("checkpoint_semaphore", 1);
  }
  in_semaphore = b->Semaphores("in_semaphore", 2);
  v_semaphore = b->Semaphores("v_semaphore", 2);
  o_semaphore = b->Semaphores("o_semaphore", 2);
  state_in_semaphore = b->Semaphores("state_in_semaphore", state_ring + 1);
  state_out_semaphore = b->Semaphores("state_out_semaphore", state_ring + 1);
}

Ref Kernel::StateOf(int item, int e) const {
  return state.At(
      {Index(state_c[static_cast<size_t>(ChunkOf(item))]), Index(2 * PairOf(item) + e)});
}

Pair Kernel::LoadPair(const Ref& buffer, int item) const {
  // A word of the buffer holds two heads of one token: a pair is every (heads / 2)th row.
  const int64_t stride = heads / 2;
  const Ref words =
      buffer.At({Index(slot), Index(ChunkOf(item))}).Words().Reshape({kBufferRows * stride, kDim});
  const Value w =
      LoadStrided(words, (kBufferRows - kChunk) * stride + PairOf(item), kChunk, stride);
  return {{Bits(w << 16, DType::kF32), Bits(w & 0xffff0000u, DType::kF32)}};
}

Pair Kernel::LoadKeys(const Ref& buffer, int item) const {
  Pair x = LoadPair(buffer, item);
  if (!problem.qk_l2norm) return x;
  // Not InverseNormOfAny: its maxima, along the lanes as the sums, would take 28 % more cycles.
  for (Value& head : x.head) head = head * BroadcastTo(InverseNorm(head), {kChunk, kDim});
  return x;
}

void Kernel::StorePair(int item, Value low, Value high) const {
  const Ref words =
      o_out.At({Index(slot), Index(ChunkOf(item))}).Words().Reshape({kChunk * heads / 2, kDim});
  StoreStrided(words, PairOf(item), heads / 2, PackPair(low, high));
}

}  // namespace kda::tpu::mega
