#include "command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "config_file.h"
#include "usage.h"

namespace fathom {
namespace {

// They have two letters, which CLI11 would read as two flags.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kShort = {{
    {"-tp", "--tensor-parallel-size"},
    {"-pp", "--pipeline-parallel-size"},
    {"-dp", "--data-parallel-size"},
    {"-dpn", "--data-parallel-rank"},
    {"-ep", "--enable-expert-parallel"},
    {"-asc", "--api-server-count"},
}};

std::string Spelled(std::string_view argument) {
  for (const auto& [shorter, full] : kShort) {
    if (argument == shorter) return std::string(full);
  }
  if (argument.starts_with("-O") && argument.size() == 3) {
    return "--optimization-level=" + std::string(argument.substr(2));
  }
  if (!argument.starts_with("--")) return std::string(argument);
  const size_t end = std::min(argument.find('='), argument.size());
  return WithDashes(argument.substr(0, end)) + std::string(argument.substr(end));
}

// Takes --config out of `*arguments`; the file's name, or "".
Result<std::string> TakeConfigFlag(std::vector<std::string>* arguments) {
  for (auto at = arguments->begin(); at != arguments->end(); ++at) {
    if (at->starts_with("--config=")) {
      std::string file = at->substr(std::string_view("--config=").size());
      arguments->erase(at);
      return file;
    }
    if (*at != "--config") continue;
    if (std::next(at) == arguments->end()) return InvalidArgument("--config needs a file");
    std::string file = *std::next(at);
    arguments->erase(at, at + 2);
    return file;
  }
  const char* named = std::getenv("FATHOM_CONFIG");
  return std::string(named != nullptr ? named : "");
}

bool IsSet(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  return value != nullptr && *value != '\0';
}

// Whoever runs beside a service called fathom in Kubernetes has FATHOM_SERVICE_HOST,
// FATHOM_PORT=tcp://10.0.0.1:8000, FATHOM_PORT_8000_TCP and the like.
bool IsOfKubernetes(const std::string& name) {
  constexpr std::string_view kPort = "FATHOM_PORT";
  if (name == kPort) return std::string_view(std::getenv(name.c_str())).starts_with("tcp://");
  return name.starts_with("FATHOM_SERVICE_") ||
         (name.starts_with("FATHOM_PORT_") && name.size() > kPort.size() + 1 &&
          name[kPort.size() + 1] <= '9');
}

// What the service file, the build, the tests and the tools read.
bool IsOfOthers(std::string_view name) {
  constexpr std::array<std::string_view, 12> kOthers = {
      "FATHOM_CONFIG", "FATHOM_FLAGS",   "FATHOM_CACHE",      "FATHOM_BINARY",
      "FATHOM_CUDA",   "FATHOM_CUPTI",   "FATHOM_FAULT",      "FATHOM_SCHEMAS",
      "FATHOM_SEED",   "FATHOM_HOSTILE", "FATHOM_CUDA_TIMES", "FATHOM_CUDA_SYNC"};
  return std::ranges::find(kOthers, name) != kOthers.end();
}

// The flags of the environment, by any of their names. The model is no flag, and CLI11's to read.
Status TakeVariables(const CLI::App& command, CommandLine* line) {
  const std::vector<std::string> said = line->arguments;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_configurable() || Says(said, *option)) continue;
    std::string set_by = option->get_envname();
    if (!IsSet(set_by)) set_by.clear();
    for (const std::string& name : option->get_lnames()) {
      const std::string variable = VariableOf(name);
      if (!IsSet(variable) || IsOfKubernetes(variable) || IsOfOthers(variable)) continue;
      if (!set_by.empty()) {
        return InvalidArgument("{} and {} say the same flag: keep one of them", set_by, variable);
      }
      set_by = variable;
      line->sources["--" + name] = variable;
      line->arguments.push_back(fmt::format("--{}={}", name, std::getenv(variable.c_str())));
    }
    if (!set_by.empty()) line->sources.emplace(option->get_name(), set_by);
  }
  return {};
}

// Variables that no flag is said by: a slip of whoever set them.
void WarnOfVariables(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_configurable()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back(VariableOf(name));
  }
  names.push_back(VariableOf("model"));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("FATHOM_") || IsOfKubernetes(name) ||
        std::ranges::find(names, name) != names.end() || IsOfOthers(name)) {
      continue;
    }
    const std::string nearest = Nearest(name, names);
    fmt::print(stderr, "fathom serve: the variable {} says nothing here{}\n", name,
               nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
  }
}

}  // namespace

std::string WithDashes(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed;
}

bool Says(const std::vector<std::string>& arguments, const CLI::Option& option) {
  return std::ranges::any_of(arguments, [&](const std::string& argument) {
    const std::string flag = argument.substr(0, argument.find('='));
    const auto is = [&](const std::string& name) { return flag == "--" + name; };
    return std::ranges::any_of(option.get_lnames(), is) ||
           std::ranges::any_of(option.get_snames(), [&](const std::string& letter) {
             return !flag.starts_with("--") && flag.starts_with("-" + letter);
           });
  });
}

std::string VariableOf(std::string_view name) {
  std::string variable = "FATHOM_";
  for (const char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

Result<CommandLine> ReadCommandLine(int argc, const char* const* argv, CLI::App& app) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) line.arguments.push_back(Spelled(argv[i]));
  if (line.arguments.empty() || line.arguments.front() != "serve") return line;
  CLI::App* const serve = app.get_subcommand("serve");
  const std::string file = TRY(TakeConfigFlag(&line.arguments));
  if (!file.empty()) TRY(AddConfigFile(file, serve, &line));
  TRY(TakeVariables(*serve, &line));
  WarnOfVariables(*serve);
  return line;
}

}  // namespace fathom
