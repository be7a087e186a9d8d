// kda: Kimi Delta Attention from the command line.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/error.h"

namespace {

// "--gate {log|bounded} (log)" instead of "--gate TEXT:{log|bounded}=log Excludes: ..."
class Help : public CLI::Formatter {
 public:
  Help() { column_width(34); }
  // "--decode,--no-decode" instead of "--decode,--no-decode{false}"
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    static const std::regex value("\\{false\\}");
    return std::regex_replace(CLI::Formatter::make_option_name(option, positional), value, "");
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string type = option->get_type_name();
    type.erase(0, type.find(':') == std::string::npos ? 0 : type.find(':') + 1);
    std::string value = option->get_default_str();
    if (!value.empty() && value.front() == '[') value = value.substr(1, value.size() - 2);
    return fmt::format(" {}{}{}", type, value.empty() ? "" : fmt::format(" ({})", value),
                       option->get_required() ? " (required)" : "");
  }
};

// As it could be typed again.
std::string CommandLine(int argc, char** argv) {
  std::string line = "kda";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n'\"\\$`*?[](){}&;<>|!#~") == std::string::npos;
    line += plain ? " " + word : " '" + word + "'";
  }
  return line;
}

// The command that was typed, as far as it is one: app itself, "tpu", "predict" of tpu.
const CLI::App& Typed(const CLI::App& app, std::string* path) {
  const CLI::App* typed = &app;
  while (!typed->get_subcommands().empty()) {
    typed = typed->get_subcommands()[0];
    *path += " " + typed->get_name();
  }
  return *typed;
}

int Complain(const CLI::App& app, const std::string& program, const std::string& message,
             int code) {
  std::string command;
  Typed(app, &command);
  const std::string hint =
      code == kda::cli::kExitArgument ? fmt::format("; see {}{} --help", program, command) : "";
  fmt::print(stderr, "kda{}: {}{}\n", command, kda::cli::OneLine(message), hint);
  return code;
}

// Letters to add, take away or change to make `b` of `a`.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

// Where a command was expected: which there are, and the one that was meant.
std::string UnknownCommand(const CLI::App& typed, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* sub : typed.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_group().empty()) names.push_back(sub->get_name());
  }
  const auto nearest = std::min_element(
      names.begin(), names.end(),
      [&](const auto& a, const auto& b) { return Distance(word, a) < Distance(word, b); });
  const bool near = Distance(word, *nearest) <= 2 && word.size() > 2;
  return fmt::format("'{}' is no command{}; there are {}", word,
                     near ? fmt::format(", {} is", *nearest) : "", fmt::join(names, ", "));
}

// CLI11 lists what it did not expect backwards.
std::string Unexpected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  std::string path;
  const CLI::App& typed = Typed(app, &path);
  const bool commands = !typed.get_subcommands([](const CLI::App*) { return true; }).empty();
  if (commands && !words.empty() && words[0].rfind('-', 0) != 0) {
    return UnknownCommand(typed, words[0]);
  }
  return fmt::format("not expected here: {}", fmt::join(words, " "));
}

// "--seqlen: 1 required INT:N missing" -> "--seqlen: a value is missing: N"
std::string MissingValue(const std::string& message) {
  static const std::regex pattern("(\\S+): \\d+ required (?:[A-Z]+:)?(.*) missing");
  return std::regex_replace(message, pattern, "$1: a value is missing: $2");
}

}  // namespace

int main(int argc, char** argv) {
  kda::cli::Context context;
  context.command = CommandLine(argc, argv);
  if (argc > 0) context.program = argv[0];
  kda::cli::ReadCpuInfo();
  CLI::App app("Kimi Delta Attention (KDA): runs, verifies and measures the forward pass.", "kda");
  app.formatter(std::make_shared<Help>());
  app.footer(
      "First steps:\n"
      "  kda demo                      see it run on real prompt lengths, verified and timed\n"
      "  kda info                      what this machine can run\n"
      "  kda verify --seqlen 300       a small problem against the fp64 oracle\n"
      "Environment:\n"
      "  KDA_MAX_ISA=NAME              no instruction set beyond this one is used (kda info "
      "--isas)\n"
      "Exit codes:\n"
      "  0  good\n"
      "  1  a verification failed, or this machine cannot do it: it lacks the instruction set (or\n"
      "     KDA_MAX_ISA rules it out), the memory, the room to write\n"
      "  2  wrong arguments, input file or KDA_MAX_ISA: no machine could");
  app.set_version_flag("--version", std::string("kda ") + kda_version_string());
  app.require_subcommand(0, 1);
  kda::cli::AddInfo(&app, &context);
  kda::cli::AddRun(&app, &context);
  kda::cli::AddVerify(&app, &context);
  kda::cli::AddBench(&app, &context);
  kda::cli::AddLadder(&app, &context);
  kda::cli::AddDemo(&app, &context);
  kda::cli::AddTpu(&app, &context);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      return Complain(app, context.program,
                      "a command is needed: info, run, verify, bench, ladder, demo or tpu",
                      kda::cli::kExitArgument);
    }
    if (std::fflush(stdout) != 0) {
      return Complain(app, context.program, "writing to standard output failed",
                      kda::cli::kExitFailed);
    }
    return context.exit_code;
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ExtrasError&) {
    return Complain(app, context.program, Unexpected(app), kda::cli::kExitArgument);
  } catch (const CLI::ArgumentMismatch& error) {
    return Complain(app, context.program, MissingValue(error.what()), kda::cli::kExitArgument);
  } catch (const CLI::ParseError& error) {
    return Complain(app, context.program, error.what(), kda::cli::kExitArgument);
  } catch (const kda::cli::Error& error) {
    std::fflush(stdout);
    return Complain(app, context.program, error.what(), error.exit_code);
  } catch (const std::bad_alloc&) {
    return Complain(app, context.program, "out of memory", kda::cli::kExitFailed);
  } catch (const std::exception& error) {
    return Complain(app, context.program, error.what(), kda::cli::kExitFailed);
  }
}
