#include "tpu/ladder/kernels.h"

#include <functional>
#include <string>
#include <vector>

#include "tpu/activation.h"
#include "tpu/ir/builder.h"
#include "tpu/ladder/inter_chunk.h"
#include "tpu/ladder/output.h"
#include "tpu/problem.h"

namespace kda::tpu {

namespace {

using ir::DType;
using ir::Index;
using ir::Ref;
using ir::Shape;
using ir::Value;
using Indices = std::vector<Value>;

// What the kernels' declarations share. The grid's last dimension walks over chunks, the one before
// it over blocks of heads; with the grid of all sequences, the first over those.
class Frame {
 public:
  Frame(const std::string& name, const LadderKernel& k, bool by_sequence = false)
      : k_(k), b_(name), by_sequence_(by_sequence) {
    const int64_t blocks = k.head_block ? 1 : k.heads;
    if (by_sequence) {
      b_.Grid({k.sequences, blocks, k.longest});
    } else {
      b_.Grid({blocks, k.chunks});
    }
    if (k.vmem_limit > 0) b_.VmemLimit(k.vmem_limit);
  }

  ir::Builder* builder() { return &b_; }
  int64_t block() const { return k_.head_block ? k_.heads : 1; }

  void Tables() {
    if (by_sequence_) {
      first_ = b_.Prefetch("first_chunk", DType::kI32, {k_.sequences});
      count_ = b_.Prefetch("chunk_count", DType::kI32, {k_.sequences});
    } else {
      sequence_ = b_.Prefetch("sequence", DType::kI32, {k_.chunks});
      begins_ = b_.Prefetch("begins", DType::kI32, {k_.chunks});
      ends_ = b_.Prefetch("ends", DType::kI32, {k_.chunks});
    }
  }

  // Windows on arrays of tokens, [H, T, width] or, native, [T, H, width] (no width: [T, H]).
  Ref In(const std::string& name, DType dtype, int64_t width, bool native = false) {
    return b_.Input(name, dtype, TokenShape(width, native), TokenBlock(width, native),
                    TokenMap(width, native));
  }
  Ref Out(const std::string& name, DType dtype, int64_t width, bool native = false) {
    return b_.Output(name, dtype, TokenShape(width, native), TokenBlock(width, native),
                     TokenMap(width, native));
  }

  // [H, 1, 128], and [H, chunks, 128, 128]: one per head, and one per head and chunk.
  Ref PerHeadRow(const std::string& name) {
    return b_.Input(name, DType::kF32, {k_.heads, 1, kDim}, {block(), 1, kDim},
                    [this](const Indices& g) {
                      return Indices{HeadBlock(g), Zero(), Zero()};
                    });
  }
  ir::Builder::IndexMap ChunkStateMap() {
    return [this](const Indices& g) { return Indices{HeadBlock(g), Chunk(g), Zero(), Zero()}; };
  }
  Shape ChunkStates() const { return {k_.heads, k_.chunks, kDim, kDim}; }
  Shape ChunkState() const { return {block(), 1, kDim, kDim}; }

  // States [N, H, 128, 128]: those of the sequence at hand.
  ir::Builder::IndexMap StateMap() {
    return [this](const Indices& g) { return Indices{Sequence(g), HeadBlock(g), Zero(), Zero()}; };
  }
  Shape States() const { return {k_.sequences, k_.heads, kDim, kDim}; }
  Shape State() const { return {1, block(), kDim, kDim}; }

  // The body's own view of the grid.
  Value ChunkIndex() { return b_.GridIndex(by_sequence_ ? 2 : 1); }

  // Calls `load` where a sequence begins, `step` on each of its chunks and `store` after the last.
  void Walk(const std::function<void()>& load, const std::function<void()>& step,
            const std::function<void()>& store) {
    const Value c = ChunkIndex();
    if (!by_sequence_) {
      When("first_chunk", ir::Load(begins_.At(c)) == 1, load);
      step();
      When("last_chunk", ir::Load(ends_.At(c)) == 1, store);
      return;
    }
    const Value count = ir::Load(count_.At(b_.GridIndex(0)));
    When("first_chunk", c == 0, load);
    When("live_chunk", c < count, step);
    // A sequence without chunks keeps its state.
    When("last_chunk", c == ir::Max(count, 1) - 1, store);
  }

