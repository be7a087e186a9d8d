// Reading the compiler's files: what is in them, and that damage does no harm.
#include "tpu/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "tpu/pjrt/files.h"
#include "tpu/schedule/bundles.h"
#include "tpu/schedule/executions.h"
#include "tpu/schedule/hlo.h"
#include "tpu/tiny_kernel.h"

namespace kda::tpu {
namespace {

// In the compiler's form, much shortened: a grid loop of 6 rounds around a region that holds a loop
// of 7 and, under opposite predicates, two regions of one label.
constexpr char kBundles[] = R"(= control target key start
LB: loop body
= control target key end

     0   :  { %s10_s1 = smov.u32 0 /* copy for cssa */  ;;  %s1_s0 = inlined_call_operand.hbm [shape: s32[8]] /* operand 0 */ }
   0x1 LB: > { %s11_s1 = sadd.s32 1, %s12_s1 /* copy for cssa */  ;;  %s12_s1 = sphi %s10_s1, %s11_s1 /* phi copy */ }
   0x2   : > { %5 = dma.hbm_to_vmem [thread:$0]  (!%p1_p0), /*hbm=*/%s1_s0 /* 
base_bounds: (32, 1)
second_minor_factor: 1 */ } /* Start region 25 :: End region 25 */
   0x3   : > { %p2_p1 = scmp.gt.s32.totalorder %s9_s0, 0 /* loc("-":30:5) */  ;;  %6 = sbr.rel (%p1_p0) target bundleno = 28 (0x1c), region = 28 }
   0x4   :  {}
   0x5   :  {}
   0x6   :  {}
   0x7   :  {} /* End region 26 */
   0x8 LB: >> { %s20_s2 = sadd.s32 1, %s21_s2 /* copy for cssa */  ;;  %s21_s2 = sphi %s10_s1, %s20_s2 /* phi copy */  ;;  %7 = vmatpush3.msra.mxu0 %v1_v0 /* loc("power:h3":1:1) */ }
   0x9   : >> { %p3_p2 = scmp.ge.s32.totalorder %s20_s2, 7 /* loop exit test */  ;;  %8 = vmatmul.mubr.f32.gmra.mxu1 %v2_v0 /* loc("power:h3":1:1) */ }
   0xa   : >> { %9 = sbr.rel (!%p3_p2) /* loc("loop":2:1) */ target bundleno = 8 (0x8), region = 88 }
   0xb   : >> { %v3_v1 = vpop.f32.mrf.mxu1 /* loc("power:h3":1:1) */ }
   0xc   :  {}
   0xd   :  {}
   0xe   :  {} /* End region 88 */
   0xf   : > { %p4_p3 = scmp.le.s32.totalorder %s9_s0, 0 /* loc("region":7:1) */  ;;  %10 = sbr.rel (%p4_p3) /* loc("region":7:1) */ target bundleno = 22 (0x16), region = 47 }
  0x10   :  {}
  0x11   :  {}
  0x12   :  {}
  0x13   :  {}
  0x14   : > { %11 = vst [vmem:[#allocation9_spill] sm:$0xff] %v3_v1  ;;  %v4_v1 = vpow2.f32 %v3_v1 /* loc("then:h0":5:1) */ }
  0x15   : > { %v5_v1 = vld [vmem:[#allocation9_spill]] }
  0x16 PF: > { %12 = sbr.rel (%p2_p1) /* loc("region":7:1) */ target bundleno = 28 (0x1c), region = 51 } /* Start/End empty region 47 */
  0x17   :  {}
  0x18   :  {}
  0x19   :  {}
  0x1a   :  {}
  0x1b   : > { %v6_v1 = vadd.f32 %v5_v1, %v5_v1 /* loc("else:h0":6:1) */ }
  0x1c PF: > { %p5_p4 = scmp.ge.s32.totalorder %s11_s1, 6 /* loop exit test */ }
  0x1d   :  { %13 = sbr.rel (!%p5_p4) target bundleno = 1 (0x1), region = 99 }
  0x1e   :  {}
  0x1f   :  {}
  0x20   :  {}
  0x21   :  {}
  0x22   :  { %14 = vsyncpa [#allocation7], 1 }
)";

constexpr char kUse[] = R"(
== CAPACTIY:
MATMUL, MATPUSH, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    2     2     2     4     2     1     3     3     2     2     2
== UTILIZATION:
0 0 0 0 0 0 0 0 0 0 1
0 1 0 0 0 0 0 0 0 0 2
)";

// "loop 8..14 in 1 x7 'loop'" for each block.
std::string Describe(const Program& program) {
  static constexpr const char* kKinds[] = {"loop", "region", "else", "guard"};
  std::string text;
  for (const Block& block : program.blocks) {
    text += std::string(kKinds[static_cast<int>(block.kind)]) + " " + std::to_string(block.first) +
            ".." + std::to_string(block.last) + " in " + std::to_string(block.parent);
    if (block.other >= 0) text += " of " + std::to_string(block.other);
    if (block.trips > 0) text += " x" + std::to_string(block.trips);
    if (!block.label.empty()) text += " '" + block.label + "'";
    text += "\n";
  }
  return text;
}

TEST(Bundles, BlocksOfAProgram) {
  const Program program = ParseBundles(kBundles, 4);
  EXPECT_EQ(program.bundles, 35);
  EXPECT_EQ(Describe(program),
            "loop 1..33 in -1 x6\n"
            "region 8..27 in 0\n"
            "loop 8..14 in 1 x7 'loop'\n"
            "region 20..21 in 1 'region'\n"
            "else 27..27 in 1 of 3 'region'\n");
}

TEST(Bundles, InstructionsCarryLabels) {
  const Program program = ParseBundles(kBundles, 4);
  std::map<std::pair<int, Action>, std::string> labels;
  for (const Instruction& instruction : program.instructions) {
    labels[{instruction.bundle, instruction.action}] =
        (instruction.label < 0 ? "" : program.labels[static_cast<size_t>(instruction.label)]) +
        (instruction.mxu < 0 ? "" : "@" + std::to_string(instruction.mxu));
  }
  EXPECT_EQ((labels[{8, Action::kMatpush}]), "power:h3@0");
  EXPECT_EQ((labels[{9, Action::kMatmul}]), "power:h3@1");
  EXPECT_EQ((labels[{11, Action::kMatpop}]), "power:h3@1");
  EXPECT_EQ((labels[{20, Action::kEup}]), "then:h0");
  EXPECT_EQ((labels[{27, Action::kValu}]), "else:h0");
  EXPECT_EQ((labels.count({2, Action::kDma})), 1U);
  EXPECT_EQ((labels[{15, Action::kScalar}]), "region");
  EXPECT_EQ((labels.count({4, Action::kScalar})), 0U) << "an empty bundle has no instruction";
}

TEST(Bundles, UseOfUnits) {
  Program program = ParseBundles(kBundles, 4);
  ParseUse(kUse, &program);
  ASSERT_EQ(program.use.size(), 35U) << "one per bundle, also where the file ends early";
  EXPECT_EQ(program.capacity[static_cast<size_t>(Unit::kValu)], 4);
  EXPECT_EQ(program.use[0][static_cast<size_t>(Unit::kSalu)], 1);
  EXPECT_EQ(program.use[1][static_cast<size_t>(Unit::kMatpush)], 1);
  EXPECT_EQ(program.use[2][static_cast<size_t>(Unit::kSalu)], 0);
  ParseUse("MATMUL, SOMETHING\n 1 2\n", &program);
  EXPECT_TRUE(program.use.empty()) << "unknown columns are not guessed at";
}

// Iterations of loops as the compiler writes them: "%p = test" decides on the branch.
struct Trip {
  const char* test;      // of %s20_s2
  const char* negation;  // "!" leaves when it holds
  const char* step;
  const char* initial;
  int64_t trips;
};
class Trips : public testing::TestWithParam<Trip> {};
TEST_P(Trips, AreCounted) {
  const Trip& trip = GetParam();
  const std::string text =
      std::string("   0   : { %s1_s0 = smov.u32 ") + trip.initial +
      " }\n 0x1 LB: > { %s20_s2 = sadd.s32 " + trip.step +
      ", %s21_s2  ;;  %s22_s2 = smov.u32 %s1_s0  ;;  %s21_s2 = sphi %s22_s2, %s20_s2 }\n"
      " 0x2   : > { %p3_p2 = scmp." +
      trip.test + " /* loop exit test */  ;;  %9 = sbr.rel (" + trip.negation +
      "%p3_p2) target bundleno = 1 (0x1), region = 8 }\n";
  const Program program = ParseBundles(text, 0);
  ASSERT_EQ(program.blocks.size(), 1U) << text;
  EXPECT_EQ(program.blocks[0].trips, trip.trips) << text;
}
INSTANTIATE_TEST_SUITE_P(
    Loops, Trips,
    testing::Values(Trip{"ge.s32.totalorder %s20_s2, 7", "!", "1", "0", 7},
                    Trip{"ge.s32.totalorder %s20_s2, 7", "!", "2", "0", 4},
                    Trip{"ge.s32.totalorder %s20_s2, 7", "!", "1", "3", 4},
                    Trip{"gt.s32.totalorder %s20_s2, 7", "!", "1", "0", 8},
                    Trip{"lt.s32.totalorder %s20_s2, 7", "", "1", "0", 7},
                    Trip{"le.s32.totalorder %s20_s2, 7", "", "1", "0", 8},
                    Trip{"ne.s32.totalorder %s20_s2, 8", "", "2", "0", 4},
                    Trip{"eq.s32.totalorder %s20_s2, 8", "!", "2", "0", 4},
                    Trip{"ne.s32.totalorder %s20_s2, 7", "", "2", "0", 0},
                    Trip{"gt.s32.totalorder %s20_s2, 0", "", "4294967295", "5", 5},
                    Trip{"ge.s32.totalorder %s20_s2, %s77_s0", "!", "1", "0", 0},
                    Trip{"ge.s32.totalorder %s20_s2, 0", "!", "1", "0", 1},
                    Trip{"ge.f32 %s20_s2, 7", "!", "1", "0", 0}));

// Counters that were spilled to SMEM: through a place of one value, and through one of several.
TEST(Bundles, TripsOfASpilledCounter) {
  const auto trips = [](const std::string& second_store) {
    const std::string text =
        "   0   : { %s1_s0 = smov.u32 4 }\n"
        " 0x1 LB: > { %s20_s2 = sadd.s32 2, %s21_s2  ;;  %s21_s2 = sphi %s1_s0, %s23_s2 }\n"
        " 0x2   : > { %5 = sst [smem:[#allocation4_spill]] %s20_s2 /* spill */" +
        second_store +
        " }\n 0x3   : > { %s23_s2 = sld [smem:[#allocation4_spill]] /* fill */ }\n"
        " 0x4   : > { %p3_p2 = scmp.ge.s32.totalorder %s23_s2, 10 /* loop exit test */ }\n"
        " 0x5   : > { %9 = sbr.rel (!%p3_p2) target bundleno = 1 (0x1), region = 8 }\n";
    return ParseBundles(text, 0).blocks.at(0).trips;
  };
  EXPECT_EQ(trips(""), 3);
  EXPECT_EQ(trips("  ;;  %6 = sst [smem:[#allocation4_spill]] %s77_s3"), 10)
      << "assumed to count from zero by one";
}

// Blocks lie within the program and within their parents, which come first; others exist.
void ExpectSound(const Program& program) {
  for (size_t i = 0; i < program.blocks.size(); ++i) {
    const Block& block = program.blocks[i];
    ASSERT_LE(0, block.first);
    ASSERT_LE(block.first, block.last);
    ASSERT_LT(block.last, program.bundles);
    ASSERT_LT(block.parent, static_cast<int32_t>(i));
    ASSERT_LT(block.other, static_cast<int32_t>(program.blocks.size()));
    ASSERT_GE(block.trips, 0);
    if (block.parent < 0) continue;
    const Block& parent = program.blocks[static_cast<size_t>(block.parent)];
    ASSERT_LE(parent.first, block.first);
    ASSERT_GE(parent.last, block.last);
  }
  for (const Instruction& instruction : program.instructions) {
    ASSERT_LT(instruction.bundle, program.bundles);
    ASSERT_LT(instruction.label, static_cast<int32_t>(program.labels.size()));
  }
  const Executions executions = CountExecutions(program, KernelCounts());
  ASSERT_EQ(executions.bundles.size(), static_cast<size_t>(program.bundles));
}

TEST(Bundles, TextCutAnywhere) {
  const std::string text = kBundles;
  for (size_t length = 0; length <= text.size(); ++length) {
    SCOPED_TRACE(length);
    Program program = ParseBundles(text.substr(0, length), 4);
    ParseUse(std::string(kUse).substr(0, length % sizeof kUse), &program);
    ExpectSound(program);
    if (HasFatalFailure()) return;
  }
}

// Some characters of `text` replaced: `number` says how many and which.
std::string Damaged(std::string text, int number) {
  std::mt19937 random(static_cast<unsigned>(number));
  const std::string characters = "%{}()[]=:;,/*\n 0x9-sbr.relp!\"\xff" + std::string(1, '\0');
  for (int n = 0; n < 1 + number % 40; ++n) {
    text[random() % text.size()] = characters[random() % characters.size()];
  }
  return text;
}

TEST(Bundles, TextWithWrongCharacters) {
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    ExpectSound(ParseBundles(Damaged(kBundles, i), i % 7));
    if (HasFatalFailure()) return;
  }
}

constexpr char kHlo[] = R"(HloModule m, is_scheduled=true

%fused (p0: bf16[100,8,128], p1: s32[]) -> bf16[8,128] {
  %p0 = bf16[100,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %zero = s32[] constant(0)
  %slice = bf16[1,8,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %out = bf16[8,128]{1,0:T(8,128)(2,1)} bitcast(%slice)
}

%rows (g0: bf16[64,16,128], g1: s32[32]) -> bf16[32,16,128] {
  %g0 = bf16[64,16,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %g1 = s32[32]{0:T(128)} parameter(1)
  ROOT %gather.1 = bf16[32,16,128]{2,1,0:T(8,128)(2,1)} gather(%g0, %g1), offset_dims={1,2}, slice_sizes={1,16,128}
}

%offloaded (o0: bf16[64,16,128], o1: s32[32]) -> bf16[32,16,128] {
  %o0 = bf16[64,16,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %o1 = s32[32]{0:T(128)} parameter(1)
  ROOT %rows_fusion = bf16[32,16,128]{2,1,0:T(8,128)(2,1)} fusion(%o0, %o1), kind=kCustom, calls=%rows
}, execution_thread="sparsecore"

%started (s0: bf16[64,16,128], s1: s32[32]) -> bf16[32,16,128] {
  %s0 = bf16[64,16,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %s1 = s32[32]{0:T(128)} parameter(1)
  %call-start.1 = ((bf16[64,16,128]{2,1,0:T(8,128)(2,1)}, s32[32]{0:T(128)}), bf16[32,16,128]{2,1,0:T(8,128)(2,1)}, u32[]{:S(8)}) call-start(%s0, %s1), async_execution_thread="sparsecore", to_apply=%offloaded
  ROOT %call-done.1 = bf16[32,16,128]{2,1,0:T(8,128)(2,1)} call-done(%call-start.1)
}, execution_thread="sparsecore"

%body (t: (s32[], bf16[8,128], s32[])) -> (s32[], bf16[8,128], s32[]) {
  %t = (s32[]{:T(128)}, bf16[8,128]{1,0}, s32[]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} get-tuple-element(%t), index=1
  %n = s32[]{:T(128)} get-tuple-element(%t), index=2
  %one = s32[] constant(1)
  %next = s32[]{:T(128)} add(%i, %one)
  %copy.7 = bf16[8,128]{0,1:T(8,128)(2,1)} copy(%x)
  ROOT %r = (s32[], bf16[8,128], s32[]) tuple(%next, %copy.7, %n)
}

%cond (c: (s32[], bf16[8,128], s32[])) -> pred[] {
  %c = (s32[]{:T(128)}, bf16[8,128]{1,0}, s32[]) parameter(0)
  %ci = s32[]{:T(128)} get-tuple-element(%c), index=0
  %cn = s32[]{:T(128)} get-tuple-element(%c), index=2
  ROOT %lt = pred[]{:T(512)} compare(%ci, %cn), direction=LT
}

ENTRY %main (a: bf16[100,8,128], b: s32[]) -> (bf16[8,128]) {
  %a = bf16[100,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %b = s32[]{:T(128)} parameter(1)
  %table = bf16[64,16,128]{2,1,0:T(8,128)(2,1)} parameter(2)
  %idx = s32[32]{0:T(128)S(1)} parameter(3)
  %start = s32[] constant(2)
  %limit = s32[] constant(12)
  %weights = f32[2,2] constant({ { 1, 2 }, { 3, (4) } })
  %take = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%a, %b), kind=kLoop, calls=%fused
  %gather_fusion = bf16[32,16,128]{2,1,0:T(8,128)(2,1)} fusion(%table, %idx), kind=kCustom, calls=%rows
  %gather_start = ((), (), (s32[32]{0:T(128)})) custom-call-start(), async_execution_thread="sparsecore", custom_call_target="offload", called_computations={%started}
  %gather_start.update = ((bf16[64,16,128]{2,1,0:T(8,128)(2,1)}, s32[32]{0:T(128)}), bf16[32,16,128]{2,1,0:T(8,128)(2,1)}, (s32[32]{0:T(128)})) custom-call-update(%gather_start, %table, %idx)
  %gather_done = bf16[32,16,128]{2,1,0:T(8,128)(2,1)} custom-call-done(%gather_start.update)
  %tuple.1 = (s32[], bf16[8,128], s32[]) tuple(%start, %take, %limit)
  %while.1 = (s32[]{:T(128)}, bf16[8,128]{1,0}, s32[]) while(%tuple.1), condition=%cond, body=%body
  %x1 = bf16[8,128]{1,0:T(8,128)(2,1)} get-tuple-element(%while.1), index=1
  %copy-start = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%x1)
  %copy-done = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %intra.3 = bf16[8,128]{1,0:T(8,128)(2,1)} custom-call(%copy-done), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"QUJD(((","needs_layout_passes":true}}
  ROOT %tuple.2 = (bf16[8,128]{1,0:T(8,128)(2,1)}) tuple(%intra.3)
}
)";

TEST(Hlo, Bytes) {
  EXPECT_EQ(HbmBytes("bf16[8,128]{1,0:T(8,128)(2,1)}"), 2048);
  EXPECT_EQ(HbmBytes("bf16[1,100]{1,0:T(8,128)(2,1)}"), 2048) << "padded to the tile";
  EXPECT_EQ(HbmBytes("bf16[100,1]{0,1:T(8,128)(2,1)}"), 2048) << "minor dimension first";
  EXPECT_EQ(HbmBytes("f32[8,128]{1,0:T(8,128)S(1)}"), 0) << "in VMEM";
  EXPECT_EQ(HbmBytes("(f32[2,3], /*index=1*/s32[])"), 28);
  EXPECT_EQ(HbmBytes("s4[16]"), 8);
  EXPECT_EQ(HbmBytes("token[]"), 0);
  EXPECT_EQ(HbmBytes("f32[99999999999,99999999999]"), 0) << "no overflow";
  for (const char* text : {"", "[", "f32[", "f32[8", "f32[8]{", "f32[-1]", "f32[8]{9:T(,)}"}) {
    EXPECT_GE(HbmBytes(text), 0) << text;
  }
}

TEST(Hlo, OperationsOfAModule) {
  const HloModule module = ParseHlo(kHlo);
  ASSERT_EQ(module.entry, "main");
  const HloComputation& main = *module.Find("main");
  EXPECT_EQ(OperationBytes(module, main, *main.Find("take")), 2 * 2048 + 4) << "the slice alone";
  const HloOp& gather = *main.Find("gather_fusion");
  EXPECT_EQ(FindRowMoves(module, main, gather).rows, 32);
  EXPECT_EQ(FindRowMoves(module, main, gather).opcode, "gather");
  EXPECT_EQ(OperationBytes(module, main, gather), 2 * 32 * 16 * 128 * 2);
  const HloOp& offloaded = *main.Find("gather_start");
  EXPECT_EQ(FindRowMoves(module, main, offloaded).rows, 32) << "on the SparseCore";
  EXPECT_EQ(FindRowMoves(module, main, offloaded).bytes, 2 * 32 * 16 * 128 * 2);
  EXPECT_EQ(WhileTrips(module, main, *main.Find("while.1")), 10);
  const HloOp& kernel = *main.Find("intra.3");
  EXPECT_EQ(kernel.operands, std::vector<std::string>{"copy-done"});
  EXPECT_EQ(kernel.attributes.find("QUJD"), std::string::npos);
  EXPECT_NE(kernel.attributes.find("needs_layout_passes"), std::string::npos);
}

// Nothing to expect but an end.
void AskEverything(const std::string& text) {
  const HloModule module = ParseHlo(text);
  for (const auto& [name, computation] : module.computations) {
    for (const HloOp& op : computation.ops) {
      ASSERT_GE(HbmBytes(op.result), 0);
      Elements(op.result);
      ASSERT_GE(OperationBytes(module, computation, op), 0);
      FindRowMoves(module, computation, op);
      ASSERT_GE(WhileTrips(module, computation, op), 0);
    }
  }
}

TEST(Hlo, TextWithWrongCharacters) {
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    AskEverything(Damaged(kHlo, i));
    if (HasFatalFailure()) return;
  }
}

TEST(Hlo, NumbersOfAnySize) {
  const std::string largest = std::to_string(INT64_MAX), smallest = std::to_string(INT64_MIN);
  for (const std::string& number : {largest, smallest, std::string("-1")}) {
    for (const char* known :
         {"100", "(8,128)", "32", "constant(1)", "constant(2)", "constant(12)"}) {
      std::string text = kHlo, changed = known;
      const size_t digit = changed.find_first_of("1238");
      changed.replace(digit, changed.find_first_not_of("0123456789", digit) - digit, number);
      for (size_t at = 0; (at = text.find(known, at)) != std::string::npos; at += changed.size()) {
        text.replace(at, strlen(known), changed);
      }
      SCOPED_TRACE(changed);
      AskEverything(text);
    }
  }
  EXPECT_EQ(HbmBytes("s8[" + largest + ",1]{1,0:T(8,128)}"), 0);
  EXPECT_EQ(HbmBytes("(s4[" + largest + "], s4[" + largest + "])"), 0);
  const std::string eighth = "s8[" + std::to_string(INT64_MAX / 8) + "]";
  std::string tuple = "(";
  for (int i = 0; i < 9; ++i) tuple += eighth + ", ";
  EXPECT_EQ(HbmBytes(tuple + ")"), INT64_MAX);
}

// A folder as the compiler leaves it.
void WriteDumps(const std::string& folder, const std::string& bundles, const std::string& use,
                const std::string& hlo) {
  ASSERT_TRUE(WriteFile(folder + "/17-TLP-hlo.txt", hlo));
  ASSERT_TRUE(WriteFile(folder + "/18-intra.3-01-packed-bundles-post-ra.txt", bundles));
  ASSERT_TRUE(
      WriteFile(folder + "/18-intra.3-00-schedule-analysis_packed-bundles-post-ra.txt", "x"));
  ASSERT_TRUE(
      WriteFile(folder + "/18-intra.3-02-pre-delay_hlo-static-per-bundle-utilization.txt", use));
  ASSERT_TRUE(WriteFile(folder + "/19-copy.1-01-packed-bundles-post-ra.txt", "     0   :  {}\n"));
  ASSERT_TRUE(WriteFile(folder + "/17-TLP-00-deduplication-map.txt",
                        "key:copy.1\nordinal:2\nequivalent_hlos[size=2]:\n  copy.1\n  copy.7\n"));
  ASSERT_TRUE(WriteFile(folder + "/17-TLP-04-vmem_report.html",
                        "    \"intra.3\": {\n          \"block_size\": 512,\n"
                        "          \"block_type\": \"SPILL\"\n      \"total_size\": 4096\n"));
}

TEST(Schedule, OfAFolder) {
  TempFolder folder;
  WriteDumps(folder.path(), kBundles, kUse, kHlo);
  Schedule schedule;
  std::string error;
  ASSERT_TRUE(ReadSchedule(folder.path(), 4, &schedule, &error)) << error;
  std::string text;
  for (const Operation& operation : schedule.operations) {
    text += operation.name + " " + OperationKindName(operation.kind) + " x" +
            std::to_string(static_cast<int>(operation.times)) + " " +
            std::to_string(operation.hbm_bytes) + "\n";
  }
  EXPECT_EQ(text,
            "take fusion x1 4100\n"
            "gather_fusion gather x1 262144\n"
            "gather_start gather x1 262144\n"
            "copy.7 copy x10 34816\n"
            "copy-start transfer x1 2048\n"
            "intra.3 kernel x1 2048\n");
  EXPECT_EQ(schedule.while_iterations, 10);
  EXPECT_EQ(schedule.operations[1].awaited, -1);
  EXPECT_EQ(schedule.operations[2].awaited, 3) << "its done follows at once";
  const Operation& copy = schedule.operations[3];
  ASSERT_GE(copy.program, 0) << "the code of its twin";
  EXPECT_EQ(schedule.programs[static_cast<size_t>(copy.program)].name, "copy.1");
  const Operation& kernel = schedule.operations[5];
  EXPECT_EQ(kernel.kernel, "intra");
  EXPECT_EQ(kernel.vmem_bytes, 4096);
  ASSERT_GE(kernel.program, 0);
  EXPECT_EQ(schedule.programs[static_cast<size_t>(kernel.program)].grid_loop, 0);
}

TEST(Schedule, DamagedFolders) {
  Schedule schedule;
  std::string error;
  EXPECT_FALSE(ReadSchedule("/no/such/folder", 4, &schedule, &error));
  EXPECT_NE(error.find("/no/such/folder"), std::string::npos);
  TempFolder folder;
  EXPECT_FALSE(ReadSchedule(folder.path(), 4, &schedule, &error));
  const std::string bundles = kBundles, hlo = kHlo;
  for (size_t i = 0; i < hlo.size(); i += 13) {
    WriteDumps(folder.path(), bundles.substr(0, i % bundles.size()),
               std::string(kUse).substr(0, i % sizeof kUse), hlo.substr(0, i));
    if (HasFatalFailure()) return;
    if (ReadSchedule(folder.path(), 4, &schedule, &error)) {
      for (const Program& program : schedule.programs) ExpectSound(program);
      if (HasFatalFailure()) return;
    } else {
      EXPECT_FALSE(error.empty());
      EXPECT_EQ(error.find('\n'), std::string::npos);
    }
  }
}

// A file whose computations call themselves, or each other more often than could be followed.
TEST(Schedule, CallsThatDoNotEnd) {
  const auto walk = [](const std::string& hlo) {
    TempFolder folder;
    WriteDumps(folder.path(), kBundles, kUse, hlo);
    Schedule schedule;
    std::string error;
    EXPECT_TRUE(ReadSchedule(folder.path(), 4, &schedule, &error)) << error;
    return schedule.notes;
  };
  const std::string call = "  %c = s32[] call(), to_apply=%";
  std::string self = "HloModule m\n\nENTRY %main () -> s32[] {\n";
  for (int i = 0; i < 8; ++i) self += call + "main\n";
  const std::vector<std::string> notes = walk(self + "}\n");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("'main' calls itself"), std::string::npos) << notes[0];

  std::string tower = "HloModule m\n\n";
  for (int level = 0; level < 30; ++level) {
    const std::string name = "c" + std::to_string(level), next = "c" + std::to_string(level + 1);
    tower += (level == 0 ? "ENTRY %" : "%") + name + " () -> s32[] {\n" + call + next + "\n" +
             call + next + "\n}\n\n";
  }
  const std::vector<std::string> many = walk(tower + "%c30 () -> s32[] {\n}\n");
  ASSERT_FALSE(many.empty());
  EXPECT_LE(many.size(), 31U);
  EXPECT_NE(many[0].find("too many calls"), std::string::npos) << many[0];
}

TEST(Executions, OfEveryBlock) {
  Program program = ParseBundles(kBundles, 4);
  program.grid_loop = 0;
  KernelCounts counts;
  counts.steps = 4;
  counts.lines = {{7, 3}};
  const Executions executions = CountExecutions(program, counts);
  // Six rounds of the grid's loop, four of which have a step, with 7 iterations each; the region
  // runs in three of them and its else in the fourth.
  EXPECT_EQ(executions.blocks, (std::vector<double>{6, 4, 28, 3, 1}));
  EXPECT_EQ(executions.bundles[0], 1);
  EXPECT_EQ(executions.bundles[1], 6);
  EXPECT_EQ(executions.bundles[8], 28);
  EXPECT_EQ(executions.bundles[15], 4);
  EXPECT_EQ(executions.bundles[20], 3);
  EXPECT_EQ(executions.bundles[27], 1);
  EXPECT_EQ(executions.bundles[34], 1);
  EXPECT_TRUE(executions.notes.empty());
}

// What is around a loop that may not run at all runs at most once per pass, and not without it.
TEST(Executions, OfAGuard) {
  const Program program = ParseBundles(
      "  0 : { %1 = sbr.rel (%p1_p0) /* loc(\"dynamic\":4:1) */ target bundleno = 4 (0x4) }\n"
      "  1 : { %s2_s0 = smov.u32 %s9_s0 }\n"
      "  2 LB: > { %s3_s0 = sadd.s32 1, %s2_s0 }\n"
      "  3 : > { %2 = sbr.rel (!%p2_p0) /* loc(\"dynamic\":4:1) */ target bundleno = 2 (0x2) }\n"
      "  4 : { %3 = sfence }\n",
      0);
  EXPECT_EQ(Describe(program), "guard 1..3 in -1 of 1 'dynamic'\nloop 2..3 in 0 'dynamic'\n");
  const auto bundles = [&](double count) {
    KernelCounts counts;
    counts.steps = 1;
    counts.lines = {{4, count}};
    return CountExecutions(program, counts).bundles;
  };
  EXPECT_EQ(bundles(9), (std::vector<double>{1, 1, 9, 9, 1}));
  EXPECT_EQ(bundles(0), (std::vector<double>{1, 0, 0, 0, 1}));
}

TEST(Executions, WhatIsAssumedIsSaid) {
  Program program = ParseBundles(kBundles, 4);
  program.grid_loop = 0;
  const Executions executions = CountExecutions(program, KernelCounts());
  EXPECT_EQ(executions.steps, 6);
  ASSERT_EQ(executions.notes.size(), 2U);
  EXPECT_NE(executions.notes[0].find("steps"), std::string::npos);
  EXPECT_NE(executions.notes[1].find("'region'"), std::string::npos);
}

// The tiny kernel on every target: its blocks under their labels, as often as they run.
TEST(Schedule, OfTheTinyKernel) {
  KDA_NEEDS_LIBTPU();
  size_t count = 0;
  const Target* targets = Targets(&count);
  for (size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(targets[i].name);
    CompileRequest request = TinyRequest(targets[i].name);
    request.schedule = true;
    const CompileResult result = Compile(request);
    ASSERT_TRUE(result.ok()) << result.message;
    Schedule schedule;
    std::string error;
    ASSERT_TRUE(ReadSchedule(result.dumps, targets[i].delay_slots, &schedule, &error)) << error;
    const auto kernel =
        std::find_if(schedule.operations.begin(), schedule.operations.end(),
                     [](const Operation& op) { return op.kind == OperationKind::kKernel; });
    ASSERT_NE(kernel, schedule.operations.end());
    EXPECT_EQ(kernel->kernel, "tiny");
    EXPECT_GT(kernel->vmem_bytes, 0);
    ASSERT_GE(kernel->program, 0);
    const Program& program = schedule.programs[static_cast<size_t>(kernel->program)];
    ExpectSound(program);
    ASSERT_EQ(program.use.size(), static_cast<size_t>(program.bundles));

    KernelCounts counts;
    counts.steps = 4;
    counts.lines = {{4, 9}, {7, 3}};  // "dynamic", "region"
    const Executions executions = CountExecutions(program, counts);
    EXPECT_TRUE(executions.notes.empty()) << executions.notes[0];
    std::map<std::string, double> runs;
    for (size_t block = 0; block < program.blocks.size(); ++block) {
      const Block& b = program.blocks[block];
      const std::string name = b.label + (b.kind == BlockKind::kElse ? "/else" : "");
      if (!b.label.empty() && b.kind != BlockKind::kGuard) runs[name] += executions.blocks[block];
    }
    EXPECT_EQ(runs, (std::map<std::string, double>{
                        {"loop", 28}, {"dynamic", 9}, {"region", 3}, {"region/else", 1}}));

    // Every matrix instruction tells its label, and each label has some.
    std::map<std::string, int> matmuls;
    for (const Instruction& instruction : program.instructions) {
      if (instruction.action != Action::kMatmul || instruction.label < 0) continue;
      ++matmuls[program.labels[static_cast<size_t>(instruction.label)]];
      EXPECT_GE(instruction.mxu, 0);
    }
    for (const char* label : {"power:h3", "more:h1", "then:h0", "else:h0"}) {
      EXPECT_GT(matmuls[label], 0) << label;
    }
  }
}

// The compiler's own files, cut short.
TEST(Schedule, RealFilesCutAnywhere) {
  KDA_NEEDS_LIBTPU();
  CompileRequest request = TinyRequest();
  request.schedule = true;
  const CompileResult result = Compile(request);
  ASSERT_TRUE(result.ok()) << result.message;
  for (const std::string& file : ListFiles(result.dumps)) {
    std::string text;
    ASSERT_TRUE(ReadFile(result.dumps + "/" + file, &text));
    for (size_t part = 0; part < 40; ++part) {
      const std::string cut = text.substr(0, text.size() * part / 40);
      Program program = ParseBundles(cut, 4);
      ParseUse(cut, &program);
      ExpectSound(program);
      ParseHlo(cut);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kda::tpu
