// Stage gate_cumsum of the mega kernel: the activated gate and its sums over a chunk.
//
//   x  = g + dt_bias,  a = e^A_log
//   g2 = lower_bound / ln 2 * sigmoid(a x)  bounded; where intra_chunk takes the bounded way
//      = c (1 + tanh(a x / 2)), c = lower_bound / (2 ln 2), good to 2^-24 of the bound and not of itself
//      = -a softplus(x) / ln 2              softplus
//      = g / ln 2                           log
//   g2 = max(g2, -150) unless intra_chunk takes the bounded way, whose g2 are at least -7.25
//   G  = inclusive prefix sum of g2 over the chunk
//
// In: g [64, heads, 128] bf16 of a chunk; A_log [heads], dt_bias [heads, 128] fp32, once a call as
// rows [heads, 128]. Out, per pair of heads: g2 as [128, 256] bf16, both heads side by side, high
// halves above the low ones; of bounded gates also their sums, [80, 256] fp32
// (intra_chunk_unbounded.cc makes its own). The activation is fp32, on the vector unit; rows beyond
// the sequence are 0.
// Also beta [heads, 64], activated, along the lanes of a pair, [1, 128] fp32.
//
// The sums are one product with a constant 0/1 matrix W, both heads of a pair side by side. W is
// exact in bf16, and g2 = hi + lo, two bf16 halves one above the other, is good to 2^-17. Its 80
// rows give what the other stages need, each as a sum of gates of one sign (bounded gates):
//
//   rows 0..63   D_i = G_i - m(i), m = G at the middle of i's block of 32 rows (token 15 or 47)
//   row  64, 65  m0, m1
//   row  66, 67  G_last - m0, G_last - m1
//   row  68      G_last
//   row  69      m1 - m0
//
// The middle is a later row for half the block: a later gate can change the roundings of an earlier
// output of its block (docs/tpu_mega.md says by how much).
#include "tpu/activation.h"
#include "tpu/mega/kernel.h"