  // The heads of this step, `body` with the first and the number of those done together.
  void ForHeads(const std::function<void(Index, int64_t)>& body) {
    if (!k_.serial) return body(0, block());
    const ir::Builder::Label label(&b_, "heads");
    b_.For(0, block(), [&](Value h) { body(h, 1); });
  }

 private:
  void When(const char* name, Value condition, const std::function<void()>& body) {
    const ir::Builder::Label label(&b_, name);
    b_.If(condition, body);
  }

  Shape TokenShape(int64_t width, bool native) const {
    const int64_t tokens = k_.chunks * kChunk;
    if (!native) return {k_.heads, tokens, width};
    return width == 0 ? Shape{tokens, k_.heads} : Shape{tokens, k_.heads, width};
  }
  Shape TokenBlock(int64_t width, bool native) const {
    if (!native) return {block(), kChunk, width};
    return width == 0 ? Shape{kChunk, block()} : Shape{kChunk, block(), width};
  }
  ir::Builder::IndexMap TokenMap(int64_t width, bool native) {
    return [this, width, native](const Indices& g) {
      if (!native) return Indices{HeadBlock(g), Chunk(g), Zero()};
      Indices at = {Chunk(g), HeadBlock(g)};
      if (width != 0) at.push_back(Zero());
      return at;
    };
  }

  Value Zero() { return b_.Constant(DType::kI32, 0); }
  Value HeadBlock(const Indices& g) { return g[by_sequence_ ? 1 : 0]; }
  Value Sequence(const Indices& g) { return by_sequence_ ? g[0] : ir::Load(sequence_.At(g[1])); }
  // Steps past a sequence's end stay on its last chunk: nothing is fetched for them. A sequence
  // without any points at the next one's first, or at the last of all, which then holds no tokens.
  Value Chunk(const Indices& g) {
    if (!by_sequence_) return g[1];
    const Value first = ir::Load(first_.At(g[0])), count = ir::Load(count_.At(g[0]));
    const Value at = first + ir::Min(g[2], ir::Max(count - 1, 0));
    return ir::Min(at, static_cast<double>(k_.chunks - 1));
  }

