// Windows over grid steps and copies of the kernel's own: what they move,
// when, and the races they make.
#include <gtest/gtest.h>

#include "tpu/ir_programs.h"

namespace kda::tpu::ir {
namespace {

using Copies = EvaluateOptions::Copies;

// The message with copies at the wait and at the start: the same, or the test fails.
std::string Message(const Program& program, const std::vector<Array>& arguments) {
  std::string messages[2];
  for (const bool at_start : {false, true}) {
    EvaluateOptions options;
    options.copies = at_start ? Copies::kAtStart : Copies::kAtWait;
    messages[at_start] = ErrorOf([&] { Evaluate(program, arguments, options); });
  }
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

#define EXPECT_MESSAGE(message, part) \
  EXPECT_NE(std::string(message).find(part), std::string::npos) << (message)

// --- Windows ---

Builder::IndexMap RowMap(Builder* b) {
  return [b](const std::vector<Value>& grid) {
    return std::vector<Value>{grid[0], b->Constant(DType::kI32, 0)};
  };
}

TEST(EvaluatorWindows, PartialBlocksAreNaNInAndDroppedOut) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Array x = NormalArray(dtype, {7, 3}, 1);  // of bf16 an odd number of rows
    Builder b("partial");
    b.Grid({2});
    const Ref in = b.Input("x", dtype, {7, 3}, {4, 3}, RowMap(&b));
    const Ref out = b.Output("y", dtype, {7, 3}, {4, 3}, RowMap(&b));
    const Ref last = b.Output("last", dtype, {4, 3}, {4, 3}, ZeroMap(&b, 2));
    Store(out, Load(in) * 2.0);
    Store(last, Load(in));
    const std::vector<Array> result = Evaluate(b.Take(), {x});
    for (int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(result[0].Get(i), 2 * x.Get(i));
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_TRUE(Same(result[1].Get(i), i < 9 ? x.Get(12 + i) : NAN));
    }
  }
}

// Blocks of a middle dimension, in an order read from SMEM, over two grid dimensions.
TEST(EvaluatorWindows, IndexMapsReadPrefetchedScalars) {
  for (const bool pipelined : {false, true}) {
    const Array x = NormalArray(DType::kF32, {2, 6, 3}, 1), order = Array::I32({3}, {2, 0, 1});
    Builder b("order");
    b.Grid({2, 3});
    const Ref table = b.Prefetch("order", DType::kI32, {3});
    const auto map = [&](const std::vector<Value>& grid) {
      return std::vector<Value>{grid[0], Load(table.At(Index(grid[1]))),
                                b.Constant(DType::kI32, 0)};
    };
    const Ref in = b.Input("x", DType::kF32, {2, 6, 3}, {1, 2, 3}, map, pipelined);
    const Ref out =
        b.Output("y", DType::kF32, {2, 6, 3}, {1, 2, 3}, [](const std::vector<Value>& grid) {
          return std::vector<Value>{grid[0], grid[1], grid[0] * 0.0};
        });
    Store(out, Load(in));
    const Array y = Evaluate(b.Take(), {order, x})[0];
    for (int64_t i = 0; i < y.size(); ++i) {
      const Shape at = IndexOf(i, y.shape());
      ASSERT_EQ(y.Get(i), x.At({at[0], order.i32()[at[1] / 2] * 2 + at[1] % 2, at[2]}));
    }
  }
}

// An output block stays while its index stays, and starts anew when it is entered.
TEST(EvaluatorWindows, OutputBlocksStayAndStartAnew) {
  const auto program = [](int64_t period) {
    Builder b("stay");
    b.Grid({6});
    const Ref out = b.Output("y", DType::kF32, {4, 2}, {2, 2}, [&](const std::vector<Value>& grid) {
      return std::vector<Value>{grid[0] / static_cast<double>(period) % 2, grid[0] * 0.0};
    });
    b.If(b.GridIndex(0) % period == 0, [&] { Store(out, 0.0); });
    Store(out, Load(out) + 1.0);
    return b.Take();
  };
  EXPECT_EQ(Evaluate(program(3), {})[0], Array::Full(DType::kF32, {4, 2}, 3));
  // Blocks 0, 1, 0: what was written the first time is gone, not added to.
  EXPECT_EQ(Evaluate(program(2), {})[0], Array::Full(DType::kF32, {4, 2}, 2));
  Builder b("again");
  b.Grid({3});
  const Ref out = b.Output("y", DType::kF32, {4, 2}, {2, 2}, [&](const std::vector<Value>& grid) {
    return std::vector<Value>{grid[0] % 2, grid[0] * 0.0};
  });
  b.If(
      b.GridIndex(0) < 2, [&] { Store(out, 1.0); }, [&] { Load(out); });
  const std::string message = Message(b.Take(), {});
  EXPECT_MESSAGE(message, "grid step (2): reads y[0, 0] of f32 2x2, which was never written");
}

TEST(EvaluatorWindows, BlocksOutOfBounds) {
  for (const double start : {-1.0, 2.0}) {
    Builder b("bounds");
    b.Grid({2});
    b.Input("x", DType::kF32, {4, 2}, {2, 2}, [&](const std::vector<Value>& grid) {
      return std::vector<Value>{grid[0] * start, grid[0] * 0.0};
    });
    const std::string message = Message(b.Take(), {NormalArray(DType::kF32, {4, 2}, 1)});
    EXPECT_MESSAGE(message, "the window of x, grid step (0): out of bounds: block (");
  }
}

// --- Memory shared by an input and an output ---

TEST(EvaluatorAlias, WindowsInPlace) {
  const Array x = NormalArray(DType::kF32, {6, 2}, 1);
  Builder b("alias");
  b.Grid({2});
  const Ref in = b.Input("x", DType::kF32, {6, 2}, {2, 2}, RowMap(&b));
  const Ref out = b.Output("y", DType::kF32, {6, 2}, {2, 2}, RowMap(&b));
  b.Alias("x", "y");
  Store(out, Load(in) * 2.0);
  const Array y = Evaluate(b.Take(), {x})[0];  // the third block is not visited
  for (int64_t i = 0; i < 12; ++i) ASSERT_EQ(y.Get(i), (i < 8 ? 2 : 1) * x.Get(i));
}

TEST(EvaluatorAlias, CopiesInPlace) {
  const Array x = NormalArray(DType::kF32, {4, 2}, 1), slot = Array::I32({1}, {2});
  Builder b("pool");
  b.Grid({1});
  const Ref slots = b.Prefetch("slots", DType::kI32, {1});
  const Ref in = b.Input("x", DType::kF32, {4, 2}), out = b.Output("y", DType::kF32, {4, 2});
  const Ref s = b.Scratch("s", DType::kF32, {1, 2}), semaphore = b.Semaphores("semaphore", 1);
  b.Alias("x", "y");
  const Index row = Load(slots.At(0));
  StartCopy(in.Rows(row, 1), s, semaphore);
  WaitCopy(in.Rows(row, 1), s, semaphore);
  Store(s, Load(s) + 1.0);
  StartCopy(s, out.Rows(row, 1), semaphore);
  WaitCopy(s, out.Rows(row, 1), semaphore);
  const Array y = Evaluate(b.Take(), {slot, x})[0];
  for (int64_t i = 0; i < 8; ++i) ASSERT_EQ(y.f32()[i], i / 2 == 2 ? x.f32()[i] + 1 : x.f32()[i]);
}

// A block that stays is not fetched again: the kernel sees what was there at first.
TEST(EvaluatorAlias, BlocksThatStayAreFetchedOnce) {
  const Array x = NormalArray(DType::kF32, {2, 2}, 1);
  Builder b("stays");
  b.Grid({3});
  const Ref in = b.Input("x", DType::kF32, {2, 2}, {2, 2}, ZeroMap(&b, 2));
  const Ref out = b.Output("y", DType::kF32, {2, 2});
  const Ref s = b.Scratch("s", DType::kF32, {2, 2}), semaphore = b.Semaphores("semaphore", 1);
  b.Alias("x", "y");
  Store(s, Load(in) * 2.0);
  StartCopy(s, out, semaphore);
  WaitCopy(s, out, semaphore);
  const Program program = b.Take();
  EXPECT_EQ(Message(program, {x}), "");
  const Array y = Evaluate(program, {x})[0];
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(y.Get(i), 2 * x.Get(i));
}

// Blocks are fetched a step ahead: what the step before writes comes too late, or just in time.
TEST(EvaluatorAlias, AFetchAheadRacesWithWrites) {
  const auto program = [](bool pipelined, bool by_copy) {
    Builder b("race");
    b.Grid({2});
    const Ref in = b.Input("x", DType::kF32, {4, 2}, {2, 2}, RowMap(&b), pipelined);
    const Ref out =
        by_copy ? b.Output("y", DType::kF32, {4, 2})
                : b.Output("y", DType::kF32, {4, 2}, {2, 2}, [&](const std::vector<Value>& grid) {
                    return std::vector<Value>{1.0 - grid[0], grid[0] * 0.0};
                  });
    const Ref s = b.Scratch("s", DType::kF32, {2, 2}), semaphore = b.Semaphores("semaphore", 1);
    b.Alias("x", "y");
    Load(in);
    if (!by_copy) {
      Store(out, 0.0);
      return b.Take();
    }
    Store(s, 0.0);
    b.If(b.GridIndex(0) == 0, [&] {
      StartCopy(s, out.Rows(2, 2), semaphore);
      WaitCopy(s, out.Rows(2, 2), semaphore);
    });
    return b.Take();
  };
  const Array x = NormalArray(DType::kF32, {4, 2}, 1);
  EXPECT_MESSAGE(Message(program(true, true), {x}),
                 "copy to x[2, 0] of f32 4x2, which a copy that is not over reads");
  EXPECT_EQ(Message(program(false, true), {x}), "");
  // The first block goes out, to where the second is fetched from, as the second step begins.
  EXPECT_MESSAGE(Message(program(true, false), {x}),
                 "the window of y, grid step (1): starts to copy to x[2, 0]");
  EXPECT_MESSAGE(Message(program(false, false), {x}),
                 "the window of x, grid step (1): starts to copy from x[2, 0]");
}

// --- Copies ---

// x in HBM, 8 rows; s and t of 4 rows in VMEM, written; y in HBM.
struct CopyKernel {
  explicit CopyKernel(DType dtype = DType::kF32) : b("copies") {
    x = b.Input("x", dtype, {8, 2});
    y = b.Output("y", dtype, {8, 2});
    s = b.Scratch("s", dtype, {4, 2});
    t = b.Scratch("t", dtype, {4, 2});
    semaphores = b.Semaphores("semaphores", 2);
    Store(s, 1.0);
    Store(t, 2.0);
  }
  std::string Message() {
    const Array input = NormalArray(x.dtype(), {8, 2}, 1);
    return ir::Message(b.Take(), {input});
  }
  void Wait(const Ref& from, const Ref& to, int64_t semaphore = 0) {
    WaitCopy(from, to, semaphores.At(semaphore));
  }
  void Start(const Ref& from, const Ref& to, int64_t semaphore = 0) {
    StartCopy(from, to, semaphores.At(semaphore));
  }
  Builder b;
  Ref x, y, s, t, semaphores;
};

TEST(EvaluatorCopies, MoveRowsOfAnyStart) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Array x = NormalArray(dtype, {8, 2}, 1);
    CopyKernel k(dtype);
    k.Start(k.x.Rows(3, 3), k.s.Rows(1, 3));
    k.Wait(k.x.Rows(3, 3), k.s.Rows(1, 3));
    k.Start(k.s, k.y.Rows(2, 4));
    k.Start(k.t.Rows(0, 2), k.y.Rows(0, 2), 1);
    k.Wait(k.s, k.y.Rows(2, 4));
    k.Wait(k.t.Rows(0, 2), k.y.Rows(0, 2), 1);
    const Program program = k.b.Take();
    for (const Copies when : {Copies::kAtWait, Copies::kAtStart}) {
      EvaluateOptions options;
      options.copies = when;
      const Array y = Evaluate(program, {x}, options)[0];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = i / 2;
        const double want = row < 2 ? 2 : row == 2 ? 1 : row < 6 ? x.Get(i) : NAN;
        ASSERT_TRUE(Same(y.Get(i), want)) << i;
      }
    }
  }
}

