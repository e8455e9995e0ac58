#include "command_line.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/mmap.h"

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

bool Says(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || argument.starts_with(flag + "=");
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

// What one entry of the file adds to the command line.
Status AddEntry(const std::string& file, const YAML::Node& key, const YAML::Node& value,
                std::vector<std::string>* arguments) {
  const std::string name = WithDashes(key.as<std::string>());
  const std::string flag = "--" + name;
  if (Says(*arguments, flag)) return {};
  std::vector<std::string> words;
  if (value.IsSequence()) {
    words.push_back(flag);
    for (const YAML::Node& entry : value) {
      if (!entry.IsScalar()) return InvalidArgument("{}: {} holds more than words", file, name);
      words.push_back(entry.as<std::string>());
    }
  } else if (value.IsMap() || value.IsNull()) {
    return InvalidArgument("{}: {} needs a value, or a list of them", file, name);
  } else if (const std::string text = value.as<std::string>(); text == "true") {
    words.push_back(flag);
  } else if (text == "false") {
    return {};  // flags are off unless they are there
  } else if (name == "model") {
    words.push_back(text);
  } else {
    words.push_back(flag + "=" + text);
  }
  // MODEL stands before all flags: one with a list of words would take it in.
  arguments->insert(name == "model" ? arguments->begin() + 1 : arguments->end(), words.begin(),
                    words.end());
  return {};
}

Status AddFile(const std::string& file, std::vector<std::string>* arguments) {
  Result<std::string> text = ReadFile(file, kMaxConfigBytes);
  if (!text.ok()) return text.status().WithContext("--config");
  try {
    const YAML::Node root = YAML::Load(*text);
    if (!root.IsMap()) return InvalidArgument("{} is not a map of flags, as port: 8000", file);
    for (const auto& entry : root) TRY(AddEntry(file, entry.first, entry.second, arguments));
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}: {}", file, error.what());
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> ReadCommandLine(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) arguments.push_back(Spelled(argv[i]));
  if (arguments.empty() || arguments.front() != "serve") return arguments;
  const std::string file = TRY(TakeConfigFlag(&arguments));
  if (!file.empty()) TRY(AddFile(file, &arguments));
  return arguments;
}

}  // namespace fathom
