// fuse on: one pass per (sequence, block of heads). A chunk goes through all four stages while it
// is in cache; the state stays there for the whole sequence.
#include <algorithm>

#include "cpu/forward.h"

namespace kda::cpu {

namespace {

struct HeadFloats {
  int64_t chunk, state, tiles;
  int64_t total() const { return chunk + 2 * state + tiles; }
};

HeadFloats FloatsPerHead(const kda_plan& plan) {
  const bool unified = (plan.execution.switches & KDA_SWITCH_UNIFIED_LAYOUT) != 0;
  return {FloatsOf(KernelsFor(plan).buffers, DimsOf(plan.problem, kChunkRows)),
          StateFloats(plan.problem), unified ? 0 : TileFloats(plan.problem)};
}

// One value head of the block: its scratch and where its state stands.
struct Lane {
  ChunkBuffers buffers;
  float* checkpoint_state;
  int64_t checkpoint;  // the next one, in plan.checkpoints
  float* tiles;
  GateParams gate;
  HeadChunk caller;  // the chunk where the caller has it
  HeadChunk chunk;   // .. where the stages read it (a gathered tile without unified_layout)
  Upcoming upcoming;
};

// Value heads first .. first + count - 1 of one sequence.
struct Heads {
  const core::Sequence* sequence;
  int first, count;
};

// The checkpoints within the chunk, after inter_chunk's v_new.
void StoreCheckpoints(const Run& run, const core::Sequence& s, int64_t first,
                      const StateCursor& state, Lane* lane) {
  const State at = {lane->checkpoint_state, PaddedDim(run.plan.problem.dim_v)};
  ForEachCheckpoint(run.plan, s, first, lane->chunk.rows, &lane->checkpoint,
                    [&](int64_t row, int rows) {
                      AdvanceToCheckpoint(run, lane->chunk, lane->buffers, rows, state.Now(), at);
                      state.StoreCheckpoint(row, {at.data, at.ld});
                    });
}

// A chunk of one row: the decode step, which passes over the state twice instead of three times
// and, with fp32 products, gives the same bits (256 sequences of one token, 16 heads, AVX-512,
// Zen 5: 42.3 to 20.5 ms).
void OneRow(const Run& run, const core::Sequence& s, int64_t first, Lane* lane,
            StateCursor* state) {
  const bool unified = run.On(KDA_SWITCH_UNIFIED_LAYOUT);
  lane->chunk = unified ? lane->caller : Gather(lane->caller, lane->tiles);
  const State next = state->Next(first + 1 == s.length);
  DecodeRow(run, lane->chunk, state->Now(), next);
  state->Advanced(next);
  if (!unified) Scatter(lane->chunk, lane->caller);
  ForEachCheckpoint(run.plan, s, first, 1, &lane->checkpoint,
                    [&](int64_t row, int) { state->StoreCheckpoint(row, state->Now()); });
}

void ChunkStages(const Run& run, const core::Sequence& s, int64_t first, Lane* lanes,
                 StateCursor* states, int heads) {
  const Kernels& kernels = run.kernels;
  const bool unified = run.On(KDA_SWITCH_UNIFIED_LAYOUT);
  for (int h = 0; h < heads; ++h) {
    Lane& lane = lanes[h];
    lane.chunk = unified ? lane.caller : Gather(lane.caller, lane.tiles);
    kernels.gate_cumsum(lane.chunk, lane.buffers);
  }
  for (int h = 0; h < heads; ++h) run.IntraChunk()(lanes[h].chunk, lanes[h].buffers);
  for (int h = 0; h < heads; ++h) {
    kernels.delta_rule(lanes[h].chunk, lanes[h].buffers, states[h].Now(), run.solver());
  }
  for (int h = 0; h < heads; ++h) {
    kernels.output(lanes[h].chunk, lanes[h].buffers, states[h].Now());
    if (!unified) Scatter(lanes[h].chunk, lanes[h].caller);
  }
  for (int h = 0; h < heads; ++h) {
    const HeadChunk& chunk = lanes[h].chunk;
    StoreCheckpoints(run, s, first, states[h], &lanes[h]);
    const State next = states[h].Next(first + chunk.rows == s.length);
    kernels.decay_to_end(chunk, lanes[h].buffers, chunk.rows);
    kernels.advance_state(chunk, lanes[h].buffers, chunk.rows, states[h].Now(), next);
    states[h].Advanced(next);
  }
}

// `then`: what this thread probably takes up next; nullptr: nothing.
void RunHeads(const Run& run, const Heads& now, const Heads* then, float* scratch) {
  const kda_plan& plan = run.plan;
  const core::Sequence& s = *now.sequence;
  const int head = now.first, heads = now.count;
  const HeadFloats floats = FloatsPerHead(plan);
  Lane lanes[kMaxHeadsPerStep];
  StateCursor states[kMaxHeadsPerStep];
  for (int h = 0; h < heads; ++h) {
    float* const base = scratch + h * floats.total();
    LayOut(run.kernels.buffers, DimsOf(plan.problem, kChunkRows), base, &lanes[h].buffers);
    lanes[h].checkpoint_state = base + floats.chunk + floats.state;
    lanes[h].checkpoint = s.checkpoint_begin;
    lanes[h].tiles = base + floats.chunk + 2 * floats.state;
    lanes[h].gate = GateOf(run, head + h);
    states[h].Begin(run, s, head + h, base + floats.chunk);
  }
  // flat_grid off: every sequence is given the longest one's chunks, most of which may not exist.
  const int64_t own_chunks = core::CeilDiv(s.length, kChunkRows);
  const int64_t chunks = run.On(KDA_SWITCH_FLAT_GRID) ? own_chunks : plan.max_chunks;
  for (int64_t c = 0; c < chunks; ++c) {
    if (c >= own_chunks) continue;
    const int64_t first = c * kChunkRows, left = s.length - first;
    const int rows = static_cast<int>(left < kChunkRows ? left : kChunkRows);
    for (int h = 0; h < heads; ++h) {
      Lane& lane = lanes[h];
      lane.caller = ViewOf(run, s, head + h, lane.gate, first, rows);
      lane.caller.asked_for = c > 0;
      if (rows < left) {
        lane.upcoming = UpcomingOf(run, s, head + h, first + rows);
      } else if (then != nullptr && h < then->count) {
        lane.upcoming = UpcomingOf(run, *then->sequence, then->first + h, 0);
      } else {
        continue;
      }
      lane.caller.next = &lane.upcoming;
    }
    if (rows == 1) {
      for (int h = 0; h < heads; ++h) OneRow(run, s, first, &lanes[h], &states[h]);
    } else {
      ChunkStages(run, s, first, lanes, states, heads);
    }
  }
  for (int h = 0; h < heads; ++h) states[h].Finish();
}

}  // namespace

int64_t FusedWorkspaceFloats(const kda_plan& plan) {
  return plan.workers * plan.heads_per_step * FloatsPerHead(plan).total();
}

void RunFused(const Run& run, float* workspace) {
  const kda_plan& plan = run.plan;
  const int64_t heads = plan.problem.value_heads, step = plan.heads_per_step;
  const int64_t blocks = core::CeilDiv(heads, step);
  const int64_t floats = step * FloatsPerHead(plan).total();
  const int64_t tasks = static_cast<int64_t>(plan.live.size()) * blocks;
  const auto heads_of = [&](int64_t i) -> Heads {
    const int64_t first = i % blocks * step;
    return {&LiveSequence(plan, i / blocks), static_cast<int>(first),
            static_cast<int>(std::min(step, heads - first))};
  };
  ForEach(plan, tasks, [&](int64_t i, int32_t worker) {
    const int64_t next = i + plan.workers;  // threads take tasks in turns, while these are alike
    const Heads then = heads_of(std::min(next, tasks - 1));
    RunHeads(run, heads_of(i), next < tasks ? &then : nullptr, workspace + worker * floats);
  });
}

}  // namespace kda::cpu
