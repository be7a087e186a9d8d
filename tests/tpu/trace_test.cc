// The picture of a schedule, and the figures beside it.
#include "tpu/schedule/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tpu/schedule/bundles.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

// Two products of each of two heads, in turn or one head after the other.
std::string Code(bool interleaved) {
  std::string text;
  for (int i = 0; i < 8; ++i) {
    const int head = interleaved ? i % 2 : i / 4;
    text += "   " + std::to_string(i * 10) + "   : { %1 = vmatmul.f32.mxu" + std::to_string(i % 2) +
            " %v1_v0 /* loc(\"solve:h" + std::to_string(head) + "\":1:1) */ }\n";
    for (int gap = 0; gap < 40; ++gap) text += "   1   : {}\n";
  }
  return text;
}

TEST(Trace, LabelsHaveStagePartAndHead) {
  struct Row {
    const char *label, *stage, *part, *row;
    int head;
  };
  for (const Row& row : {Row{"intra_chunk:h12", "intra_chunk", "", "intra_chunk", 12},
                         {"solve:h3", "intra_chunk", "solve", "intra_chunk: solve", 3},
                         {"scores", "intra_chunk", "scores", "intra_chunk: scores", -1},
                         {"gates", "gate_cumsum", "gates", "gate_cumsum: gates", -1},
                         {"state:h7", "inter_chunk", "state", "inter_chunk: state", 7},
                         {"state_wait", "", "state_wait", "state_wait", -1},
                         {"-:523", "", "", "(no label)", -1},
                         {"", "", "", "(no label)", -1},
                         {":", "", ":", ":", -1},
                         {"intra:h", "", "intra:h", "intra:h", -1},
                         {"intra:hx", "", "intra:hx", "intra:hx", -1},
                         {"a:h-1", "", "a:h-1", "a:h-1", -1}}) {
    const LabelParts parts = PartsOf(row.label);
    EXPECT_EQ(parts.stage, row.stage) << row.label;
    EXPECT_EQ(parts.part, row.part) << row.label;
    EXPECT_EQ(parts.head, row.head) << row.label;
    EXPECT_EQ(RowName(parts.stage, parts.part), row.row) << row.label;
  }
  EXPECT_GE(PartsOf("x:h99999999999999999999").head, 0);
}

TEST(Trace, HeadsOfPairsAndChunks) {
  EXPECT_EQ(HeadNames{}.NameOf(3), "h3");
  const HeadNames pairs{8, true};
  EXPECT_EQ(pairs.NameOf(0), "h0+1");
  EXPECT_EQ(pairs.NameOf(6), "h6+7");
  EXPECT_EQ(pairs.NameOf(8), "c1 h0+1");
  EXPECT_EQ(pairs.NameOf(3), "h3") << "one head of a pair";
  const auto line = [](const char* label) {
    return std::string("   1 : { %1 = vmatmul.f32.mxu0 %v1 /* loc(\"") + label + "\":1:1) */ }\n";
  };
  const Program program = ParseBundles(line("solve:h0") + line("solve:h2") + line("solve:h8"), 4);
  const std::vector<StageUse> stages = SummariseStages(program, StepOf(program), pairs);
  ASSERT_EQ(stages.size(), 1U);
  EXPECT_EQ(stages[0].heads, 4);
  EXPECT_EQ(stages[0].chunks, 2);
}

// What the compiler adds has no label, but a number next to what it is for.
TEST(Trace, PreparationsBelongToWhatTheyPrepare) {
  const Program program = ParseBundles(
      "  0 : { %10 = vmatprep.subr.bf16.mxu0 %v1_v0  ;;  %20 = vmatprep.subr.bf16.mxu1 %v1_v0 }\n"
      "  1 : { %11 = vmatpush3.bf16.msra.mxu0 %v2_v0 /* loc(\"solve:h2\":1:1) */ }\n"
      "  2 : { %12 = vmatprep.mubr.msk.f32.mxu0 %vm1_vm0, %v3_v1 }\n"
      "  3 : { %13 = vmatmul.mubr.f32.mxu0 %v4_v0 /* loc(\"output:h4\":1:1) */ }\n"
      "  4 : { %v14_v1 = vpop.f32.mrf.mxu0  ;;  %v15_v1 = vpop.f32.mrf.mxu0 }\n",
      4);
  std::vector<std::string> labels;
  for (const Instruction& instruction : program.instructions) {
    labels.push_back(
        instruction.label < 0 ? "-" : program.labels[static_cast<size_t>(instruction.label)]);
  }
  EXPECT_EQ(labels, (std::vector<std::string>{"solve:h2", "-", "solve:h2", "output:h4", "output:h4",
                                              "output:h4", "output:h4"}));
}