namespace kda::tpu::mega {

namespace {

// W, [80, 128]: columns 0..63 for the high halves, the same again for the low ones.
Value PrefixMatrix(Builder* b) {
  const Shape shape = {80, kDim};
  const Value i = b->Iota(shape, 0), j = b->Iota(shape, 1) & 63u;
  const auto upto = [&](Value last) { return Ones(j <= last); };
  const auto constant = [&](double n) { return b->Constant(DType::kI32, n, shape); };
  const Value middle = Select(i < 32, constant(15), constant(47));
  Value w = upto(i) - upto(middle);
  w = Select(i < 64, w, 0.0);
  const auto row = [&](int64_t r, Value values) { w = Select(i == r, values, w); };
  row(64, upto(constant(15)));
  row(65, upto(constant(47)));
  row(66, Ones(j > 15));
  row(67, Ones(j > 47));
  row(68, b->Constant(DType::kF32, 1.0, shape));
  row(69, upto(constant(47)) - upto(constant(15)));
  return Cast(w, DType::kBF16);
}

// 32-bit words of a [32, 128] bf16 matrix: `bits` where the condition holds for the (row, column in
// its 32-lane block) of the low half, and of the high half.
Value Words(Builder* b, uint16_t bits, const std::function<Value(Value, Value)>& condition) {
  const Shape shape = {kBlock / 2, kDim};
  const Value i = b->Iota(shape, 0) << 1, j = b->Iota(shape, 1) & 31u;
  const auto half = [&](Value row, uint32_t word) {
    const double number = static_cast<int32_t>(word);
    return Select(condition(row, j), b->Constant(DType::kI32, number, shape), 0.0);
  };
  return half(i, bits) | half(i + 1.0, static_cast<uint32_t>(bits) << 16);
}

void Zero(Builder* b, const Ref& ref) {
  b->For(0, ref.shape()[0], [&](Value i) { Store(ref.At(Index(i)), 0.0); });
}

}  // namespace

void Kernel::PrepareConstants() {
  const Builder::Label label(b, "constants");
  if (bounded) {
    prefix_matrix.Set(0, PrefixMatrix(b));
  } else {
    PrepareLevels();
  }
  // Level w of the solve, w = 1, 2, .., 16, per 32 x 32 block: rows in the second half of a block
  // of 2w, columns in the first. The last matrix is the identity.
  for (int level = 0; level < 5; ++level) {
    level_masks.SetWords(level, Words(b, 0xffff, [level](Value i, Value j) {
                           const Value row = ir::ShiftRight(i, level),
                                       column = ir::ShiftRight(j, level);
                           return ((row ^ column) == 1) & ((row & 1u) == 1);
                         }));
  }
  level_masks.SetWords(5, Words(b, 0x3f80, [](Value i, Value j) { return i == j; }));

  PrepareGates();

  // What the dummy chunks at the start read.
  for (const Packed* p : {&l_both, &l_diag, &l_off, &t_work, &t_done, &product, &qk_next, &qk,
                          &aqk_next, &aqk, &aqk_low_next, &aqk_low}) {
    Zero(b, p->ref());
  }
  for (const Ref* r : {&kg_next, &kg}) Zero(b, *r);
  if (problem.precise) {
    for (const Packed* p : {&ln_next, &ln, &ln_low_next, &ln_low}) Zero(b, p->ref());
  }
  for (const Ref* r : {&decay_new, &decay_next, &decay}) Store(*r, 0.0);
  Store(beta_next, 0.0);
  Store(beta_now, 0.0);
  Zero(b, state.At(state_ring));
}

// The gate's parameters as rows, one per head: x = (g + shift) factor, and
// what scales the activation.
void Kernel::PrepareGates() {
  if (problem.gate == KDA_GATE_LOG) return;
  const Shape rows = {heads, kDim};
  Value logs = b->Constant(DType::kF32, 0.0, rows);
  if (a_log.builder() != nullptr) {
    const Value row = Load(a_log.At(Index(group)));  // [1, heads]
    const Shape square = {heads, heads};
    logs = BroadcastTo(
        ReduceSum(Select(b->Iota(square, 0) == b->Iota(square, 1), BroadcastTo(row, square), 0.0),
                  1),
        rows);
  }
  Value shift = b->Constant(DType::kF32, 0.0, rows);
  if (dt_bias.builder() != nullptr) shift = Load(dt_bias.At(Index(group)));
  if (problem.gate == KDA_GATE_BOUNDED) {
    // Never 0 nor infinite: an infinite x keeps its sign, and 0 stays 0.
    const Value power = Exp2(Min(Max(logs * kLog2E, -125.0), 126.0));
    Store(gate_scale, bounded ? power * 0.5 : power);
    Store(gate_shift, shift);
    return;
  }
  const ScaledSoftplus of = ScaleSoftplus(logs, shift);
  Store(gate_scale, of.scale);
  Store(gate_shift, of.shift);
  Store(gate_factor, of.factor);
}

Value Kernel::BetaStart(Value chunk) const {
  return Min(Entry(table.token, chunk) & static_cast<uint32_t>(-128),
             static_cast<double>(MegaBetaColumns(problem) - kBetaWindow));
}

// beta of the step's chunk along the lanes, [c0 | c0 | c1 | c1] for every head.
void Kernel::PrepareBeta() {
  const Builder::Label label(b, "beta");
  const Shape shape = {heads, kDim};
  const Value l = b->Iota(shape, 1);
  for (int u = 0; u < unroll; ++u) {
    const Value chunk = ChunkA(step, u);
    const Value offset = Entry(table.token, chunk) - BetaStart(chunk);  // up to 192
    // Lane i of the chunk is lane offset + i of the window, in its first tile or its second.
    const Value turn = (128.0 - (offset & 127u)) & 127u;
    const auto tile = [&](int64_t start) {
      const Ref window = beta_in.At({Index(slot), Index(u)}).Slice(1, start, kDim);
      return Rotate(Cast(Load(window), DType::kF32), Index(turn), 1);
    };
    Value x = Select(l + BroadcastTo(offset, shape) < kDim, tile(0), tile(kDim));
    if (problem.beta_logits) x = Sigmoid(x);
    x = Select(l < BroadcastTo(valid_a[static_cast<size_t>(u)], shape), x, 0.0);
    Store(beta_lanes.Rows(u * heads, heads),
          Select(l < 32, x, Select(l < 96, Rotate(x, 32, 1), Rotate(x, 64, 1))));
  }
  beta_ready = true;
}

// beta of a pair along its lanes, [h0 c0 | h1 c0 | h0 c1 | h1 c1].
Value Kernel::BetaRow(int item) const {
  Require(beta_ready, "beta is read before it is along the lanes");
  const Value lane_row = b->Iota({1, kDim}, 1);
  return Select((ir::ShiftRight(lane_row, 5) & 1u) == 0, Load(beta_lanes.Rows(2 * item, 1)),
                Load(beta_lanes.Rows(2 * item + 1, 1)));
}

std::vector<Stage> Kernel::GateCumsum() {
  const double c = LeastGate2(problem.lower_bound) * (bounded ? 0.5 : 1);
  const Shape rows = {kChunk, kDim};
  std::vector<Value> inside, factor;
  for (const Value& valid : valid_a) {
    inside.push_back(row < BroadcastTo(valid, rows));
    factor.push_back(Select(inside.back(), b->Constant(DType::kF32, c, rows), 0.0));
  }
  const auto activate = [this, inside, factor](int item) {
    const auto u = static_cast<size_t>(ChunkOf(item));
    const int pair = PairOf(item);
    const Builder::Label label(b, "gate_cumsum", 2 * pair);
    const Pair x = LoadPair(g_in, item);
    std::vector<Value> hi, lo;
    for (int e = 0; e < 2; ++e) {
      const auto row_of = [&](const Ref& rows) { return Load(rows.Rows(2 * pair + e, 1)); };
      Value g2;
      if (problem.gate == KDA_GATE_BOUNDED) {
        const Value z = (x.head[e] + row_of(gate_shift)) * row_of(gate_scale);
        g2 = bounded ? Tanh(z) * factor[u] + factor[u] : Sigmoid(z) * factor[u];
      } else if (problem.gate == KDA_GATE_SOFTPLUS) {
        const Value z = (x.head[e] + row_of(gate_shift)) * row_of(gate_factor);
        g2 = Select(inside[u], -(Softplus2(z) * row_of(gate_scale)), 0.0);
      } else {
        g2 = Select(inside[u], x.head[e] * kLog2E, 0.0);
      }
      if (!bounded) g2 = Max(g2, kLeastGate2);
      const Halves halves = InHalves(g2);
      hi.push_back(halves.high);
      lo.push_back(halves.low);
    }
    gate_hi_lo[static_cast<size_t>(item)] = Concat({Concat(hi, 1), Concat(lo, 1)}, 0);
  };
  const auto sum = [this](int pair) {
    const Builder::Label label(b, "gate_cumsum", 2 * pair);
    prefix[static_cast<size_t>(pair)] =
        Dot(prefix_matrix.Get(0), gate_hi_lo[static_cast<size_t>(pair)]);
  };
  if (!bounded) return {activate};
  return {activate, sum};
}

}  // namespace kda::tpu::mega
