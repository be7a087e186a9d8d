// Shows the schedule of a kernel: which stage and head each matrix instruction belongs to.
#ifndef KDA_TPU_SCHEDULE_TRACE_H_
#define KDA_TPU_SCHEDULE_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tpu/schedule/schedule.h"

namespace kda::tpu {

// Labels are "name" or "name:hN", N a head (or what else tells apart the name's copies). The name
// is one of the four stages or a part of one, "solve" of intra_chunk; else, such as "state_wait",
// it is what runs around them. Operations that have none, "-:523", belong to no stage.
struct LabelParts {
  std::string stage;  // gate_cumsum, intra_chunk, inter_chunk, output; empty: none of them
  std::string part;   // of the stage, or beside all; empty: the stage itself, or no name at all
  int head = -1;      // N, -1: none
};
LabelParts PartsOf(const std::string& label);
std::string RowName(const std::string& stage, const std::string& part);  // "intra_chunk: solve"

// What the numbers of a kernel's labels mean.
struct HeadNames {
  int heads = 0;       // of one chunk; N counts on through the chunks of a step. 0: N is the head
  bool pairs = false;  // an even N is the heads N and N + 1
  int ChunkOf(int head) const { return heads > 0 ? head / heads : 0; }
  std::string NameOf(int head) const;  // "h3"; "h0+1"; of a step's second chunk "c1 h0+1"
};

// A part of a program: bundles first..last.
struct TraceRange {
  int32_t first = 0, last = -1;
};
// One pass through the loop over the grid; the whole program where there is none.
TraceRange StepOf(const Program& program);

// What a stage, or a part of one, issues within a range. The stages come first.
struct StageUse {
  std::string stage, part;                    // as PartsOf gives them
  int64_t matmuls = 0, pushes = 0, pops = 0;  // instructions
  int64_t others = 0;
  int32_t first = 0, last = 0;  // bundles, counted from the range's first
  int heads = 0, chunks = 0;    // distinct
};
std::vector<StageUse> SummariseStages(const Program& program, TraceRange range,
                                      const HeadNames& names = {});

// Share of the range's slots for matrix products that are in use, and of its bundles in which the
// matrix instructions just around (32 bundles) belong to more than one stage or head.
struct MatrixUse {
  double matmul = 0, matpush = 0;
  double interleaved = 0;
};
MatrixUse SummariseMatrixUse(const Program& program, TraceRange range);

// A picture of the range, in lines of 800 cycles: per matrix unit what it is given and what it
// multiplies, coloured by stage; the other units' use; loops and regions. Cycles count from
// the range's first bundle.
std::string TraceSvg(const Program& program, TraceRange range, const std::string& title,
                     const HeadNames& names = {});

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_TRACE_H_