// As many rows as there are, from a place that is known only when the kernel runs.
TEST(EvaluatorCopies, WholeArraysFromElsewhereAreOutOfBounds) {
  for (const int32_t start : {0, 1}) {
    CopyKernel k;
    const Ref at = k.b.ScratchSmem("at", DType::kI32, {1});
    Store(at.At(0), static_cast<double>(start));
    const Ref part = k.s.Rows(Load(at.At(0)), 4);
    k.Start(k.x.Rows(0, 4), part);
    k.Wait(k.x.Rows(0, 4), part);
    k.Start(k.s, k.y.Rows(0, 4));
    k.Wait(k.s, k.y.Rows(0, 4));
    const std::string message = k.Message();
    EXPECT_EQ(message.find("out of bounds") != std::string::npos, start != 0) << message;
  }
}

// Unwritten memory may be copied, and is unwritten where it arrives.
TEST(EvaluatorCopies, CarryWhatWasNeverWritten) {
  Builder b("unwritten");
  b.Grid({1});
  const Ref s = b.Scratch("s", DType::kF32, {4, 2}), t = b.Scratch("t", DType::kF32, {4, 2});
  const Ref semaphore = b.Semaphores("semaphore", 1);
  Store(s.Rows(0, 3), 1.0);
  Store(t, 2.0);
  StartCopy(s, t, semaphore);
  WaitCopy(s, t, semaphore);
  Load(t.Rows(0, 3));
  Load(t);
  EXPECT_MESSAGE(Message(b.Take(), {}), "reads t[3, 0] of f32 4x2, which was never written");
}

