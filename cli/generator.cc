#include "cli/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "cli/error.h"
#include "cli/flags.h"
#include "cli/progress.h"

namespace kda::cli {
namespace {

enum Tag : uint64_t { kQ = 1, kK, kV, kG, kBeta, kState, kALog, kDtBias };

// splitmix64
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

class Random {
 public:
  Random(uint64_t seed, Tag tag) : key_(Mix(seed * 1000003 + tag)) {}

  // In [0, 1).
  double Uniform(int64_t index) const {
    return static_cast<double>(Mix(key_ + static_cast<uint64_t>(index)) >> 11) * 0x1p-53;
  }

  // About N(0, 1): the sum of four 16-bit uniforms of one draw. A bench needs 1e9 of them.
  float Normal(int64_t index) const {
    const uint64_t bits = Mix(key_ + static_cast<uint64_t>(index));
    const uint64_t sum =
        (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48);
    constexpr float kSqrt3 = 1.7320508f;  // the variance of the sum is 4/12
    return (static_cast<float>(sum) * 0x1p-16f - 2.0f + 0x1p-15f) * kSqrt3;
  }

 private:
  uint64_t key_;
};

void Parallel(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t threads =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::max<int64_t>(count, 1));
  std::vector<std::thread> pool;
  for (int64_t i = 0; i < threads; ++i) {
    pool.emplace_back(body, count * i / threads, count * (i + 1) / threads);
  }
  for (std::thread& thread : pool) thread.join();
}

void StoreRow(const Tensor& tensor, int64_t row, const std::vector<float>& values) {
  const int64_t dim = static_cast<int64_t>(values.size());
  const int64_t offset = row * dim;
  if (tensor.layout.dtype == KDA_F32) {
    std::memcpy(tensor.data + offset * 4, values.data(), values.size() * 4);
    return;
  }
  for (int64_t d = 0; d < dim; ++d) {
    StoreElement(tensor.data, tensor.layout.dtype, offset + d, values[static_cast<size_t>(d)]);
  }
}

// Fills each row (last dimension) of a dense tensor: fill(row, values). Between blocks of rows
// `progress` is told.
void FillRows(const Tensor& tensor, Progress* progress,
              const std::function<void(int64_t, std::vector<float>*)>& fill) {
  const int64_t dim = tensor.shape(tensor.layout.rank - 1);
  const int64_t rows = tensor.Elements() / dim;
  constexpr int64_t kBlock = int64_t{1} << 15;
  for (int64_t first = 0; first < rows; first += kBlock) {
    if (progress != nullptr) progress->Note("making inputs");
    Parallel(std::min(kBlock, rows - first), [&](int64_t begin, int64_t end) {
      std::vector<float> values(static_cast<size_t>(dim));
      for (int64_t row = first + begin; row < first + end; ++row) {
        fill(row, &values);
        StoreRow(tensor, row, values);
      }
    });
  }
}

void FillNormal(const Tensor& tensor, const Random& random, float factor, Progress* progress) {
  FillRows(tensor, progress, [&](int64_t row, std::vector<float>* values) {
    int64_t index = row * static_cast<int64_t>(values->size());
    for (float& x : *values) x = factor * random.Normal(index++);
  });
}

void FillUnitRows(const Tensor& tensor, const Random& random, Progress* progress) {
  FillRows(tensor, progress, [&](int64_t row, std::vector<float>* values) {
    int64_t index = row * static_cast<int64_t>(values->size());
    float sum = 0;
    for (float& x : *values) {
      x = random.Normal(index++);
      sum += x * x;
    }
    const float factor = 1.0f / std::sqrt(std::max(sum, 1e-12f));
    for (float& x : *values) x *= factor;
  });
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// exp(A_log) of a head, and the raw gate before dt_bias. "mix" spreads the decays of a head's
// channels from almost none to almost the bound: a state that is forgotten at once, as N(0, 1)
// gates give, would hide most faults.
double ALog(const GeneratorFlags& flags, const Random& random, int64_t head) {
  if (flags.values == "saturated") return flags.gate == "softplus" ? std::log(2.5) : 0;
  if (flags.values == "slow") return 0;
  if (flags.values == "published" || flags.gate == "softplus") {
    return std::log(1 + 15 * random.Uniform(head));
  }
  return random.Uniform(head) - 0.5;
}

float RawGate(const GeneratorFlags& flags, float normal, float position) {
  if (flags.values == "saturated") return 20;
  if (flags.values == "slow") return -7 + 0.5f * normal;
  if (flags.values == "published") return normal;
  return -9 + (flags.gate == "softplus" ? 11.0f : 12.0f) * position + 0.5f * normal;
}

void FillGate(const GeneratorFlags& flags, int64_t value_heads, Progress* progress, Case* inputs) {
  const Random random(flags.seed, kG), a_random(flags.seed, kALog);
  FillRows(inputs->g, progress, [&](int64_t row, std::vector<float>* values) {
    const int64_t dim = static_cast<int64_t>(values->size());
    const double a = std::exp(ALog(flags, a_random, row % value_heads));
    for (int64_t d = 0; d < dim; ++d) {
      const float position = dim > 1 ? static_cast<float>(d) / static_cast<float>(dim - 1) : 0;
      float x = RawGate(flags, random.Normal(row * dim + d), position);
      if (flags.gate == "log") x = static_cast<float>(-5 * Sigmoid(a * x));
      (*values)[static_cast<size_t>(d)] = x;
    }
  });
  if (flags.gate == "log") return;
  for (int64_t h = 0; h < value_heads; ++h) {
    StoreElement(inputs->A_log.data, KDA_F32, h, ALog(flags, a_random, h));
  }
  const Random bias(flags.seed, kDtBias);
  for (int64_t i = 0; i < inputs->dt_bias.Elements(); ++i) {
    const double value = flags.values == "saturated"   ? 0
                         : flags.values == "published" ? bias.Normal(i)
                                                       : bias.Uniform(i) - 0.5;
    StoreElement(inputs->dt_bias.data, KDA_F32, i, value);
  }
}

}  // namespace

std::vector<CLI::Option*> AddGeneratorFlags(CLI::App* app, bool semantics, GeneratorFlags* flags) {
  const std::string group = "Generated inputs";
  if (semantics) {
    app->add_option("--gate", flags->gate, "bounded at -5 (Kimi K3), softplus (Kimi-Linear) or log")
        ->check(OneOf({"log", "bounded", "softplus"}))
        ->capture_default_str()
        ->group(group);
    app->add_flag("--beta-logits", flags->beta_logits, "beta as logits")->group(group);
  }
  std::vector<CLI::Option*> options = {
      app->add_option(
             "--values", flags->values,
             "gates: mix = fast and slow channels in every head; published = N(0, 1); slow; "
             "saturated = at the bound")
          ->check(OneOf({"mix", "published", "slow", "saturated"})),
      app->add_option("--dtype", flags->dtype, "of q, k, v and o")
          ->check(OneOf({"bf16", "fp16", "fp32"})),
      app->add_option("--gate-dtype", flags->gate_dtype, "of g")
          ->check(OneOf({"bf16", "fp16", "fp32"})),
      app->add_option("--dim-k", flags->dim_k, "K: width of a query or key")
          ->check(WholeNumberIn(1, 256)),
      app->add_option("--dim-v", flags->dim_v, "V: width of a value")->check(WholeNumberIn(1, 256)),
      app->add_option("--group", flags->group, "value heads per query/key head (HV / H)")
          ->check(WholeNumberIn(1, 64)),
      app->add_option("--seed", flags->seed, "of the inputs")->check(WholeNumberIn(0, INT64_MAX))};
  for (CLI::Option* option : options) option->capture_default_str()->group(group);
  return options;
}

namespace {

// The library would name its tensors; here the options make them.
void CheckSize(int64_t tokens, int64_t value_heads) {
  for (int32_t i = 0; const kda_limit_info* limit = kda_limit(i); ++i) {
    const std::string name = limit->name;
    const auto max = static_cast<int64_t>(limit->max);
    if (name == "tokens" && tokens > max) {
      BadArgument("--batch, --seqlen, --lengths: {} tokens in all, must be at most {}", tokens,
                  max);
    }
    if (name == "token_heads" && tokens * value_heads > max) {
      BadArgument("--heads, --group: {} tokens x {} value heads are {}, must be at most {}", tokens,
                  value_heads, tokens * value_heads, max);
    }
  }
}

}  // namespace

Case DescribeInputs(const GeneratorFlags& flags, int64_t heads, int64_t tokens, int64_t sequences) {
  const kda_dtype dtype = DtypeFromFlag(flags.dtype);
  const int64_t values = heads * flags.group;
  CheckSize(tokens, values);
  Case inputs;
  inputs.gate = flags.gate == "bounded"    ? KDA_GATE_BOUNDED
                : flags.gate == "softplus" ? KDA_GATE_SOFTPLUS
                                           : KDA_GATE_LOG;
  inputs.lower_bound = flags.gate == "bounded" ? -5 : 0;
  inputs.flags = flags.beta_logits ? KDA_FLAG_BETA_LOGITS : 0;
  inputs.q.layout = DenseLayout(dtype, {1, tokens, heads, flags.dim_k});
  inputs.k.layout = inputs.q.layout;
  inputs.v.layout = DenseLayout(dtype, {1, tokens, values, flags.dim_v});
  inputs.g.layout = DenseLayout(DtypeFromFlag(flags.gate_dtype), {1, tokens, values, flags.dim_k});
  inputs.beta.layout = DenseLayout(KDA_F32, {1, tokens, values});
  inputs.initial_state.layout = DenseLayout(KDA_F32, {sequences, values, flags.dim_k, flags.dim_v});
  if (flags.gate == "log") return inputs;
  inputs.A_log.layout = DenseLayout(KDA_F32, {values});
  inputs.dt_bias.layout = DenseLayout(KDA_F32, {values, flags.dim_k});
  return inputs;
}

Case MakeInputs(const GeneratorFlags& flags, int64_t heads, int64_t tokens, int64_t sequences,
                Progress* progress) {
  Case inputs = DescribeInputs(flags, heads, tokens, sequences);
  for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.g, &inputs.beta, &inputs.A_log,
                         &inputs.dt_bias, &inputs.initial_state}) {
    if (tensor->layout.rank > 0) *tensor = NewTensor(tensor->layout);
  }
  FillUnitRows(inputs.q, Random(flags.seed, kQ), progress);
  FillUnitRows(inputs.k, Random(flags.seed, kK), progress);
  FillNormal(inputs.v, Random(flags.seed, kV), 1, progress);
  FillNormal(inputs.initial_state, Random(flags.seed, kState), 0.1f, progress);
  FillGate(flags, heads * flags.group, progress, &inputs);
  const Random beta(flags.seed, kBeta);
  for (int64_t i = 0; i < inputs.beta.Elements(); ++i) {
    const double x = beta.Normal(i);
    StoreElement(inputs.beta.data, KDA_F32, i, flags.beta_logits ? x : Sigmoid(x));
  }
  return inputs;
}

