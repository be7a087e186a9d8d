// From a problem to a predicted time: what is counted, what is built, what is predicted, and how it
// fails.
#include "tpu/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "tpu/counts.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

ProgramRequest Request(Family family, const std::vector<int64_t>& lengths, int64_t heads) {
  ProgramRequest request;
  request.family = family;
  request.problem = PackedProblem(lengths, heads);
  if (family == Family::kLadder) {
    request.problem.gate_dtype = request.problem.beta_dtype = ir::DType::kF32;
  }
  return request;
}

CompileSettings Settings(const char* target = "v6e") {
  CompileSettings settings;
  settings.target = FindTarget(target);
  settings.child = TinyRequest().child;
  settings.timeout_seconds = 300;
  return settings;
}

// Bytes of what a call must read and write at least: q, k, v, g, o in bf16, beta, states.
int64_t CompulsoryBytes(const TpuProblem& p) {
  const int64_t beta = ir::BitsOf(p.beta_dtype) / 8;
  return p.tokens * p.heads * (5 * 2 * kDim + beta) + 2 * p.sequences * p.heads * kDim * kDim * 4;
}

int64_t Chunks(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0},
                         [](int64_t sum, int64_t n) { return sum + ChunksOf(n); });
}

// The count at the node of the first loop or if with this label.
double At(const ir::Program& program, const KernelCounts& counts, const std::string& label) {
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    if (program.labels[static_cast<size_t>(program.nodes[i].label)] == label &&
        counts.lines.count(static_cast<int64_t>(i)) != 0) {
      return counts.lines.at(static_cast<int64_t>(i));
    }
  }
  return -1;
}

TEST(Counts, MegaFollowsTheLengths) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{2048, 2048, 2048, 2048}, {130, 64, 210}, {1}, {63, 0, 65}}) {
    const TpuProblem p = PackedProblem(lengths, 16);
    const ir::Program program = BuildMegaKernel(p);
    const KernelCounts counts = CountsOf(CountProgram(program, p));
    EXPECT_EQ(counts.steps, 1);  // of the grid; the chunks are a loop of the kernel's
    const double steps = At(program, counts, kStepsLabel);
    EXPECT_GT(steps, 0);
    EXPECT_LE(steps, static_cast<double>(Chunks(lengths) + p.sequences + 6));
    EXPECT_EQ(At(program, counts, "state_out"), static_cast<double>(lengths.size()));
    EXPECT_GE(counts.hbm_bytes, CompulsoryBytes(p));
  }
}

// Nothing but what must move moves at the headline: 176 MB.
TEST(Counts, MegaTrafficAtTheHeadline) {
  const TpuProblem p = PackedProblem({2048, 2048, 2048, 2048}, 16);
  const KernelCounts counts = CountsOf(CountProgram(BuildMegaKernel(p), p));
  EXPECT_LE(static_cast<double>(counts.hbm_bytes), 1.05 * static_cast<double>(CompulsoryBytes(p)));
}

// The tables that the ladder's kernels prefetch are computed by the module, from the lengths.
TEST(Counts, LadderRunsItsTables) {
  const std::vector<int64_t> lengths = {130, 0, 64, 210};
  ProgramRequest request = Request(Family::kLadder, lengths, 8);
  const BuiltProgram flat = BuildProgram(request);
  ASSERT_EQ(flat.counts.count("inter_output"), 1U);
  EXPECT_LE(flat.counts.at("inter_output").steps, Chunks(lengths) + 4);
  request.ladder.switches &= ~(KDA_SWITCH_FLAT_GRID | KDA_SWITCH_HEAD_BLOCK);
  const BuiltProgram padded = BuildProgram(request);
  const KernelCounts& counts = padded.counts.at("inter_output");
  EXPECT_EQ(counts.steps, 4 * 8 * ChunksOf(404));  // N x H x the most chunks a sequence could have
  double live = 0;
  for (const hlo::Kernel& kernel : padded.module->kernels()) {
    if (kernel.program.name == "inter_output") live = At(kernel.program, counts, "live_chunk");
  }
  EXPECT_EQ(live, 8.0 * static_cast<double>(Chunks(lengths)));
}