TEST(EvaluatorCopies, DestinationsAreLeftAlone) {
  CopyKernel reads, writes, beside;
  reads.Start(reads.x.Rows(0, 2), reads.s.Rows(1, 2));
  Load(reads.s);
  EXPECT_MESSAGE(reads.Message(), "reads s[1, 0] of f32 4x2, where a copy that is not over writes");
  writes.Start(writes.x.Rows(0, 2), writes.s.Rows(1, 2));
  Store(writes.s.Rows(2, 1), 0.0);
  EXPECT_MESSAGE(writes.Message(),
                 "writes s[2, 0] of f32 4x2, where a copy that is not over writes");
  beside.Start(beside.x.Rows(0, 2), beside.s.Rows(1, 2));
  Load(beside.s.Rows(0, 1));
  Store(beside.s.Rows(3, 1), 0.0);
  beside.Wait(beside.x.Rows(0, 2), beside.s.Rows(1, 2));
  Load(beside.s);
  EXPECT_EQ(beside.Message(), "");
}

TEST(EvaluatorCopies, SourcesAreNotWritten) {
  CopyKernel writes, reads;
  writes.Start(writes.s, writes.y.Rows(0, 4));
  Store(writes.s.Rows(3, 1), 0.0);
  EXPECT_MESSAGE(writes.Message(),
                 "writes s[3, 0] of f32 4x2, which a copy that is not over reads");
  reads.Start(reads.s, reads.y.Rows(0, 4));
  reads.Start(reads.s, reads.y.Rows(4, 4));
  Load(reads.s);
  reads.Wait(reads.s, reads.y.Rows(0, 4));
  reads.Wait(reads.s, reads.y.Rows(0, 4));
  Store(reads.s, 0.0);
  EXPECT_EQ(reads.Message(), "");
  CopyKernel both;  // two readers: one of them is still there
  both.Start(both.s, both.y.Rows(0, 4));
  both.Start(both.s, both.y.Rows(4, 4), 1);
  both.Wait(both.s, both.y.Rows(0, 4));
  Store(both.s, 0.0);
  EXPECT_MESSAGE(both.Message(), "writes s[0, 0] of f32 4x2, which a copy that is not over reads");
}