  const LadderKernel& k_;
  ir::Builder b_;
  const bool by_sequence_;
  Ref first_, count_;             // of the grid of all sequences
  Ref sequence_, begins_, ends_;  // of the flat one
};

// [heads, 64, D] f32 from heads [first, first + count) of a block.
Value LoadHeads(const Ref& ref, Index first, int64_t count) {
  return ir::Cast(ir::Load(ref.Slice(0, first, count)), DType::kF32);
}

// The same of a native block [64, H, D].
Value LoadNative(const Ref& ref) {
  return ir::Transpose(ir::Cast(ir::Load(ref), DType::kF32), {1, 0, 2});
}

Value LoadTokens(const LadderKernel& k, const Ref& ref, Index first, int64_t count) {
  return k.native() ? LoadNative(ref) : LoadHeads(ref, first, count);
}

// beta [heads, 64, 1] f32.
Value LoadBeta(const LadderKernel& k, const Ref& ref, Index first, int64_t count) {
  if (!k.native()) return LoadHeads(ref, first, count);
  const Value beta = ir::Cast(ir::Load(ref), DType::kF32);  // [64, H]
  std::vector<Value> heads;
  for (int64_t h = 0; h < count; ++h) {
    heads.push_back(ir::Reshape(ir::Cols(beta, h, 1), {1, kChunk, 1}));
  }
  return ir::Concat(heads, 0);
}

// x / |x|
Value Normalize(const LadderKernel& k, Value x) {
  if (!k.l2norm) return x;
  const Value inverse = InverseNormOfAny(&x);
  return x * inverse;
}

// Head first + i of a head-major block.
Ref HeadBlockOf(const Ref& ref, Index first, int64_t i) {
  return first.IsConstant() ? ref.At(first.constant() + i) : ref.At(first);
}

void StoreHeads(const Ref& ref, Index first, const std::vector<Value>& heads) {
  for (size_t i = 0; i < heads.size(); ++i) {
    ir::Store(HeadBlockOf(ref, first, static_cast<int64_t>(i)), ir::Cast(heads[i], ref.dtype()));
  }
}

void StoreHeads(const Ref& ref, Index first, Value heads) {
  ir::Store(ref.Slice(0, first, heads.shape()[0]), ir::Cast(heads, ref.dtype()));
}

std::vector<Value> Heads(Value x) {
  std::vector<Value> heads;
  for (int64_t i = 0; i < x.shape()[0]; ++i) heads.push_back(HeadOf(x, i));
  return heads;
}

struct IntraRefs {
  Ref u, w, kg, Aqk, T;
};

IntraRefs IntraOutputs(Frame* frame, const LadderKernel& k) {
  IntraRefs out;
  out.u = frame->Out("u", DType::kBF16, kDim);
  out.w = frame->Out("w", DType::kBF16, kDim);
  out.kg = frame->Out("kg", DType::kBF16, kDim);
  out.Aqk = frame->Out("Aqk", DType::kBF16, kChunk);
  if (k.intra.inverse) out.T = frame->Out("T", DType::kBF16, kChunk);
  return out;
}

void StoreIntra(const IntraRefs& refs, Index first, const IntraOutput& out) {
  const ir::Builder::Label label(refs.u.builder(), "intra_store");
  StoreHeads(refs.u, first, out.u);
  StoreHeads(refs.w, first, out.w);
  StoreHeads(refs.kg, first, out.kg);
  StoreHeads(refs.Aqk, first, out.Aqk);
  if (!out.T.empty()) StoreHeads(refs.T, first, out.T);
}

// What turns a gate into its sums.
struct GateRefs {
  Ref rows;     // [chunks]: tokens of each
  Ref a, bias;  // [H, 1, 128]
};

// G of g [heads, 64, 128], heads from `first` on.
Value SumGates(const LadderKernel& k, const GateRefs& refs, Value g, Index first, Value chunk) {
  const int64_t count = g.shape()[0];
  Value g2;
  if (k.gate.gate == KDA_GATE_LOG) {
    g2 = ActivateGate(k.gate, g, g, g);
  } else {
    g2 = ActivateGate(k.gate, g, LoadHeads(refs.a, first, count),
                      LoadHeads(refs.bias, first, count));
  }
  return PrefixSum(MaskRows(g2, ir::Load(refs.rows.At(chunk))));
}

}  // namespace

ir::Program GateCumsumKernel(const LadderKernel& k) {
  Frame frame("gate_cumsum", k);
  GateRefs gate;
  gate.rows = frame.builder()->Prefetch("rows", DType::kI32, {k.chunks});
  const Ref g = frame.In("g", k.gate_dtype, kDim);
  gate.a = frame.PerHeadRow("a");
  gate.bias = frame.PerHeadRow("bias");
  const Ref G = frame.Out("G", DType::kF32, kDim);
  StoreHeads(G, 0, SumGates(k, gate, LoadHeads(g, 0, 1), 0, frame.ChunkIndex()));
  return frame.builder()->Take();
}

ir::Program IntraKernel(const LadderKernel& k) {
  Frame frame("intra_chunk", k);
  const Ref q = frame.In("q", DType::kBF16, kDim), key = frame.In("k", DType::kBF16, kDim);
  const Ref v = frame.In("v", DType::kBF16, kDim), G = frame.In("G", DType::kF32, kDim);
  const Ref beta = frame.In("beta", k.beta_dtype, 1);
  const IntraRefs out = IntraOutputs(&frame, k);
  const IntraInput in = {Normalize(k, LoadHeads(q, 0, 1)), Normalize(k, LoadHeads(key, 0, 1)),
                         LoadHeads(v, 0, 1), LoadHeads(G, 0, 1), LoadHeads(beta, 0, 1)};
  StoreIntra(out, 0, IntraChunk(in, k.intra));
  return frame.builder()->Take();
}

namespace {

struct GateIntraRefs {
  Ref q, k, v, g, beta, G;
  GateRefs gate;
  IntraRefs out;
};

GateIntraRefs DeclareGateIntra(Frame* frame, const LadderKernel& k) {
  const bool native = k.native();
  GateIntraRefs r;
  r.gate.rows = frame->builder()->Prefetch("rows", DType::kI32, {k.chunks});
  r.q = frame->In("q", DType::kBF16, kDim, native);
  r.k = frame->In("k", DType::kBF16, kDim, native);
  r.v = frame->In("v", DType::kBF16, kDim, native);
  r.g = frame->In("g", k.gate_dtype, kDim, native);
  r.beta = frame->In("beta", k.beta_dtype, native ? 0 : 1, native);
  r.gate.a = frame->PerHeadRow("a");
  r.gate.bias = frame->PerHeadRow("bias");
  r.G = frame->Out("G", DType::kF32, kDim);
  r.out = IntraOutputs(frame, k);
  return r;
}

}  // namespace

int64_t GateIntraWindows(const LadderKernel& k) {
  Frame frame("gate_intra", k);
  DeclareGateIntra(&frame, k);
  return frame.builder()->Take().VmemBytes();
}

ir::Program GateIntraKernel(const LadderKernel& k) {
  Frame frame("gate_intra", k);
  const GateIntraRefs r = DeclareGateIntra(&frame, k);
  const Value chunk = frame.ChunkIndex();
  frame.ForHeads([&](Index first, int64_t count) {
    IntraInput in;
    {
      const ir::Builder::Label label(frame.builder(), "gate_cumsum");
      in.G = SumGates(k, r.gate, LoadTokens(k, r.g, first, count), first, chunk);
      StoreHeads(r.G, first, in.G);
    }
    const ir::Builder::Label label(frame.builder(), "intra_chunk");
    in.q = Normalize(k, LoadTokens(k, r.q, first, count));
    in.k = Normalize(k, LoadTokens(k, r.k, first, count));
    in.v = LoadTokens(k, r.v, first, count);
    in.beta = LoadBeta(k, r.beta, first, count);
    StoreIntra(r.out, first, IntraChunk(in, k.intra));
  });
  return frame.builder()->Take();
}

ir::Program InterKernel(const LadderKernel& k) {
  Frame frame("inter_chunk", k, k.longest > 0);
  ir::Builder* const b = frame.builder();
  frame.Tables();
  const Ref u = frame.In("u", DType::kBF16, kDim), w = frame.In("w", DType::kBF16, kDim);
  const Ref kg = frame.In("kg", DType::kBF16, kDim), G = frame.In("G", DType::kF32, kDim);
  const Ref initial =
      b->Input("S_initial", DType::kF32, frame.States(), frame.State(), frame.StateMap());
  const Ref v_new = frame.Out("v_new", DType::kF32, kDim);
  const Ref before =
      b->Output("S", DType::kF32, frame.ChunkStates(), frame.ChunkState(), frame.ChunkStateMap());
  const Ref final_state =
      b->Output("S_final", DType::kF32, frame.States(), frame.State(), frame.StateMap());
  const Ref state = b->Scratch("state", DType::kF32, {1, kDim, kDim});
  b->Alias("S_initial", "S_final");
  frame.Walk([&] { ir::Store(state, ir::Load(initial.At(0))); },
             [&] {
               const PerHead S = {ir::Load(state.At(0))};
               ir::Store(before.At({0, 0}), S[0]);
               const PerHead v = NewValues(Heads(LoadHeads(u, 0, 1)), Heads(LoadHeads(w, 0, 1)), S);
               StoreHeads(v_new, 0, v);
               const PerHead last = {ir::Load(G.At(0).Rows(kChunk - 1, 1))};
               StoreHeads(state, 0, NextState(S, last, Heads(LoadHeads(kg, 0, 1)), v));
             },
             [&] { ir::Store(final_state.At(0), ir::Load(state)); });
  return b->Take();
}

ir::Program OutputKernel(const LadderKernel& k) {
  Frame frame("output", k);
  ir::Builder* const b = frame.builder();
  const Ref q = frame.In("q", DType::kBF16, kDim), v_new = frame.In("v_new", DType::kF32, kDim);
  const Ref G = frame.In("G", DType::kF32, kDim);
  const Ref S =
      b->Input("S", DType::kF32, frame.ChunkStates(), frame.ChunkState(), frame.ChunkStateMap());
  const Ref Aqk = frame.In("Aqk", DType::kBF16, kChunk);
  const Ref o = frame.Out("o", DType::kBF16, kDim);
  const Value decayed = Normalize(k, LoadHeads(q, 0, 1)) * ir::Exp2(LoadHeads(G, 0, 1));
  StoreHeads(o, 0,
             Outputs(Heads(decayed), {ir::Load(S.At({0, 0}))}, Heads(LoadHeads(Aqk, 0, 1)),
                     {ir::Load(v_new.At(0))}, k.scale));
  return b->Take();
}

namespace {

struct InterOutputRefs {
  Ref q, u, w, kg, G, Aqk, initial, o, final_state, state;
};

InterOutputRefs DeclareInterOutput(Frame* frame, const LadderKernel& k) {
  ir::Builder* const b = frame->builder();
  frame->Tables();
  InterOutputRefs r;
  r.q = frame->In("q", DType::kBF16, kDim, k.native());
  r.u = frame->In("u", DType::kBF16, kDim);
  r.w = frame->In("w", DType::kBF16, kDim);
  r.kg = frame->In("kg", DType::kBF16, kDim);
  r.G = frame->In("G", DType::kF32, kDim);
  r.Aqk = frame->In("Aqk", DType::kBF16, kChunk);
  r.initial =
      b->Input("S_initial", DType::kF32, frame->States(), frame->State(), frame->StateMap());
  r.o = frame->Out("o", DType::kBF16, kDim, k.native());
  r.final_state =
      b->Output("S_final", DType::kF32, frame->States(), frame->State(), frame->StateMap());
  r.state = b->Scratch("state", DType::kF32, {frame->block(), kDim, kDim});
  b->Alias("S_initial", "S_final");
  return r;
}

}  // namespace

int64_t InterOutputWindows(const LadderKernel& k) {
  Frame frame("inter_output", k, k.longest > 0);
  DeclareInterOutput(&frame, k);
  return frame.builder()->Take().VmemBytes();
}

ir::Program InterOutputKernel(const LadderKernel& k) {
  Frame frame("inter_output", k, k.longest > 0);
  const InterOutputRefs r = DeclareInterOutput(&frame, k);
  const auto step = [&](Index first, int64_t count) {
    const PerHead S = Heads(ir::Load(r.state.Slice(0, first, count)));
    const Value G_all = LoadHeads(r.G, first, count);
    const Value decayed = Normalize(k, LoadTokens(k, r.q, first, count)) * ir::Exp2(G_all);
    const PerHead v =
        NewValues(Heads(LoadHeads(r.u, first, count)), Heads(LoadHeads(r.w, first, count)), S);
    const PerHead out =
        Outputs(Heads(decayed), S, Heads(LoadHeads(r.Aqk, first, count)), v, k.scale);
    const PerHead last = Heads(ir::Slice(G_all, 1, kChunk - 1, 1));
    StoreHeads(r.state, first, NextState(S, last, Heads(LoadHeads(r.kg, first, count)), v));
    if (!k.native()) return StoreHeads(r.o, first, out);
    std::vector<Value> rows;
    for (const Value& head : out) rows.push_back(ir::Reshape(head, {1, kChunk, kDim}));
    ir::Store(r.o, ir::Cast(ir::Transpose(ir::Concat(rows, 0), {1, 0, 2}), DType::kBF16));
  };
  frame.Walk([&] { ir::Store(r.state, ir::Load(r.initial.At(0))); }, [&] { frame.ForHeads(step); },
             [&] { ir::Store(r.final_state.At(0), ir::Load(r.state)); });
  return frame.builder()->Take();
}

}  // namespace kda::tpu
