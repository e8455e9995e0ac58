#include "command_line.h"

#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include "base/mmap.h"
#include "usage.h"

namespace fathom {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

// They have two letters, which CLI11 would read as two flags.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kShort = {{
    {"-tp", "--tensor-parallel-size"},
    {"-pp", "--pipeline-parallel-size"},
    {"-dp", "--data-parallel-size"},
    {"-dpn", "--data-parallel-rank"},
    {"-ep", "--enable-expert-parallel"},
    {"-asc", "--api-server-count"},
}};

std::string WithDashes(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed;
}

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

// Whether the command line says `option`, by any of its names.
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

class ConfigFile {
 public:
  ConfigFile(std::string file, CLI::App* command, CommandLine* line)
      : file_(std::move(file)), command_(command), line_(line) {}

  Status Add() {
    Result<std::string> text = ReadFile(file_, kMaxConfigBytes);
    if (!text.ok()) return text.status().WithContext("--config");
    const std::vector<std::string> said = line_->arguments;
    try {
      const YAML::Node root = YAML::Load(*text);
      if (!root.IsMap()) return InvalidArgument("{} is not a map of flags, as port: 8000", file_);
      for (const auto& entry : root) {
        if (!entry.first.IsScalar()) return InvalidArgument("{}: a key is not a word", file_);
        TRY(AddEntry(entry.first.as<std::string>(), entry.second, said));
      }
    } catch (const YAML::Exception& error) {
      return InvalidArgument("{}: {}", file_, error.what());
    }
    return {};
  }

 private:
  template <class... Args>
  Status Refuse(const std::string& key, fmt::format_string<Args...> what, Args&&... args) const {
    return InvalidArgument("{}: {}: {}", file_, key,
                           fmt::format(what, std::forward<Args>(args)...));
  }

  // `said`: the command line, which counts before the file.
  Status AddEntry(const std::string& key, const YAML::Node& value,
                  const std::vector<std::string>& said) {
    const std::string name = WithDashes(key);
    const std::string flag = name == "model" ? name : "--" + name;
    CLI::Option* option = command_->get_option_no_throw(flag);
    if (option == nullptr || name == "help") return Refuse(key, "{}", NoFlag(*command_, flag));
    if (!taken_.insert(option).second) return Refuse(key, "it is there more than once");
    if (value.IsMap())
      return Refuse(key, "a map is no value; JSON is written in quotes, as '{{...}}'");
    if (value.IsNull()) return Refuse(key, "it needs a value");
    const bool is_flag = option->get_expected_min() == 0;
    const bool one = is_flag || option->get_expected_max() <= 1;
    if (one && value.IsSequence()) return Refuse(key, "it takes one value, not a list");
    if (value.IsSequence() && value.size() == 0) return Refuse(key, "the list is empty");
    std::vector<std::string> words;
    for (size_t i = 0; i < (value.IsSequence() ? value.size() : 1); ++i) {
      const YAML::Node& word = value.IsSequence() ? value[i] : value;
      if (!word.IsScalar()) return Refuse(key, "its list holds more than words");
      words.push_back(word.as<std::string>());
    }
    if (bool on = false; is_flag && !YAML::convert<bool>::decode(value, on)) {
      return Refuse(key, "it is true or false, not {}", words.front());
    } else if (is_flag) {
      words.front() = on ? "true" : "false";
    }
    if (Says(said, *option)) return {};
    const std::string source = fmt::format("{}: {}", file_, key);
    line_->sources["--" + name] = source;
    if (const std::string shown = option->get_name(); !shown.empty())
      line_->sources[shown] = source;
    if (name != "model") {
      for (const std::string& word : words) line_->arguments.push_back(flag + "=" + word);
    } else if (words.front().empty()) {
      return Refuse(key, "it is empty");
    } else {
      option->required(false)->envname("")->default_val(words.front());
    }
    return {};
  }

  const std::string file_;
  CLI::App* const command_;
  CommandLine* const line_;
  std::set<const CLI::Option*> taken_;
};

bool IsSet(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  return value != nullptr && *value != '\0';
}

// Whoever runs beside a service called fathom in Kubernetes has FATHOM_SERVICE_HOST, FATHOM_PORT,
// FATHOM_PORT_8000_TCP and the like.
bool IsOfKubernetes(std::string_view name) {
  constexpr std::string_view kPort = "FATHOM_PORT_";
  return name.starts_with("FATHOM_SERVICE_") ||
         (name.starts_with(kPort) && name.size() > kPort.size() && name[kPort.size()] <= '9');
}

// Variables that no flag is said by: a slip of whoever set them.
void WarnOfVariables(const CLI::App& command) {
  // What the service file, the build, the tests and the tools read.
  constexpr std::array<std::string_view, 12> kOthers = {
      "FATHOM_CONFIG", "FATHOM_FLAGS",   "FATHOM_CACHE",      "FATHOM_BINARY",
      "FATHOM_CUDA",   "FATHOM_CUPTI",   "FATHOM_FAULT",      "FATHOM_SCHEMAS",
      "FATHOM_SEED",   "FATHOM_HOSTILE", "FATHOM_CUDA_TIMES", "FATHOM_CUDA_SYNC"};
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(VariableOf(name));
  }
  names.push_back(VariableOf("model"));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("FATHOM_") || IsOfKubernetes(name) ||
        std::ranges::find(names, name) != names.end() ||
        std::ranges::find(kOthers, name) != kOthers.end()) {
      continue;
    }
    const std::string nearest = Nearest(name, names);
    fmt::print(stderr, "fathom serve: the variable {} says nothing here{}\n", name,
               nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
  }
}

}  // namespace

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
  if (!file.empty()) TRY(ConfigFile(file, serve, &line).Add());
  for (const CLI::Option* option : serve->get_options()) {
    const std::string variable = option->get_envname();
    if (variable.empty() || !IsSet(variable) || Says(line.arguments, *option)) continue;
    line.sources.emplace(option->get_name(), variable);
  }
  WarnOfVariables(*serve);
  return line;
}

}  // namespace fathom