TEST(EvaluatorCopies, ManyReadersAreCounted) {
  for (const int64_t readers : {63, 64}) {
    Builder b("many");
    const Ref s = b.Scratch("s", DType::kF32, {1, 2}), t = b.Scratch("t", DType::kF32, {64, 1, 2});
    const Ref semaphore = b.Semaphores("semaphore", 1);
    Store(s, 1.0);
    for (int64_t i = 0; i < readers; ++i) StartCopy(s, t.At(i), semaphore);
    for (int64_t i = 0; i < readers; ++i) WaitCopy(s, t.At(i), semaphore);
    Store(s, 1.0);
    const std::string message = Message(b.Take(), {});
    if (readers == 63) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_MESSAGE(message, "more copies of s at once than can be followed");
    }
  }
}

TEST(EvaluatorCopies, HalvesOfWordsAreToldApart) {
  CopyKernel beside(DType::kBF16), same(DType::kBF16), words(DType::kBF16);
  beside.Start(beside.s.Rows(1, 1), beside.y.Rows(0, 1));
  beside.Start(beside.s.Rows(1, 1), beside.y.Rows(1, 1));
  Store(beside.s.Rows(0, 1), 0.0);
  beside.Wait(beside.s.Rows(0, 2), beside.y.Rows(0, 2));
  Store(beside.s.Rows(0, 2), 0.0);
  EXPECT_EQ(beside.Message(), "");
  same.Start(same.x.Rows(0, 1), same.s.Rows(1, 1));
  Load(same.s.Rows(0, 1));
  Load(same.s.Rows(1, 1));
  EXPECT_MESSAGE(same.Message(), "reads s[1, 0] of bf16 4x2, where a copy that is not over writes");
  words.Start(words.x.Rows(0, 1), words.s.Rows(1, 1));
  Load(words.s.Rows(0, 2).Words());
  EXPECT_MESSAGE(words.Message(), "where a copy that is not over writes");
}