TEST(Counts, AreOfLines) {
  Program program;
  program.bundles = 40;
  program.blocks = {{BlockKind::kRegion, 0, 9, -1, -1, 0, "copy", 5},
                    {BlockKind::kRegion, 10, 19, -1, -1, 0, "copy", 6},
                    {BlockKind::kLoop, 20, 29, -1, -1, 0, "copy", 7},
                    {BlockKind::kRegion, 30, 34, -1, -1, 0, "copy", 8},
                    {BlockKind::kRegion, 35, 39, -1, -1, 0, "copy", 8}};
  KernelCounts counts;
  counts.lines = {{5, 1}, {6, 0}, {7, 30}, {8, 0.5}};  // split among the regions that share it
  EXPECT_EQ(CountExecutions(program, counts).blocks, (std::vector<double>{1, 0, 30, 0.25, 0.25}));
}

TEST(BuildProgram, SaysWhatItIs) {
  EXPECT_NE(BuildProgram(Request(Family::kMega, {130, 64}, 8)).description.find("mega, 8 heads"),
            std::string::npos);
  const std::string ladder = BuildProgram(Request(Family::kLadder, {130, 64}, 12)).description;
  EXPECT_NE(ladder.find("head_block off"), std::string::npos) << ladder;
  EXPECT_NE(ladder.find("T = 194 in 2 sequences"), std::string::npos) << ladder;
}

TEST(BuildProgram, RefusesWhatTheKernelDoesNotTake) {
  EXPECT_THROW(BuildProgram(Request(Family::kMega, {64}, 12)), ir::BuildError);
  EXPECT_THROW(BuildProgram(Request(Family::kDecode, {2}, 8)), ir::BuildError);
  ProgramRequest request = Request(Family::kMega, {64}, 8);
  request.problem.gate_dtype = ir::DType::kF32;
  EXPECT_THROW(BuildProgram(request), ir::BuildError);
  request = Request(Family::kLadder, {64}, 12);
  request.ladder.forced = KDA_SWITCH_HEAD_BLOCK;
  EXPECT_THROW(BuildProgram(request), ir::BuildError);
}

// What is refused: one line with the argument, its value and what is allowed,
// whatever the number, and soon.
std::string RefusalOf(const ProgramRequest& request) {
  try {
    BuildProgram(request);
  } catch (const ir::BuildError& error) {
    return error.what();
  }
  return "";
}

TEST(BuildProgram, RefusesRequestsByName) {
  for (const Family family : {Family::kMega, Family::kLadder, Family::kDecode}) {
    const ProgramRequest good = Request(family, {1, 1}, 8);
    EXPECT_EQ(RefusalOf(good), "");
    for (const int partitions : {0, -1, 3, 1 << 30}) {
      ProgramRequest request = good;
      request.partitions = partitions;
      EXPECT_NE(RefusalOf(request).find(partitions == 3 && family != Family::kLadder
                                            ? "heads is 8, but must be a multiple of 24"
                                            : "partitions is " + std::to_string(partitions)),
                std::string::npos)
          << RefusalOf(request);
    }
    ProgramRequest request = good;
    request.family = static_cast<Family>(7);
    EXPECT_NE(RefusalOf(request).find("family is 7"), std::string::npos) << RefusalOf(request);
    const int64_t most = std::numeric_limits<int64_t>::max();
    request = good;
    request.problem = PackedProblem({most, most, 2}, 8);
    EXPECT_NE(RefusalOf(request).find("tokens is " + std::to_string(most)), std::string::npos)
        << RefusalOf(request);
    request.problem = PackedProblem({-5, 7}, 8);
    EXPECT_NE(RefusalOf(request).find("lengths[0] is -5"), std::string::npos) << RefusalOf(request);
  }
}

