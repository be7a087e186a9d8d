// kda: Kimi Delta Attention from the command line.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "cli/commands.h"
#include "cli/error.h"

namespace {

// "--gate {log|bounded} (log)" instead of "--gate TEXT:{log|bounded}=log Excludes: ..."
class Help : public CLI::Formatter {
 public:
  Help() { column_width(34); }
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

std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

// The sub-command that was typed, for "kda bench: ..." and its help.
std::string Name(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) return "kda " + command->get_name();
  return "kda";
}

int Complain(const CLI::App& app, const std::string& message, int code) {
  const std::string name = Name(app);
  const std::string hint =
      code == kda::cli::kExitArgument ? fmt::format("; see {} --help", name) : "";
  fmt::print(stderr, "{}: {}{}\n", name, OneLine(message), hint);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  kda::cli::Context context;
  context.command = CommandLine(argc, argv);
  kda::cli::ReadCpuInfo();
  CLI::App app("Kimi Delta Attention (KDA): runs, verifies and measures the forward pass.", "kda");
  app.formatter(std::make_shared<Help>());
  app.footer(
      "First steps:\n"
      "  kda demo                      see it run on real prompt lengths, verified and timed\n"
      "  kda info                      what this machine can run\n"
      "  kda verify --seqlen 300       a small problem against the fp64 oracle\n"
      "Exit codes: 0 good, 1 a verification or the machine failed, 2 wrong arguments.");
  app.set_version_flag("--version", std::string("kda ") + kda_version_string());
  app.require_subcommand(0, 1);
  kda::cli::AddInfo(&app, &context);
  kda::cli::AddRun(&app, &context);
  kda::cli::AddVerify(&app, &context);
  kda::cli::AddBench(&app, &context);
  kda::cli::AddLadder(&app, &context);
  kda::cli::AddDemo(&app, &context);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      return Complain(app, "a command is needed: info, run, verify, bench, ladder or demo",
                      kda::cli::kExitArgument);
    }
    if (std::fflush(stdout) != 0) {
      return Complain(app, "writing to standard output failed", kda::cli::kExitFailed);
    }
    return context.exit_code;
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return Complain(app, error.what(), kda::cli::kExitArgument);
  } catch (const kda::cli::Error& error) {
    std::fflush(stdout);
    return Complain(app, error.what(), error.exit_code);
  } catch (const std::bad_alloc&) {
    return Complain(app, "out of memory", kda::cli::kExitFailed);
  } catch (const std::exception& error) {
    return Complain(app, error.what(), kda::cli::kExitFailed);
  }
}