TEST(EvaluatorCopies, TwoIntoOnePlace) {
  CopyKernel k, other, chained;
  k.Start(k.x.Rows(0, 4), k.s);
  k.Start(k.x.Rows(4, 1), k.s.Rows(3, 1), 1);
  EXPECT_MESSAGE(k.Message(), "starts to copy to s[3, 0] of f32 4x2, where a copy");
  other.Start(other.s, other.y.Rows(0, 4));
  other.Start(other.t.Rows(0, 1), other.y.Rows(3, 1), 1);
  EXPECT_MESSAGE(other.Message(),
                 "starts to copy to y[3, 0] of f32 8x2, where a copy that is not over writes");
  chained.Start(chained.x.Rows(0, 4), chained.s);
  chained.Start(chained.s, chained.y.Rows(0, 4), 1);
  EXPECT_MESSAGE(chained.Message(),
                 "starts to copy from s[0, 0] of f32 4x2, where a copy that is not over writes");
  CopyKernel over;
  over.Start(over.s, over.y.Rows(0, 4));
  over.Start(over.t, over.s, 1);
  EXPECT_MESSAGE(over.Message(),
                 "starts to copy to s[0, 0] of f32 4x2, which a copy that is not over reads");
  CopyKernel itself;
  itself.Start(itself.s.Rows(0, 3), itself.s.Rows(1, 3));
  EXPECT_MESSAGE(itself.Message(), "starts to copy to s[1, 0]");
}

TEST(EvaluatorCopies, WaitsForTooMuch) {
  CopyKernel never, more, other;
  never.Wait(never.x.Rows(0, 4), never.s);
  EXPECT_MESSAGE(never.Message(),
                 "waits for 32 bytes of copies on semaphores[0], where 0 are on their way: it "
                 "would wait for ever");
  more.Start(more.x.Rows(0, 2), more.s.Rows(0, 2));
  more.Wait(more.x.Rows(0, 4), more.s);
  EXPECT_MESSAGE(more.Message(),
                 "waits for 32 bytes of copies on semaphores[0], where 16 are on their way");
  other.Start(other.x.Rows(0, 4), other.s);
  other.Wait(other.x.Rows(0, 4), other.s, 1);
  EXPECT_MESSAGE(other.Message(), "on semaphores[1], where 0 are on their way");
}

TEST(EvaluatorCopies, AreWaitedForBeforeTheEnd) {
  CopyKernel k, partly;
  k.Start(k.x.Rows(0, 4), k.s, 1);
  EXPECT_MESSAGE(k.Message(),
                 "the end of the kernel: 32 bytes of copies on semaphores[1] were not waited for; "
                 "EnqueueDma, node");
  partly.Start(partly.x.Rows(0, 4), partly.s);
  partly.Wait(partly.x.Rows(0, 3), partly.s.Rows(0, 3));
  EXPECT_MESSAGE(partly.Message(), "8 bytes of copies on semaphores[0] were not waited for");
}