Case PackedCase(const Case& inputs, const Batch& batch) {
  Case packed = inputs;
  const int64_t tokens = batch.Tokens(), sequences = batch.sequences();
  for (Tensor* tensor : {&packed.q, &packed.k, &packed.v, &packed.g, &packed.beta, &packed.o}) {
    *tensor = Slice(*tensor, 1, 0, tokens);
  }
  packed.initial_state = Slice(inputs.initial_state, 0, 0, sequences);
  packed.final_state = Slice(inputs.final_state, 0, 0, sequences);
  packed.cu_seqlens = NewTensor(KDA_I64, {sequences + 1});
  int64_t* offsets = reinterpret_cast<int64_t*>(packed.cu_seqlens.data);
  offsets[0] = 0;
  for (int64_t n = 0; n < sequences; ++n) {
    offsets[n + 1] = offsets[n] + batch.lengths[static_cast<size_t>(n)];
  }
  return packed;
}

int64_t InputBytes(const GeneratorFlags& flags, int64_t heads, int64_t tokens, int64_t sequences) {
  const int64_t size = DtypeSize(DtypeFromFlag(flags.dtype));
  const int64_t values = heads * flags.group;
  const int64_t per_token = size * (2 * heads * flags.dim_k + 2 * values * flags.dim_v) +
                            values * (4 + flags.dim_k * DtypeSize(DtypeFromFlag(flags.gate_dtype)));
  return tokens * per_token + sequences * values * flags.dim_k * flags.dim_v * 8;
}

}  // namespace kda::cli
