// Shows the schedule of a kernel: which stage and head each matrix instruction belongs to.
#ifndef KDA_TPU_SCHEDULE_TRACE_H_
#define KDA_TPU_SCHEDULE_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tpu/schedule/schedule.h"

namespace kda::tpu {

// A label is "stage" or "stage:hN", N a head (or what else tells apart the stage's copies).
std::string StageOf(const std::string& label);
int HeadOf(const std::string& label);  // -1: none

// A part of a program: bundles first..last.
struct TraceRange {
  int32_t first = 0, last = -1;
};
// One pass through the loop over the grid; the whole program where there is none.
TraceRange StepOf(const Program& program);

// What a stage issues within a range; "" are instructions without a label.
struct StageUse {
  std::string stage;
  int64_t matmuls = 0, pushes = 0, pops = 0;  // instructions
  int64_t others = 0;
  int32_t first = 0, last = 0;  // bundles
  int heads = 0;                // distinct
};
std::vector<StageUse> SummariseStages(const Program& program, TraceRange range);

// Share of the range's slots for matrix products that are in use, and of its bundles in which the
// matrix instructions just around (32 bundles) belong to more than one stage or head.
struct MatrixUse {
  double matmul = 0, matpush = 0;
  double interleaved = 0;
};
MatrixUse SummariseMatrixUse(const Program& program, TraceRange range);

// A picture of the range, in lines of 800 cycles: per matrix unit what it is given and what it
// multiplies, coloured by stage; the other units' use; loops and regions.
std::string TraceSvg(const Program& program, TraceRange range, const std::string& title);

}  // namespace kda::tpu

#endif  // KDA_TPU_SCHEDULE_TRACE_H_
