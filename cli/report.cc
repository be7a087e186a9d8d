#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/table.h"

namespace kda::cli {
namespace {

double RelativeError(const Verdict& verdict) { return verdict.difference.RelativeFrobenius(); }

// Of one implementation over the batches of a replay.
struct ReplaySummary {
  Statistics time;
  double total_ms = 0;
  int64_t tokens = 0, padded = 0, batches = 0;
  double max_error = 0, relative_error = 0, state_relative_error = 0;
};

ReplaySummary Summary(const std::vector<Point>& points, size_t i) {
  ReplaySummary summary;
  std::vector<double> medians;
  for (const Point& point : points) {
    const Measurement& m = point.measurements[i];
    summary.max_error = std::max(summary.max_error, m.verdicts[0].difference.max_abs);
    summary.relative_error = std::max(summary.relative_error, RelativeError(m.verdicts[0]));
    summary.state_relative_error =
        std::max(summary.state_relative_error, RelativeError(m.verdicts[1]));
    if (!m.passed) continue;
    medians.push_back(m.time.median);
    summary.total_ms += m.time.median;
    summary.tokens += point.batch.Tokens();
    summary.padded += point.batch.PaddedTokens();
    ++summary.batches;
  }
  summary.time = Summarise(medians);
  return summary;
}

}  // namespace

std::vector<Comparison> ComparePairs(const std::vector<Point>& points) {
  std::vector<Comparison> comparisons;
  if (points.empty()) return comparisons;
  const std::vector<Measurement>& first = points[0].measurements;
  for (size_t fast = 1; fast < first.size(); ++fast) {
    for (size_t slow = 0; slow < fast; ++slow) {
      // Two things changed at once would say nothing of either.
      if (first[slow].rung != first[fast].rung && first[slow].isa != first[fast].isa) continue;
      Comparison comparison{first[slow].label, first[fast].label, {}};
      for (const Point& point : points) {
        const Measurement &a = point.measurements[slow], &b = point.measurements[fast];
        if (a.passed && b.passed) comparison.ratios.push_back(a.time.median / b.time.median);
      }
      comparisons.push_back(comparison);
    }
  }
  return comparisons;
}

std::string PointsTable(const std::vector<Point>& points, int64_t value_heads) {
  Table table({"batch", "rung", "isa", "median", "p10", "p90", "runs", "token-heads/s", "max error",
               "rel error", "state rel error"});
  for (const Point& point : points) {
    for (const Measurement& m : point.measurements) {
      const double rate = double(point.batch.Tokens() * value_heads) / (m.time.median / 1e3);
      table.Add({point.batch.Describe(), m.rung, IsaRan(m.ran),
                 m.passed ? HumanTime(m.time.median) : "not timed",
                 m.passed ? HumanTime(m.time.p10) : "-", m.passed ? HumanTime(m.time.p90) : "-",
                 fmt::format("{}", m.time.count), m.passed ? HumanCount(rate) : "-",
                 fmt::format("{:.1e}", m.verdicts[0].difference.max_abs),
                 fmt::format("{:.1e}", RelativeError(m.verdicts[0])),
                 fmt::format("{:.1e}", RelativeError(m.verdicts[1]))});
    }
  }
  return table.Text();
}

const char kReplayLegend[] =
    "  median, p10, p90  of the batches' times, each the median of its runs; total: their sum\n"
    "  tokens/s          tokens of the prompts in that total, all heads computed\n"
    "  padded tokens/s   the same with each prompt counted as whole chunks of 64 tokens, as "
    "kernels\n"
    "                    count that compute a short prompt like one of 64\n"
    "  max error         largest |o - fp64| of any element checked\n"
    "  rel error         largest ||o - fp64|| / ||fp64|| of a batch (Frobenius)\n";

std::string ReplayTable(int64_t batch, const std::vector<Point>& points) {
  if (points.empty()) return "";
  Table table({"B", "rung", "isa", "batches", "median", "p10", "p90", "total", "tokens/s",
               "padded tokens/s", "max error", "rel error"});
  for (size_t i = 0; i < points[0].measurements.size(); ++i) {
    const Measurement& m = points[0].measurements[i];
    const ReplaySummary s = Summary(points, i);
    const double seconds = std::max(s.total_ms, 1e-9) / 1e3;
    table.Add({fmt::format("{}", batch), m.rung, IsaRan(m.ran), fmt::format("{}", s.batches),
               HumanTime(s.time.median), HumanTime(s.time.p10), HumanTime(s.time.p90),
               HumanTime(s.total_ms), HumanCount(double(s.tokens) / seconds),
               HumanCount(double(s.padded) / seconds), fmt::format("{:.1e}", s.max_error),
               fmt::format("{:.1e}", s.relative_error)});
  }
  return table.Text();
}

Json ReplayJson(int64_t batch, const std::vector<Point>& points) {
  Json json = {{"batch", batch}, {"batches", points.size()}};
  json["implementations"] = Json::array();
  json["comparisons"] = Json::array();
  if (points.empty()) return json;
  for (size_t i = 0; i < points[0].measurements.size(); ++i) {
    const Measurement& m = points[0].measurements[i];
    const ReplaySummary s = Summary(points, i);
    const double seconds = std::max(s.total_ms, 1e-9) / 1e3;
    json["implementations"].push_back({{"rung", m.rung == "-" ? Json(nullptr) : Json(m.rung)},
                                       {"isa", m.ran["isa"]},
                                       {"timed_batches", s.batches},
                                       {"median_of_medians_ms", s.time.median},
                                       {"p10_ms", s.time.p10},
                                       {"p90_ms", s.time.p90},
                                       {"total_ms", s.total_ms},
                                       {"tokens_per_s", double(s.tokens) / seconds},
                                       {"padded_tokens_per_s", double(s.padded) / seconds},
                                       {"max_error", s.max_error},
                                       {"relative_error", s.relative_error},
                                       {"state_relative_error", s.state_relative_error}});
  }
  for (const Comparison& comparison : ComparePairs(points)) {
    json["comparisons"].push_back(comparison.ToJson());
  }
  return json;
}

std::string WhatRan(const std::vector<Point>& points) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const Point& point : points) {
    for (const Measurement& m : point.measurements) {
      const std::pair<std::string, std::string> line(m.label,
                                                     m.ran["description"].get<std::string>());
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
    }
  }
  std::string text;
  for (const auto& [label, description] : lines) {
    text += fmt::format("  {}: {}\n", label, description);
  }
  return text;
}

