// The TPUs that programs can be compiled for.
#ifndef KDA_TPU_PJRT_TARGET_H_
#define KDA_TPU_PJRT_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace kda::tpu {

struct Target {
  const char* name;         // what a user writes
  const char* topology;     // libtpu's name of it
  const char* accelerator;  // TPU_ACCELERATOR_TYPE
  int partitions;           // cores (as XLA sees them) that one program runs on
  // Of one of these, as published (jax's table of TPUs); the clock is that
  // of the chip's data sheet.
  double clock_ghz;
  double hbm_tb_s;
  int64_t vmem_bytes;
  int mxus;
  int delay_slots;  // bundles after a branch that still run; seen in the compiler's output
  // The predictor's constants were fitted on measurements of this chip; elsewhere they are assumed.
  bool fitted;
};

const Target* Targets(size_t* count);
const Target* FindTarget(const std::string& name);  // null: there is none
std::string TargetNames();                          // "v5e, v5p, ..."

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_TARGET_H_
