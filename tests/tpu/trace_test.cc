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

TEST(Trace, LabelsHaveStageAndHead) {
  EXPECT_EQ(StageOf("intra:h12"), "intra");
  EXPECT_EQ(HeadOf("intra:h12"), 12);
  for (const char* label : {"intra", "", ":", "intra:h", "intra:hx", "h3", "a:h-1"}) {
    EXPECT_EQ(StageOf(label), label);
    EXPECT_EQ(HeadOf(label), -1);
  }
  EXPECT_EQ(StageOf("-:12"), "-:12");
  EXPECT_GE(HeadOf("x:h99999999999999999999"), 0);
}

TEST(Trace, StagesOfAProgram) {
  const Program program = ParseBundles(Code(true), 4);
  const std::vector<StageUse> stages = SummariseStages(program, StepOf(program));
  ASSERT_EQ(stages.size(), 1U);
  EXPECT_EQ(stages[0].stage, "solve");
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
  EXPECT_NE(svg.find("<title>solve:h1 41..41, 1 instructions</title>"), std::string::npos);
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
  for (const char* part : {"power:h3", "more:h1", "then:h0", "else:h0",
                           "loop \xc3\x97"
                           "7",
                           "region", "MXU0 weights", "MXU1 result"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace kda::tpu
