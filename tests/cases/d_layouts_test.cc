// Group D: strides, misaligned bases, offsets beyond 2^31.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "support/engine_test.h"
#include "support/goldens.h"

namespace kda::test {
namespace {

KDA_CASE(CaseD01);
KDA_CASE(CaseD02);
KDA_CASE(CaseD04);
KDA_CASE(CaseD17);

Layout Strides(int64_t batch, int64_t token, int64_t head, int64_t element) {
  Layout layout;
  layout.stride = {batch, token, head, element};
  return layout;
}

void ExpectSameAsDense(const Case& c, const Case& strided, const std::vector<Config>& configs) {
  for (const Config& config : configs) {
    EXPECT_TRUE(SameBits(RunCase(c, config), RunCase(strided, config))) << config.Name();
  }
  Case decode = AsDecode(c), strided_decode = AsDecode(strided);
  Config base = configs.front();
  EXPECT_TRUE(SameBits(RunCase(decode, base), RunCase(strided_decode, base))) << "decode";
}

TEST_P(CaseD01, ViewsOfOneBuffer) {
  const Case c = Standard(Std(71, 70, 3).Packed({0, 31, 70}));
  // [T, 3, H, 128] and [T, H, 384], seen by each of q, k and v.
  for (const Layout& layout : {Strides(0, 3 * 3 * 128, 128, 1), Strides(0, 3 * 384, 384, 1)}) {
    Case strided = c;
    strided.layouts.q = strided.layouts.k = strided.layouts.v = layout;
    ExpectSameAsDense(c, strided, Configs());
  }
  // Really one buffer: q, k and v side by side.
  Case joint = c;
  std::vector<double> all;
  for (int64_t t = 0; t < 70; ++t) {
    for (auto* x : {&joint.q, &joint.k, &joint.v}) {
      all.insert(all.end(), x->begin() + t * 384, x->begin() + (t + 1) * 384);
    }
  }
  TensorBuffer buffer(KDA_BF16, {1, 70, 9, 128}, Layout(), KDA_STATE_KV, kBandNan);
  buffer.Write(all);
  for (const Config& config : Configs()) {
    Runner runner(joint, config, [](Problem* p) {
      for (kda_tensor* x : {&p->q, &p->k, &p->v}) {
        const int64_t strides[] = {70 * 9 * 128, 9 * 128, 128, 1};
        std::memcpy(x->stride, strides, sizeof strides);
      }
    });
    ASSERT_TRUE(runner.status().ok()) << runner.status().message();
    runner.Poison(kPoisonNan);
    Args args = runner.MakeArgs();
    args.q = buffer.data();
    args.k = buffer.data() + 384 * 2;
    args.v = buffer.data() + 768 * 2;
    ASSERT_TRUE(runner.plan().Run(args).ok());
    EXPECT_TRUE(SameBits(RunCase(c, config), runner.Read())) << config.Name();
  }
}

TEST_P(CaseD01, HeadMajorTensors) {
  const Case c = Standard(Std(71, 70, 3).Packed({0, 31, 70}));
  Case strided = c;  // [H, T, 128]
  const Layout layout = Strides(0, 128, 70 * 128, 1);
  strided.layouts.v = layout;
  ExpectSameAsDense(c, strided, Configs());
  strided.layouts.q = strided.layouts.k = strided.layouts.g = strided.layouts.o = layout;
  ExpectSameAsDense(c, strided, Configs());
}

TEST_P(CaseD01, BatchStrides) {
  Case c = Standard(Std(71, 60, 2));
  c.B = 3;
  c.T = 20;
  c.S0.clear();
  Case strided = c;
  strided.layouts.q = strided.layouts.k = strided.layouts.v = strided.layouts.o =
      Strides(10000, 300, 150, 1);
  ExpectSameAsDense(c, strided, Configs());
}

TEST_P(CaseD01, StridedStates) {
  const Case c = StdB();
  Case strided = c;
  strided.layouts.initial = Strides(3 * 128 * 128, 128 * 128, 128, 1);
  strided.layouts.final = Strides(128 * 128, 5 * 128 * 128, 128, 1);
  ExpectSameAsDense(c, strided, Configs());
}

TEST_P(CaseD02, StridedBetaAndGate) {
  const Case c = Standard(Std(72, 70, 3).Packed({0, 31, 70}));
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    Case strided = c;
    if (kind == 0) strided.layouts.beta = Strides(0, 3 + 5, 1, 0);   // columns of [T, H + 5]
    if (kind == 1) strided.layouts.beta = Strides(0, 1, 70, 0);      // [H, T]
    if (kind == 2) strided.layouts.g = Strides(0, 3 * 256, 256, 1);  // of [T, H, 256]
    if (kind == 3) {
      strided.layouts.A_log = Strides(2, 0, 0, 0);
      strided.layouts.dt_bias = Strides(200, 1, 0, 0);
    }
    ExpectSameAsDense(c, strided, Configs());
  }
}

TEST_P(CaseD04, MisalignedBases) {
  for (kda_dtype dtype : {KDA_BF16, KDA_F32}) {
    for (const auto& [dim_k, dim_v] : {std::pair<int64_t, int64_t>{128, 128}, {60, 100}}) {
      const Case c = Standard(Std(73, 70, 2).Dims(dim_k, dim_v).As(dtype).Packed({0, 31, 70}));
      for (int64_t shift : {1, 3}) {
        Case shifted = c;
        Layouts& l = shifted.layouts;
        for (Layout* layout :
             {&l.q, &l.k, &l.v, &l.g, &l.beta, &l.A_log, &l.dt_bias, &l.o, &l.initial, &l.final}) {
          layout->shift = shift;
        }
        ExpectSameAsDense(c, shifted, Configs());
      }
    }
  }
}

// Address space of which only the pages written to take memory.
class Reserved {
 public:
  explicit Reserved(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reserved() {
    if (ok()) munmap(data_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  size_t bytes_;
};

// Rows of `size` bytes of a dense tensor, `stride` bytes apart.
void Spread(const char* dense, int64_t rows, int64_t size, int64_t stride, char* to) {
  for (int64_t t = 0; t < rows; ++t) {
    std::memcpy(to + t * stride, dense + t * size, static_cast<size_t>(size));
  }
}

// 8,200 tokens 262,272 elements apart: the last lies 2.15e9 elements in.
TEST_P(CaseD17, TokensBeyondTwoToThe31Elements) {
  const int64_t T = 8200, stride = 262272;
  Case c = Standard(Std(74, 8200, 1).In(Regime::kSlow));
  if (!IsCpu() || FastTests()) {  // a shorter run that still crosses the line is not possible
    GTEST_SKIP() << "on the CPU backend in full builds only";
  }
  Runner compact(c, Base());
  ASSERT_TRUE(compact.status().ok());
  const Result expected = compact.Run(kPoisonNan);
  const int64_t bytes = (T - 1) * stride * 4 + 512;
  Reserved q(bytes / 2), k(bytes / 2), v(bytes / 2), g(bytes / 2), beta(bytes / 2), o(bytes);
  for (const Reserved* r : {&q, &k, &v, &g, &beta, &o}) ASSERT_TRUE(r->ok());
  const Args dense = compact.MakeArgs();
  const auto spread = [&](const void* from, int64_t size, const Reserved& to) {
    Spread(static_cast<const char*>(from), T, size, stride * 2, to.data());
  };
  spread(dense.q, 256, q);
  spread(dense.k, 256, k);
  spread(dense.v, 256, v);
  spread(dense.g, 256, g);
  spread(dense.beta, 2, beta);
  Runner sparse(c, Base(), [&](Problem* p) {
    for (kda_tensor* x : {&p->q, &p->k, &p->v, &p->g, &p->o}) {
      const int64_t strides[] = {T * stride, stride, 128, 1};
      std::memcpy(x->stride, strides, sizeof strides);
    }
    const int64_t strides[] = {T * stride, stride, 1, 0};
    std::memcpy(p->beta.stride, strides, sizeof strides);
  });
  ASSERT_TRUE(sparse.status().ok()) << sparse.status().message();
  sparse.Poison(kPoisonNan);
  Args args = sparse.MakeArgs();
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.g = g.data();
  args.beta = beta.data();
  args.o = o.data();
  ASSERT_TRUE(sparse.plan().Run(args).ok());
  EXPECT_TRUE(SameBits(expected.S.bits, sparse.Read().S.bits));
  for (int64_t t = 0; t < T; ++t) {
    ASSERT_EQ(std::memcmp(o.data() + t * stride * 4, expected.o.bits.data() + t * 128, 512), 0)
        << "token " << t;
  }
}

// A pool of 140,000 states: the last lies 2.29e9 elements in.
TEST_P(CaseD17, SlotsBeyondTwoToThe31Elements) {
  const int64_t slots = 140000, state = 128 * 128;
  for (kda_mode mode : {KDA_PREFILL, KDA_DECODE}) {
    Case c = Standard(Std(75, 9, 1).Packed({0, 4, 9}));
    c.mode = mode;
    c.in_place = true;
    const Result expected = RunCase(c, Base());
    Reserved pool(slots * state * 4);
    ASSERT_TRUE(pool.ok());
    const std::vector<int64_t> indices = {slots - 1, 131072};
    Runner runner(c, Base(), [&](Problem* p) {
      p->initial_state.shape[0] = p->final_state.shape[0] = slots;
      p->slots = kda::Index(indices);
    });
    ASSERT_TRUE(runner.status().ok()) << runner.status().message();
    runner.Poison(kPoisonNan);
    Args args = runner.MakeArgs();
    const auto at = [&](size_t n) { return pool.data() + indices[n] * state * 4; };
    std::memcpy(at(0), args.final_state, state * 4);
    std::memcpy(at(1), static_cast<const char*>(args.initial_state) + state * 4, state * 4);
    args.initial_state = args.final_state = pool.data();
    ASSERT_TRUE(runner.plan().Run(args).ok());
    EXPECT_TRUE(SameBits(expected.o.bits, runner.Read().o.bits));
    for (size_t n = 0; n < 2; ++n) {
      EXPECT_EQ(std::memcmp(at(n), expected.S.bits.data() + n * state, state * 4), 0) << n;
    }
  }
}

}  // namespace
}  // namespace kda::test