int64_t ReportFailures(const std::vector<Point>& points) {
  int64_t failures = 0;
  for (const Point& point : points) {
    for (const Measurement& m : point.measurements) {
      if (m.passed) continue;
      ++failures;
      fmt::print(stderr, "not verified, so not timed: {}: {}\n", point.batch.Describe(),
                 FailureText(m));
    }
  }
  return failures;
}

void AddToManifest(const GeneratorFlags& generator, const ExecutionFlags& execution,
                   const Bench& bench, Json* manifest) {
  (*manifest)["seed"] = generator.seed;
  (*manifest)["inputs"] = {{"gate", generator.gate},
                           {"values", generator.values},
                           {"dtype", generator.dtype},
                           {"gate_dtype", generator.gate_dtype},
                           {"beta", generator.beta_logits ? "fp32 logits" : "fp32"},
                           {"initial_state", "random, fp32"},
                           {"dim_k", generator.dim_k},
                           {"dim_v", generator.dim_v}};
  (*manifest)["rungs"] = execution.rungs;
  (*manifest)["isas"] = execution.isas;
  (*manifest)["set"] = execution.sets;
  (*manifest)["solver"] = execution.solver;
  (*manifest)["threads_asked"] = execution.threads;
  (*manifest)["threads_pinned"] = bench.pinned();
}

}  // namespace kda::cli
