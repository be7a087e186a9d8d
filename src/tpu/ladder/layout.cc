#include "tpu/ladder/layout.h"

#include "tpu/problem.h"

namespace kda::tpu {

namespace {

using hlo::DType;
using hlo::Shape;
using hlo::Value;

Value I32(Value mask) { return hlo::Cast(mask, DType::kI32); }

// values[n] of the last n with thresholds[n] <= at; thresholds [N] do not fall,
// thresholds[0] <= at. As a sum over the sequences: a table of numbers is read one row at a time.
Value Lookup(Value values, Value thresholds, Value at) {
  const int64_t sequences = values.shape()[0], count = at.shape()[0];
  const Shape grid = {count, sequences};
  hlo::Module* const m = values.module();
  Value before = m->Constant(DType::kI32, 0, {1});
  if (sequences > 1) before = hlo::Concat({before, hlo::Slice(values, 0, 0, sequences - 1)}, 0);
  const Value steps = hlo::Broadcast(values - before, grid, {1});
  const Value reached = hlo::Broadcast(at, grid, {0}) >= hlo::Broadcast(thresholds, grid, {1});
  return hlo::ReduceSum(hlo::Select(reached, steps, 0.0), 1);
}

// `rows` [n] of x [.., ..], zeros where `keep` is false: what lies there may be anything.
Value PickRows(Value x, Value rows, Value keep) {
  const Value picked = hlo::GatherRows(x, rows, 0);
  return hlo::Select(hlo::Broadcast(keep, picked.shape(), {0}), picked, 0.0);
}

}  // namespace

int64_t AlignedChunks(int64_t tokens, int64_t sequences) {
  return ChunksOf(tokens + (kChunk - 1) * sequences);
}

ChunkTables MakeChunkTables(Value cu_seqlens, int64_t tokens) {
  hlo::Module* const m = cu_seqlens.module();
  const int64_t sequences = cu_seqlens.shape()[0] - 1, chunks = AlignedChunks(tokens, sequences);
  ChunkTables t;
  const Value first = hlo::Slice(cu_seqlens, 0, 0, sequences);
  const Value end = hlo::Slice(cu_seqlens, 0, 1, sequences);
  t.chunk_count = (end - first + (kChunk - 1)) / kChunk;
  const Value ends = hlo::CumSum(t.chunk_count, 0);
  t.first_chunk = ends - t.chunk_count;
  const Value total = hlo::Slice(ends, 0, sequences - 1, 1);
  const Value all_chunks = hlo::Broadcast(total, {chunks}, {0});

  const Value chunk = m->Iota({chunks}, 0);
  const Value exists = chunk < all_chunks;
  // Chunks that do not exist go on with the last sequence that has any: its state stays in place.
  const Value owner = hlo::Max(hlo::Min(chunk, all_chunks - 1.0), 0.0);
  t.sequence = Lookup(m->Iota({sequences}, 0), t.first_chunk, owner);
  t.begins = I32((chunk == Lookup(t.first_chunk, t.first_chunk, owner)) | (chunk == 0.0));
  t.ends = I32((chunk + 1.0 == Lookup(ends, t.first_chunk, owner)) |
               (chunk == static_cast<double>(chunks - 1)));
  const Value shift = first - t.first_chunk * kChunk;
  const Value last_row = Lookup(end, t.first_chunk, chunk);
  t.rows = hlo::Min(hlo::Max(last_row - chunk * kChunk - Lookup(shift, t.first_chunk, chunk), 0.0),
                    kChunk);
  t.start = hlo::Select(exists, chunk * kChunk, static_cast<double>((chunks - 1) * kChunk));

  const Value row = m->Iota({chunks * kChunk}, 0);
  const Value row_chunk = row / kChunk;
  t.row = hlo::Select(row_chunk < hlo::Broadcast(total, row.shape(), {0}), row,
                      static_cast<double>(chunks * kChunk));
  t.source = row + Lookup(shift, t.first_chunk, row_chunk);
  t.holds = t.source < Lookup(end, t.first_chunk, row_chunk);

  const Value token = m->Iota({tokens}, 0);
  t.aligned = token - Lookup(shift, first, token);
  t.owned = token < Lookup(end, first, token);
  return t;
}

Value Align(const ChunkTables& tables, Value packed) {
  return PickRows(packed, tables.source, tables.holds);
}

Value Unalign(const ChunkTables& tables, Value aligned) {
  return PickRows(aligned, tables.aligned, tables.owned);
}

Value ToHeads(Value aligned) { return hlo::Transpose(aligned, {1, 0, 2}); }
Value FromHeads(Value by_head) { return hlo::Transpose(by_head, {1, 0, 2}); }

Value GatherChunks(const ChunkTables& tables, Value aligned) {
  const Shape& shape = aligned.shape();
  const Value chunks = hlo::GatherSlices(aligned, tables.start, 0, kChunk);
  return hlo::Reshape(hlo::Transpose(chunks, {2, 0, 1, 3}), {shape[1], shape[0], shape[2]});
}

Value ScatterChunks(const ChunkTables& tables, Value by_head) {
  const Value rows = FromHeads(by_head);
  const Value zeros = rows.module()->Constant(rows.dtype(), 0, rows.shape());
  return hlo::ScatterRows(zeros, tables.row, rows, 0, false);
}

}  // namespace kda::tpu
