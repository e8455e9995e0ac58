#include "config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/mmap.h"
#include "usage.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxJsonDepth = 16;      // what a file's aliases make deeper is refused too
constexpr int kMaxJsonValues = 10000;  // likewise

// A word without quotes is what YAML takes it for; a number that JSON has none of is a text.
json::value ScalarOf(const YAML::Node& node) {
  const std::string text = node.Scalar();
  if (node.Tag() == "!") return json::value(text);
  if (bool on = false; text.size() > 1 && YAML::convert<bool>::decode(node, on)) return on;
  boost::system::error_code error;
  json::value number = json::parse(text, error);
  return !error && number.is_number() ? number : json::value(text);
}

// `*left`: values that may still come.
Result<json::value> JsonOf(const YAML::Node& node, int depth, int* left) {
  if (depth == 0 || --*left < 0) {
    return InvalidArgument(
        "its maps and lists are nested more than {} deep, or hold more than {} values",
        kMaxJsonDepth, kMaxJsonValues);
  }
  if (node.IsNull()) return json::value(nullptr);
  if (node.IsScalar()) return ScalarOf(node);
  if (node.IsSequence()) {
    json::array list;
    for (const YAML::Node& one : node) list.push_back(TRY(JsonOf(one, depth - 1, left)));
    return json::value(std::move(list));
  }
  json::object object;
  for (const auto& member : node) {
    if (!member.first.IsScalar()) return InvalidArgument("a key of its map is not a word");
    const std::string& key = member.first.Scalar();
    if (object.contains(key)) return InvalidArgument("{} is in its map more than once", key);
    object[key] = TRY(JsonOf(member.second, depth - 1, left));
  }
  return json::value(std::move(object));
}

// False for what is neither a word nor a list of them.
bool ReadWords(const YAML::Node& value, std::vector<std::string>* words) {
  for (size_t i = 0; i < (value.IsSequence() ? value.size() : 1); ++i) {
    const YAML::Node& word = value.IsSequence() ? value[i] : value;
    if (!word.IsScalar()) return false;
    words->push_back(word.as<std::string>());
  }
  return true;
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
    if (name == "help" || name == "config") return Refuse(key, "the command line alone says it");
    if (option == nullptr) return Refuse(key, "{}", NoFlag(*command_, flag));
    if (!taken_.insert(option).second) return Refuse(key, "it is there more than once");
    if (value.IsNull()) return Refuse(key, "it needs a value");
    const bool is_json = option->get_type_name() == "JSON";
    if (!is_json && value.IsMap()) return Refuse(key, "it takes no map");
    const bool is_flag = option->get_expected_min() == 0;
    const bool one = is_flag || option->get_expected_max() <= 1;
    if (one && !is_json && value.IsSequence()) return Refuse(key, "it takes one value, not a list");
    if (value.IsSequence() && value.size() == 0) return Refuse(key, "the list is empty");
    std::vector<std::string> words;
    if (is_json && !value.IsScalar()) {
      int left = kMaxJsonValues;
      const Result<json::value> read = JsonOf(value, kMaxJsonDepth, &left);
      if (!read.ok()) return Refuse(key, "{}", read.status().message());
      words.push_back(json::serialize(*read));
    } else if (!ReadWords(value, &words)) {
      return Refuse(key, "its list holds more than words");
    }
    if (bool on = false; is_flag && !YAML::convert<bool>::decode(value, on)) {
      return Refuse(key, "it is true or false, not {}", words.front());
    } else if (is_flag) {
      words.front() = on ? "true" : "false";
    }
    return Says(said, *option) ? Status() : Say(key, option, words);
  }

  // `option` under the name `key`.
  Status Say(const std::string& key, CLI::Option* option, const std::vector<std::string>& words) {
    const std::string name = WithDashes(key);
    const std::string source = fmt::format("{}: {}", file_, key);
    line_->sources["--" + name] = source;
    if (const std::string shown = option->get_name(); !shown.empty())
      line_->sources[shown] = source;
    if (name != "model") {
      for (const std::string& word : words)
        line_->arguments.push_back(fmt::format("--{}={}", name, word));
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

}  // namespace

Status AddConfigFile(const std::string& file, CLI::App* command, CommandLine* line) {
  return ConfigFile(file, command, line).Add();
}

}  // namespace fathom
