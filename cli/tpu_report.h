// What `kda tpu` prints of a predicted program.
#ifndef KDA_CLI_TPU_REPORT_H_
#define KDA_CLI_TPU_REPORT_H_

#include <string>

#include "cli/manifest.h"
#include "tpu/report.h"

namespace kda::cli {

// figure, predicted_ms, kernels_ms, xla_ms, wall_ms, kernels, operations, notes.
Json ReportJson(const tpu::Report& report);
std::string ReportText(const tpu::Report& report);

}  // namespace kda::cli

#endif  // KDA_CLI_TPU_REPORT_H_