TEST(BuildProgram, RefusesLadderOptionsByName) {
  const ProgramRequest good = Request(Family::kLadder, {64}, 8);
  const auto refusal = [&](const std::function<void(LadderOptions*)>& change) {
    ProgramRequest request = good;
    change(&request.ladder);
    return RefusalOf(request);
  };
  EXPECT_EQ(refusal([](LadderOptions* o) { o->switches = ~0U; }),
            "ladder: switches is 0xffffffff, but must be of the bits 0x1f");
  EXPECT_EQ(refusal([](LadderOptions* o) { o->forced = 1U << 30; }),
            "ladder: forced is 0x40000000, but must be of the bits 0x1f");
  EXPECT_EQ(refusal([](LadderOptions* o) { o->solver = 9; }),
            "ladder: solver is 9, but must be auto, substitution, block or neumann64");
  EXPECT_EQ(refusal([](LadderOptions* o) { o->form = static_cast<HeadForm>(9); }),
            "ladder: form is 9, but must be 0 to 2");
  EXPECT_EQ(refusal([](LadderOptions* o) { o->vmem_bytes = -1; }),
            "ladder: vmem_bytes of one kernel is -1, but must be 1 to 1099511627776");
}

// Grids and tables that nobody could wait for.
TEST(BuildProgram, RefusesWhatCannotBeCounted) {
  ProgramRequest request = Request(Family::kLadder, {int64_t{1} << 24}, 1024);
  EXPECT_NE(RefusalOf(request).find("chunks x heads is 268436480, but must be 1 to"),
            std::string::npos);
  request = Request(Family::kLadder, std::vector<int64_t>(65536, 1), 8);
  EXPECT_NE(RefusalOf(request).find("chunks x sequences is"), std::string::npos);
  request = Request(Family::kLadder, std::vector<int64_t>(512, 512), 128);
  request.ladder.switches = 0;
  EXPECT_NE(RefusalOf(request).find("chunks of all tokens"), std::string::npos)
      << RefusalOf(request);
  request = Request(Family::kMega, {int64_t{1} << 24}, 1024);  // 64 groups of 16 heads
  EXPECT_NE(RefusalOf(request).find("chunks x groups of heads, which is counted one by one, is "
                                    "16777216, but must be 1 to 5592405"),
            std::string::npos)
      << RefusalOf(request);
  request = Request(Family::kLadder, {64}, int64_t{1} << 28);
  EXPECT_NE(RefusalOf(request).find("heads is 268435456, but must be 1 to 65536"),
            std::string::npos);
}

// What that bound rests on.
TEST(Counts, MegaRunsMoreThanThreeBlocksAChunk) {
  for (const int64_t heads : {8, 16, 24, 32}) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{64000},
                                                std::vector<int64_t>(300, 64),
                                                std::vector<int64_t>(300, 1),
                                                {1},
                                                {64000, 0, 0}}) {
      for (int variant = 0; variant < 5; ++variant) {
        TpuProblem p = PackedProblem(lengths, heads);
        if (variant == 1) p.initial_state = p.final_state = false;
        if (variant == 2) p.gate = KDA_GATE_SOFTPLUS;
        if (variant == 3) p.checkpoint_every = p.tokens;
        if (variant == 4) p.precise = true;
        const ir::Counts counts = CountProgram(BuildMegaKernel(p), p);
        int64_t chunks = 0;
        for (const int64_t n : lengths) chunks += std::max<int64_t>(ChunksOf(n), 1);
        EXPECT_GT(std::accumulate(counts.block_runs.begin(), counts.block_runs.end(), int64_t{0}),
                  3 * chunks * (heads / MegaHeadGroup(heads)));
      }
    }
  }
}

TEST(CompileProgram, SaysWhatIsMissing) {
  const CompileResult none = CompileProgram({}, Settings(), false);
  EXPECT_EQ(none.status, CompileStatus::kBadRequest);
  EXPECT_EQ(none.message, "compile: a module is needed");
  EXPECT_FALSE(PredictProgram({}, Settings()).ok());
  const BuiltProgram program = BuildProgram(Request(Family::kDecode, {1, 1}, 8));
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CompileSettings settings = Settings();
    settings.timeout_seconds = seconds;
    const CompileResult result = CompileProgram(program, settings, false);
    EXPECT_EQ(result.status, CompileStatus::kBadRequest);
    EXPECT_NE(result.message.find("timeout_seconds is"), std::string::npos) << result.message;
  }
}