// A wait cannot tell which of the copies on its semaphore has come: none is safe before all are.
TEST(EvaluatorCopies, ShareASemaphore) {
  CopyKernel first, all;
  for (CopyKernel* k : {&first, &all}) {
    k->Start(k->x.Rows(0, 4), k->s);
    k->Start(k->x.Rows(4, 4), k->t);
    k->Wait(k->x.Rows(0, 4), k->s);
    if (k == &all) k->Wait(k->x.Rows(4, 4), k->t);
    Load(k->s);
    Load(k->t);
  }
  EXPECT_MESSAGE(first.Message(), "reads s[0, 0] of f32 4x2, where a copy that is not over writes");
  EXPECT_EQ(all.Message(), "");
}

TEST(EvaluatorCopies, GoOnOverGridSteps) {
  Builder b("steps");
  b.Grid({5});
  const Ref x = b.Input("x", DType::kF32, {10, 2}), y = b.Output("y", DType::kF32, {10, 2});
  const Ref in = b.Scratch("in", DType::kF32, {2, 2, 2}),
            out = b.Scratch("out", DType::kF32, {2, 2, 2});
  const Ref in_semaphores = b.Semaphores("in_semaphores", 2);
  const Ref out_semaphores = b.Semaphores("out_semaphores", 2);
  const Value i = b.GridIndex(0), now = i % 2, then = (i + 1.0) % 2;
  const auto rows = [](const Ref& array, Value step) { return array.Rows(Index(step * 2.0), 2); };
  b.If(i == 0, [&] { StartCopy(rows(x, i), in.At(Index(now)), in_semaphores.At(Index(now))); });
  b.If(i < 4,
       [&] { StartCopy(rows(x, i + 1.0), in.At(Index(then)), in_semaphores.At(Index(then))); });
  WaitCopy(rows(x, i), in.At(Index(now)), in_semaphores.At(Index(now)));
  b.If(i >= 2, [&] { WaitCopy(out.At(Index(now)), rows(y, i), out_semaphores.At(Index(now))); });
  Store(out.At(Index(now)), Load(in.At(Index(now))) * 3.0);
  StartCopy(out.At(Index(now)), rows(y, i), out_semaphores.At(Index(now)));
  b.If(i == 4, [&] {
    for (const Value& slot : {now, then}) {
      WaitCopy(out.At(Index(slot)), rows(y, i), out_semaphores.At(Index(slot)));
    }
  });
  const Program program = b.Take();
  const Array input = NormalArray(DType::kF32, {10, 2}, 1);
  EXPECT_EQ(Message(program, {input}), "");
  for (const Copies when : {Copies::kAtWait, Copies::kAtStart}) {
    EvaluateOptions options;
    options.copies = when;
    const Array output = Evaluate(program, {input}, options)[0];
    for (int64_t k = 0; k < 20; ++k) ASSERT_EQ(output.f32()[k], 3 * input.f32()[k]);
  }
}

// Unchecked, a race gives what each order gives: this is what the two modes are for.
TEST(EvaluatorCopies, ModesDifferOnlyInRaces) {
  CopyKernel k;
  k.Start(k.s, k.y.Rows(0, 4));
  Store(k.s, 5.0);
  k.Wait(k.s, k.y.Rows(0, 4));
  k.Start(k.x.Rows(0, 4), k.t);
  Store(k.s, Load(k.t));
  k.Wait(k.x.Rows(0, 4), k.t);
  k.Start(k.s, k.y.Rows(4, 4));
  k.Wait(k.s, k.y.Rows(4, 4));
  const Program program = k.b.Take();
  const Array x = NormalArray(DType::kF32, {8, 2}, 1);
  EvaluateOptions options;
  options.check_races = false;
  options.copies = Copies::kAtWait;
  const Array late = Evaluate(program, {x}, options)[0];
  options.copies = Copies::kAtStart;
  const Array early = Evaluate(program, {x}, options)[0];
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(late.Get(i), 5);
    EXPECT_EQ(early.Get(i), 1);
    EXPECT_EQ(late.Get(8 + i), 2);
    EXPECT_EQ(early.Get(8 + i), x.Get(i));
  }
}

}  // namespace
}  // namespace kda::tpu::ir
