#include "cli/problem_flags.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <variant>

#include "cli/error.h"
#include "cli/table.h"

namespace kda::cli {
namespace {

const std::string kPrefix = "kda.";
const std::vector<std::string> kGates = {"log", "bounded", "softplus"};
const std::vector<std::string> kLayouts = {"kv", "vk"};
const std::vector<std::string> kDtypes = {"bf16", "fp16", "fp32"};

// What a file can say: one row for each option.
template <typename T>
using Field = std::optional<T> ProblemFlags::*;
struct Key {
  const char* name;    // of the option too, with - for _
  const char* wanted;  // for messages
  std::variant<Field<std::string>, Field<double>, Field<bool>, Field<int64_t>> field;
  const std::vector<std::string>* names = nullptr;  // of a text
};
const Key kKeys[] = {
    {"gate", "log, bounded or softplus", &ProblemFlags::gate, &kGates},
    {"lower_bound", "a finite number", &ProblemFlags::lower_bound},
    {"beta_logits", "true or false", &ProblemFlags::beta_logits},
    {"qk_l2norm", "true or false", &ProblemFlags::qk_l2norm},
    {"scale", "a finite number", &ProblemFlags::scale},
    {"state_layout", "kv or vk", &ProblemFlags::state_layout, &kLayouts},
    {"out_dtype", "bf16, fp16 or fp32", &ProblemFlags::out_dtype, &kDtypes},
    {"decode", "true or false", &ProblemFlags::decode},
    {"checkpoint_every", "a whole number above 0", &ProblemFlags::checkpoint_every}};

bool Read(const Key& key, const std::string& text, std::string* value) {
  *value = text;
  for (const std::string& name : *key.names) {
    if (name == text) return true;
  }
  return false;
}
bool Read(const Key&, const std::string& text, double* value) {
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && std::isfinite(*value);
}
bool Read(const Key&, const std::string& text, bool* value) {
  *value = text == "true";
  return *value || text == "false";
}
bool Read(const Key&, const std::string& text, int64_t* value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end && *value > 0;
}

// "--beta-logits true"
std::string AsOption(const Key& key, const std::string& value) {
  std::string text = std::string("--") + key.name + " " + value;
  for (char& c : text) c = c == '_' ? '-' : c;
  return text;
}

void AddSwitch(CLI::App* app, const std::string& name, const std::string& description,
               std::optional<bool>* value) {
  app->add_flag_function(
         "--" + name + ",!--no-" + name, [value](int64_t count) { *value = count > 0; },
         description)
      ->group("What is computed");
}

void CheckLowerBound(const ProblemFlags& flags) {
  if (*flags.gate != "bounded") {
    BadArgument("--lower-bound: {} has no meaning with --gate {}; it belongs to --gate bounded",
                *flags.lower_bound, *flags.gate);
  }
  for (int32_t i = 0; const kda_limit_info* limit = kda_limit(i); ++i) {
    if (std::string(limit->name) != "lower_bound") continue;
    if (*flags.lower_bound >= limit->min && *flags.lower_bound <= limit->max) return;
    BadArgument("--lower-bound: {} is not from {} to {}", *flags.lower_bound, limit->min,
                limit->max);
  }
}

// The log gate's g above 0 would be growth, not decay.
std::string GrowthNote(const Case& problem) {
  if (problem.gate != KDA_GATE_LOG) return "";
  const int64_t all = problem.g.Elements();
  int64_t count = 0;
  for (int64_t i = 0; i < all; ++i) {
    count += LoadElement(problem.g.data, problem.g.layout.dtype, i) > 0 ? 1 : 0;
  }
  if (count == 0) return "";
  return fmt::format(
      "{} of {} of g {} above 0, where the log gate expects [-inf, 0]; --gate "
      "bounded or softplus take a raw gate",
      count, Counted(all, "element"), count == 1 ? "is" : "are");
}

}  // namespace

void AddProblemFlags(CLI::App* app, const std::string& gate_default, ProblemFlags* flags) {
  const std::string group = "What is computed";
  app->add_option("--gate", flags->gate,
                  "what g holds: log = the log-decay itself; bounded = lower_bound * "
                  "sigmoid(exp(A_log) (g + dt_bias)); softplus = -exp(A_log) softplus(g + "
                  "dt_bias). " +
                      gate_default)
      ->check(OneOf(kGates))
      ->group(group);
  app->add_option("--lower-bound", flags->lower_bound,
                  "of the bounded gate: the log-decay of a token, a natural logarithm, lies "
                  "between this and 0 "
                  "(default: -5)")
      ->check(FiniteNumber())
      ->group(group);
  AddSwitch(app, "beta-logits", "beta is a logit: sigmoid(beta) is used", &flags->beta_logits);
  AddSwitch(app, "qk-l2norm", "normalise each row of q and k first", &flags->qk_l2norm);
  app->add_option("--scale", flags->scale, "factor of o (default: K^-0.5)")
      ->check(FiniteNumber())
      ->group(group);
  app->add_option("--state-layout", flags->state_layout,
                  "the states are [N, HV, K, V] (kv, the default) or [N, HV, V, K] (vk)")
      ->check(OneOf(kLayouts))
      ->group(group);
  app->add_option("--out-dtype", flags->out_dtype, "dtype of o (default: that of v)")
      ->check(OneOf(kDtypes))
      ->group(group);
  AddSwitch(app, "decode", "token by token instead of in chunks", &flags->decode);
  app->add_option("--checkpoint-every", flags->checkpoint_every,
                  "also give the state after every N tokens of each sequence")
      ->check(WholeNumberIn(1, INT64_MAX))
      ->group(group);
}

Metadata ToMetadata(const ProblemFlags& flags) {
  Metadata metadata;
  for (const Key& key : kKeys) {
    std::visit(
        [&](auto field) {
          const auto& value = flags.*field;
          if (value) metadata.emplace_back(kPrefix + key.name, fmt::format("{}", *value));
        },
        key.field);
  }
  return metadata;
}

std::string FromFile::Describe() const {
  std::vector<std::string> words;
  for (const auto& [name, value] : taken) words.push_back(name + " " + value);
  return fmt::format("{}", fmt::join(words, ", "));
}

Json FromFile::ToJson() const {
  Json json = Json::object();
  for (const auto& [name, value] : taken) json[name] = value;
  return json;
}

FromFile TakeFromFile(const std::string& path, const Metadata& metadata, ProblemFlags* flags) {
  ProblemFlags file;
  for (const auto& entry : metadata) {
    const std::string &name = entry.first, &text = entry.second;
    if (name.rfind(kPrefix, 0) != 0) continue;
    const Key* key = nullptr;
    std::vector<std::string> known;
    for (const Key& row : kKeys) {
      known.push_back(kPrefix + row.name);
      if (name == known.back()) key = &row;
    }
    if (key == nullptr) {
      BadArgument("--input: {}: metadata {} is not known; {} are", path, name,
                  fmt::join(known, ", "));
    }
    std::visit(
        [&](auto field) {
          auto& value = (file.*field).emplace();
          if (Read(*key, text, &value)) return;
          BadArgument("--input: {}: metadata {} is '{}', must be {}", path, name, text,
                      key->wanted);
        },
        key->field);
  }
  const std::string gate = flags->gate ? *flags->gate : file.gate.value_or("log");
  if (file.lower_bound && gate != "bounded") {
    if (!flags->gate) {
      BadArgument("--input: {}: metadata kda.lower_bound is {}, which the {} gate has not", path,
                  *file.lower_bound, gate);
    }
    file.lower_bound.reset();  // it went with the gate that the command line replaces
  }
  FromFile from;
  for (const Key& key : kKeys) {
    std::visit(
        [&](auto field) {
          auto& given = flags->*field;
          const auto& said = file.*field;
          if (!said) return;
          if (given && *given != *said) {
            from.overridden.push_back(fmt::format("{} is used; {} says {}",
                                                  AsOption(key, fmt::format("{}", *given)), path,
                                                  fmt::format("{}", *said)));
          }
          if (given) return;
          given = said;
          from.taken.emplace_back(key.name, fmt::format("{}", *said));
        },
        key.field);
  }
  return from;
}

void FillDefaults(const std::string& gate, ProblemFlags* flags) {
  if (!flags->gate) flags->gate = gate;
  if (*flags->gate == "bounded" && !flags->lower_bound) flags->lower_bound = -5;
  for (std::optional<bool>* value : {&flags->beta_logits, &flags->qk_l2norm, &flags->decode}) {
    if (!*value) *value = false;
  }
  if (!flags->state_layout) flags->state_layout = "kv";
}

void FillGenerator(ProblemFlags* flags, GeneratorFlags* generator) {
  FillDefaults("bounded", flags);
  generator->gate = *flags->gate;
  generator->beta_logits = *flags->beta_logits;
}

InputFile FileOrGenerated(const std::string& path, const Batch& batch, int64_t heads,
                          GeneratorFlags* generator, ProblemFlags* flags, FromFile* from,
                          Progress* progress) {
  if (!path.empty()) {
    InputFile input = ReadInput(path);
    *from = TakeFromFile(path, input.metadata, flags);
    FillDefaults("log", flags);
    return input;
  }
  FillGenerator(flags, generator);
  const Case inputs = MakeInputs(*generator, heads, batch.Tokens(), batch.sequences(), progress);
  return {PackedCase(inputs, batch), {}, {}};
}

void ApplyProblemFlags(const ProblemFlags& flags, Case* problem) {
  if (flags.lower_bound) CheckLowerBound(flags);
  problem->mode = *flags.decode ? KDA_DECODE : KDA_PREFILL;
  problem->gate = *flags.gate == "bounded"    ? KDA_GATE_BOUNDED
                  : *flags.gate == "softplus" ? KDA_GATE_SOFTPLUS
                                              : KDA_GATE_LOG;
  if (problem->gate == KDA_GATE_LOG && (problem->A_log.present() || problem->dt_bias.present())) {
    BadArgument(
        "--gate: log takes g as the log-decay itself, but there is {}, of a raw gate: --gate "
        "bounded or --gate softplus",
        problem->A_log.present() ? "A_log" : "dt_bias");
  }
  problem->lower_bound = flags.lower_bound.value_or(0);
  problem->state_order = *flags.state_layout == "vk" ? KDA_STATE_VK : KDA_STATE_KV;
  problem->flags =
      (*flags.beta_logits ? KDA_FLAG_BETA_LOGITS : 0) | (*flags.qk_l2norm ? KDA_FLAG_QK_L2NORM : 0);
  problem->scale = flags.scale.value_or(KDA_DEFAULT_SCALE);
  problem->checkpoint_every = flags.checkpoint_every.value_or(0);
}

kda_dtype OutputDtype(const ProblemFlags& flags, const Case& problem) {
  return flags.out_dtype ? DtypeFromFlag(*flags.out_dtype)
                         : static_cast<kda_dtype>(problem.v.layout.dtype);
}

std::vector<std::string> Notes(const std::string& path, const InputFile& input,
                               const FromFile& from) {
  std::vector<std::string> notes;
  for (const std::string& name : input.unused) {
    notes.push_back(fmt::format("tensor '{}' of {} is not used", OneLine(name), path));
  }
  notes.insert(notes.end(), from.overridden.begin(), from.overridden.end());
  const std::string growth = GrowthNote(input.problem);
  if (!growth.empty()) notes.push_back(growth);
  return notes;
}

}  // namespace kda::cli
