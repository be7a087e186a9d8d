// What bench, ladder and demo print of their measurements.
#ifndef KDA_CLI_REPORT_H_
#define KDA_CLI_REPORT_H_

#include <string>
#include <vector>

#include "cli/measure.h"

namespace kda::cli {

// The measurements of one problem, as implementations.
struct Point {
  Batch batch;
  std::string verified;
  std::vector<Measurement> measurements;
};

// Every implementation against each one named before it that differs in the rung alone or in the
// instruction set alone, over the points where both passed.
std::vector<Comparison> ComparePairs(const std::vector<Point>& points);

// A row for each point and implementation.
std::string PointsTable(const std::vector<Point>& points, int64_t value_heads);

// Batches replayed one after another: for each implementation the spread over batches of the median
// time of one, the sum, and tokens per second of the real and of the padded tokens.
std::string ReplayTable(int64_t batch, const std::vector<Point>& points);
extern const char kReplayLegend[];  // what its columns are, a line each
Json ReplayJson(int64_t batch, const std::vector<Point>& points);

// One line for each distinct thing that ran: "optimized: cpu, avx512, ...".
std::string WhatRan(const std::vector<Point>& points);

// Prints what failed on stderr; the number of failures.
int64_t ReportFailures(const std::vector<Point>& points);

// Seed, switches and threads of a measured command.
void AddToManifest(const GeneratorFlags& generator, const ExecutionFlags& execution,
                   const Bench& bench, Json* manifest);

}  // namespace kda::cli

#endif  // KDA_CLI_REPORT_H_