TEST(Trace, StagesComeFirstAndCountFromTheRange) {
  std::string code = "  0 : { %1 = vadd.f32 %v1 /* loc(\"copies\":1:1) */ }\n";
  for (const char* label : {"-\":523", "output:h0\":1", "solve:h0\":1", "intra_chunk\":1"}) {
    code += std::string("  1 : { %1 = vadd.f32 %v1 /* loc(\"") + label + ":1) */ }\n";
  }
  const Program program = ParseBundles(code, 4);
  std::vector<std::string> rows;
  for (const StageUse& use : SummariseStages(program, {0, 4})) {
    rows.push_back(RowName(use.stage, use.part) + " " + std::to_string(use.first));
  }
  EXPECT_EQ(rows, (std::vector<std::string>{"intra_chunk 4", "intra_chunk: solve 3", "output 2",
                                            "copies 0", "(no label) 1"}));
  EXPECT_EQ(SummariseStages(program, {3, 4})[0].first, 1);
}

TEST(Trace, StagesOfAProgram) {
  const Program program = ParseBundles(Code(true), 4);
  const std::vector<StageUse> stages = SummariseStages(program, StepOf(program));
  ASSERT_EQ(stages.size(), 1U);
  EXPECT_EQ(stages[0].stage, "intra_chunk");
  EXPECT_EQ(stages[0].part, "solve");
  EXPECT_EQ(stages[0].matmuls, 8);
  EXPECT_EQ(stages[0].heads, 2);
  EXPECT_EQ(stages[0].first, 0);
  EXPECT_EQ(stages[0].last, 7 * 41);
  EXPECT_TRUE(SummariseStages(program, {5, 4}).empty());
}

TEST(Trace, InterleavingIsSeen) {
  // Products 41 cycles apart, of which no two are in one neighbourhood; closer ones.
  const auto interleaved = [](const std::string& text) {
    const Program program = ParseBundles(text, 4);
    return SummariseMatrixUse(program, StepOf(program)).interleaved;
  };
  EXPECT_EQ(interleaved(Code(true)), 0);
  std::string in_turn, apart;
  for (int i = 0; i < 100; ++i) {
    const std::string begin = "   1   : { %1 = vmatmul.f32.mxu0 %v1 /* loc(\"s:h";
    in_turn += begin + std::to_string(i % 2) + "\":1:1) */ }\n";
    apart += begin + std::to_string(i / 50) + "\":1:1) */ }\n";
  }
  EXPECT_GT(interleaved(in_turn), 0.95);
  EXPECT_LT(interleaved(apart), 0.4);
}

void ExpectPicture(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg ", 0), 0U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  for (const char* tag : {"svg", "text", "title"}) {
    const auto count = [&](const std::string& part) {
      int n = 0;
      for (size_t at = 0; (at = svg.find(part, at)) != std::string::npos; ++at) ++n;
      return n;
    };
    const std::string name = tag;
    EXPECT_EQ(count("<" + name + ">") + count("<" + name + " "), count("</" + name + ">")) << tag;
  }
  EXPECT_NE(svg.find("predicted (libtpu static schedule)"), std::string::npos);
}

TEST(Trace, Picture) {
  const Program program = ParseBundles(Code(true), 4);
  const std::string svg = TraceSvg(program, StepOf(program), "a <kernel> & \"more\"");
  ExpectPicture(svg);
  EXPECT_NE(svg.find("a &lt;kernel&gt; &amp; &quot;more&quot;"), std::string::npos);
  EXPECT_NE(svg.find("MXU1 product"), std::string::npos);
  EXPECT_NE(svg.find("<title>intra_chunk: solve h1 41..41, 1 instructions</title>"),
            std::string::npos);
  const std::string later = TraceSvg(program, {41, program.bundles - 1}, "", HeadNames{2, true});
  EXPECT_NE(later.find("<title>intra_chunk: solve h1 0..0,"), std::string::npos);
  EXPECT_NE(later.find("h0+1: heads 0 and 1"), std::string::npos);
}

TEST(Trace, PicturesOfNothing) {
  const Program empty;
  ExpectPicture(TraceSvg(empty, StepOf(empty), ""));
  const Program program = ParseBundles("   0 : { %1 = vmatmul /* loc(\"\x01<&\":1:1) */ }", 4);
  ExpectPicture(TraceSvg(program, {-5, 1000000}, ""));
  ExpectPicture(TraceSvg(program, {9, 3}, ""));
}

TEST(Trace, TinyKernel) {
  KDA_NEEDS_LIBTPU();
  CompileRequest request = TinyRequest();
  request.schedule = true;
  const CompileResult result = Compile(request);
  ASSERT_TRUE(result.ok()) << result.message;
  Schedule schedule;
  std::string error;
  ASSERT_TRUE(ReadSchedule(result.dumps, request.target->delay_slots, &schedule, &error)) << error;
  const auto kernel = std::find_if(schedule.operations.begin(), schedule.operations.end(),
                                   [](const Operation& op) { return !op.kernel.empty(); });
  ASSERT_NE(kernel, schedule.operations.end());
  const Program& program = schedule.programs.at(static_cast<size_t>(kernel->program));
  const std::string svg = TraceSvg(program, StepOf(program), kernel->kernel);
  ExpectPicture(svg);
  for (const char* part : {"power h3", "more h1", "then h0", "else h0",
                           "loop \xc3\x97"
                           "7",
                           "region", "MXU0 weights", "MXU1 result"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace kda::tpu
