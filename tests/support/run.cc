#include "support/run.h"

#include <gtest/gtest.h>

namespace kda::test {
namespace {

kda_index IndexOf(const std::vector<int64_t>& values) {
  return values.empty() ? kda_index{} : kda::Index(values);
}

template <class T>
std::vector<T> Part(const std::vector<T>& x, int64_t first, int64_t last) {
  return {x.begin() + first, x.begin() + last};
}

// Small enough to run twice.
bool IsSmall(const Case& c) { return c.B * c.T * c.HV <= 4096; }

}  // namespace

Config Config::Off(uint32_t switches) const {
  Config config = *this;
  config.switches_off = switches;
  return config;
}

Config Config::With(kda_solver s) const {
  Config config = *this;
  config.solver = s;
  return config;
}

Config Config::Threads(int32_t n) const {
  Config config = *this;
  config.threads = n;
  return config;
}

std::string Config::Name() const {
  if (backend == KDA_BACKEND_REFERENCE) return "reference";
  std::string name = kda_isa_name(isa);
  if (solver != KDA_SOLVER_AUTO) name += std::string(" ") + kda_solver_name(solver);
  for (int32_t i = 0; const kda_switch_info* info = kda_switch(i); ++i) {
    if ((switches_off & info->bit) != 0) name += std::string(" no ") + info->name;
  }
  if (threads != 1) name += " threads " + std::to_string(threads);
  return name;
}

Runner::Runner(const Case& c, const Config& config, const std::function<void(Problem*)>& edit)
    : c_(c) {
  MakeTensors();
  if (edit) edit(&problem_);
  Options options;
  options.backend = config.backend;
  options.isa = config.backend == KDA_BACKEND_REFERENCE ? KDA_ISA_AUTO : config.isa;
  options.solver = config.solver;
  options.threads = config.threads;
  options.switches_off = config.switches_off;
  options.executor = config.executor;
  options.flags = KDA_OPTION_CALLER_WORKSPACE;
  status_ = kda::Plan::Create(problem_, options, &plan_);
  if (status_.ok()) {
    workspace_ = Guarded(static_cast<int64_t>(plan_.Info().workspace_size), 0, kOutputBand);
  }
}

void Runner::MakeTensors() {
  const Case& c = c_;
  const auto input = [&c](kda_dtype dtype, std::vector<int64_t> shape, const Layout& layout,
                          const std::vector<double>& values, TensorBuffer* buffer) {
    *buffer = TensorBuffer(dtype, std::move(shape), layout, KDA_STATE_KV, c.input_band);
    buffer->Write(values);
    return buffer->tensor();
  };
  problem_.mode = c.mode;
  problem_.gate = c.gate;
  problem_.state_order = c.order;
  problem_.flags =
      (c.beta_logits ? KDA_FLAG_BETA_LOGITS : 0) | (c.qk_l2norm ? KDA_FLAG_QK_L2NORM : 0);
  problem_.scale = c.scale;
  problem_.lower_bound = c.lower_bound;
  const Dtypes& d = c.dtypes;
  const Layouts& l = c.layouts;
  problem_.q = input(d.qk, {c.B, c.T, c.H, c.K}, l.q, c.q, &q_);
  problem_.k = input(d.qk, {c.B, c.T, c.H, c.K}, l.k, c.k, &k_);
  problem_.v = input(d.v, {c.B, c.T, c.HV, c.V}, l.v, c.v, &v_);
  problem_.g = input(d.g, {c.B, c.T, c.HV, c.K}, l.g, c.g, &g_);
  problem_.beta = input(d.beta, {c.B, c.T, c.HV}, l.beta, c.beta, &beta_);
  if (!c.A_log.empty()) problem_.A_log = input(KDA_F32, {c.HV}, l.A_log, c.A_log, &A_log_);
  if (!c.dt_bias.empty()) {
    problem_.dt_bias = input(KDA_F32, {c.HV, c.K}, l.dt_bias, c.dt_bias, &dt_bias_);
  }
  problem_.cu_seqlens = IndexOf(c.cu);
  problem_.slots = IndexOf(c.slots);
  problem_.has_initial = IndexOf(c.has_initial);
  problem_.checkpoint_every = c.checkpoint_every;
  problem_.checkpoint_offsets = IndexOf(c.checkpoint_offsets);
  problem_.checkpoint_tokens =
      c.checkpoint_offsets.empty() ? kda_index{} : kda::Index(c.checkpoint_tokens);

  o_ = TensorBuffer(d.o, {c.B, c.T, c.HV, c.V}, l.o, KDA_STATE_KV, kOutputBand);
  problem_.o = o_.tensor();
  const std::vector<int64_t> states = {c.States(), c.HV, c.K, c.V};
  if (!c.S0.empty() && !c.in_place) {
    initial_ = TensorBuffer(d.initial, states, l.initial, c.order, c.input_band);
    initial_.Write(c.S0);
    problem_.initial_state = initial_.tensor();
  }
  if (c.want_state) {
    final_ = TensorBuffer(d.final, states, l.final, c.order, kOutputBand);
    problem_.final_state = final_.tensor();
    if (c.in_place) problem_.initial_state = final_.tensor();
  }
  if (c.checkpoint_every != 0 || !c.checkpoint_offsets.empty()) {
    checkpoints_ = TensorBuffer(d.checkpoints, {c.Checkpoints(), c.HV, c.K, c.V}, Layout(), c.order,
                                kOutputBand);
    problem_.checkpoints = checkpoints_.tensor();
  }
}

Args Runner::MakeArgs() const {
  Args args;
  args.q = q_.data();
  args.k = k_.data();
  args.v = v_.data();
  args.g = g_.data();
  args.beta = beta_.data();
  args.A_log = A_log_.data();
  args.dt_bias = dt_bias_.data();
  args.initial_state = c_.in_place ? final_.data() : initial_.data();
  args.o = o_.data();
  args.final_state = final_.data();
  args.checkpoints = checkpoints_.data();
  args.workspace = workspace_.data();
  args.workspace_size = static_cast<size_t>(workspace_.size());
  return args;
}

void Runner::Poison(unsigned char byte) {
  o_.Poison(byte);
  if (c_.in_place) {
    final_.Write(c_.S0);
  } else if (c_.want_state) {
    final_.Poison(byte);
  }
  if (problem_.checkpoints.rank != 0) checkpoints_.Poison(byte);
  std::fill(workspace_.data(), workspace_.data() + workspace_.size(), static_cast<char>(byte));
}

void Runner::CheckGuards() const {
  const auto input = [](const TensorBuffer& buffer, const char* name) {
    if (buffer.tensor().rank != 0) {
      EXPECT_TRUE(buffer.Unchanged()) << name << " was written";
    }
  };
  input(q_, "q");
  input(k_, "k");
  input(v_, "v");
  input(g_, "g");
  input(beta_, "beta");
  input(A_log_, "A_log");
  input(dt_bias_, "dt_bias");
  input(initial_, "initial_state");
  const auto output = [](const TensorBuffer& buffer, const char* name) {
    if (buffer.tensor().rank != 0) {
      EXPECT_TRUE(buffer.BandsIntact()) << name << " was written out of bounds";
    }
  };
  output(o_, "o");
  output(final_, "final_state");
  output(checkpoints_, "checkpoints");
  EXPECT_TRUE(workspace_.size() == 0 || workspace_.BandsIntact())
      << "the workspace was written out of bounds";
}

Result Runner::Read() const {
  Result result;
  result.status = status_;
  result.info = plan_.Info();
  result.description = plan_.Describe();
  result.o = o_.Read();
  if (c_.want_state) result.S = final_.Read();
  if (problem_.checkpoints.rank != 0) result.checkpoints = checkpoints_.Read();
  return result;
}

Result Runner::Run(unsigned char byte) {
  Poison(byte);
  const kda::Status status = RunOnly();
  Result result = Read();
  result.status = status;
  CheckGuards();
  return result;
}

Result RunCase(const Case& c, const Config& config) {
  SCOPED_TRACE(config.Name());
  Runner runner(c, config);
  EXPECT_TRUE(runner.status().ok()) << runner.status().message();
  if (!runner.status().ok()) {
    Result failed;
    failed.status = runner.status();
    return failed;
  }
  Result result = runner.Run(kPoisonHuge);
  EXPECT_TRUE(result.status.ok()) << result.status.message();
  if (config.backend == KDA_BACKEND_REFERENCE || !IsSmall(c)) return result;
  const bool untouched_rows = !c.slots.empty() || c.Checkpoints() != 0;
  const Result other = runner.Run(untouched_rows ? kPoisonHuge : kPoisonNan);
  EXPECT_TRUE(result.o == other.o) << "o depends on what was in memory";
  EXPECT_TRUE(result.S == other.S) << "final_state depends on what was in memory";
  EXPECT_TRUE(result.checkpoints == other.checkpoints)
      << "checkpoints depend on what was in memory";
  return result;
}

bool IsPoison(const std::vector<uint32_t>& bits, kda_dtype dtype, unsigned char byte) {
  const uint32_t pair = byte * 0x101u;
  const uint32_t element = dtype == KDA_F32 ? pair * 0x10001u : pair;
  for (uint32_t b : bits) {
    if (b != element) return false;
  }
  return true;
}

std::vector<uint32_t> RowBits(const Case& c, const Array& o, int64_t first, int64_t last) {
  return Part(o.bits, first * c.HV * c.V, last * c.HV * c.V);
}

std::vector<uint32_t> RowBits(const Case& c, const Array& o, int64_t first, int64_t last,
                              int64_t head) {
  std::vector<uint32_t> bits;
  for (int64_t t = first; t < last; ++t) {
    const int64_t at = (t * c.HV + head) * c.V;
    bits.insert(bits.end(), o.bits.begin() + at, o.bits.begin() + at + c.V);
  }
  return bits;
}

std::vector<uint32_t> StateBits(const Case& c, const Array& S, int64_t row) {
  const int64_t size = c.HV * c.K * c.V;
  return Part(S.bits, row * size, (row + 1) * size);
}

std::vector<uint32_t> StateBits(const Case& c, const Array& S, int64_t row, int64_t head) {
  const int64_t size = c.K * c.V, at = row * c.HV + head;
  return Part(S.bits, at * size, (at + 1) * size);
}

std::vector<double> StateValues(const Case& c, const Array& S, int64_t row) {
  const int64_t size = c.HV * c.K * c.V;
  return Part(S.values, row * size, (row + 1) * size);
}

}  // namespace kda::test