TEST(PredictProgram, FailsWithOneLine) {
  const BuiltProgram program = BuildProgram(Request(Family::kDecode, {1, 1}, 8));
  CompileSettings settings = Settings();
  settings.libtpu = "/no/such/libtpu.so";
  Report report = PredictProgram(program, settings);
  EXPECT_FALSE(report.ok());
  EXPECT_NE(report.error.find("/no/such/libtpu.so"), std::string::npos) << report.error;
  report = PredictProgram(program, Settings("v6e:2x2"));
  EXPECT_EQ(report.compiled.status, CompileStatus::kBadRequest);
  EXPECT_NE(report.error.find("4 cores"), std::string::npos) << report.error;
}

void ExpectComplete(const Report& report, size_t kernels) {
  ASSERT_TRUE(report.ok()) << report.error;
  const Prediction& p = report.prediction;
  ASSERT_EQ(p.kernels.size(), kernels);
  ASSERT_EQ(report.steps.size(), kernels);
  ASSERT_EQ(report.programs.size(), kernels);
  EXPECT_TRUE(p.notes.empty()) << p.notes[0];
  EXPECT_NEAR(p.device_ms, p.kernels_ms + p.xla_ms, 1e-9);
  for (size_t i = 0; i < kernels; ++i) {
    const PredictedOperation& kernel = p.kernels[i];
    EXPECT_TRUE(kernel.notes.empty()) << kernel.name << ": " << kernel.notes[0];
    EXPECT_GT(kernel.us, 0);
    EXPECT_GT(kernel.hbm_bytes, 0);
    EXPECT_GT(kernel.vmem_bytes, 0);
    EXPECT_GT(report.steps[i].cycles, 100);
    EXPECT_GE(report.steps[i].steps, 1);
    EXPECT_GE(report.programs[i], 0);
    // What the steps do not explain are a kernel's ends.
    EXPECT_LE(report.steps[i].cycles * report.steps[i].steps, kernel.cycles);
  }
}

TEST(PredictProgram, Mega) {
  KDA_NEEDS_LIBTPU();
  const BuiltProgram program = BuildProgram(Request(Family::kMega, {130, 64}, 8));
  ExpectComplete(PredictProgram(program, Settings()), 1);
}

TEST(PredictProgram, LadderFirstAndLast) {
  KDA_NEEDS_LIBTPU();
  ProgramRequest request = Request(Family::kLadder, {130, 64}, 8);
  ExpectComplete(PredictProgram(BuildProgram(request), Settings()), 2);
  request.ladder.switches = 0;
  ExpectComplete(PredictProgram(BuildProgram(request), Settings()), 4);
}

// A chip of four does the work of its heads.
TEST(PredictProgram, HeadsSharedOut) {
  ProgramRequest request = Request(Family::kMega, {130, 64}, 32);
  request.partitions = 4;
  const BuiltProgram shared = BuildProgram(request);
  EXPECT_NE(shared.description.find("on 4 chips"), std::string::npos) << shared.description;
  const BuiltProgram alone = BuildProgram(Request(Family::kMega, {130, 64}, 8));
  EXPECT_EQ(shared.counts.at("kda_mega").hbm_bytes, alone.counts.at("kda_mega").hbm_bytes);
  request.family = Family::kLadder;
  EXPECT_THROW(BuildProgram(request), ir::BuildError);
  KDA_NEEDS_LIBTPU();
  const Report report = PredictProgram(shared, Settings("v6e:2x2"));
  ExpectComplete(report, 1);
  const Report one = PredictProgram(alone, Settings());
  ASSERT_TRUE(one.ok()) << one.error;
  EXPECT_NEAR(report.prediction.kernels_ms / one.prediction.kernels_ms, 1, 0.01);
}

TEST(PredictProgram, Decode) {
  KDA_NEEDS_LIBTPU();
  const BuiltProgram program = BuildProgram(Request(Family::kDecode, {1, 1, 1}, 8));
  ExpectComplete(PredictProgram(program, Settings()), 1);
}

}  // namespace
}  // namespace kda::tpu
