#include "usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace fathom {
namespace {

constexpr int kUsageError = 2;

// How many letters must change to make one of the other (Levenshtein).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> costs(b.size() + 1);
  std::iota(costs.begin(), costs.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(costs[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] != b[j]);
      diagonal = costs[j + 1];
      costs[j + 1] = std::min({costs[j] + 1, costs[j + 1] + 1, changed});
    }
  }
  return costs.back();
}

std::vector<std::string> FlagsOf(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<std::string> CommandsOf(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands(nullptr)) names.push_back(sub->get_name());
  return names;
}

}  // namespace

std::string Nearest(std::string name, const std::vector<std::string>& names) {
  const size_t near = std::max<size_t>(2, name.size() / 4);
  std::string nearest;
  size_t least = near + 1;
  for (const std::string& other : names) {
    const size_t distance = Distance(name, other);
    if (distance < least) {
      least = distance;
      nearest = other;
    }
  }
  return nearest;
}

std::string NoFlag(const CLI::App& command, const std::string& argument) {
  const std::string flag = argument.substr(0, argument.find('='));
  if (const std::string_view hint = VllmHint(flag); !hint.empty()) {
    return fmt::format("{}: {}", flag, hint);
  }
  const std::string nearest = Nearest(flag, FlagsOf(command));
  return fmt::format("there is no {}{}", flag,
                     nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

namespace {

// What is wrong with arguments that nobody took. Where there are flags among them, the others may
// be their values.
std::vector<std::string> ExplainRest(const CLI::App& command, bool wants_command,
                                     const std::vector<std::string>& rest) {
  std::vector<std::string> lines;
  for (const std::string& argument : rest) {
    if (argument.starts_with('-') && argument != "--") lines.push_back(NoFlag(command, argument));
  }
  if (!lines.empty()) return lines;
  if (wants_command) {
    const std::string nearest = Nearest(rest.front(), CommandsOf(command));
    lines.push_back(fmt::format(
        "there is no command {}{}", rest.front(),
        nearest.empty() ? fmt::format("; there are {}", fmt::join(CommandsOf(command), ", "))
                        : fmt::format("; did you mean {}?", nearest)));
  } else {
    lines.push_back(fmt::format("one argument too many: {}", fmt::join(rest, " ")));
  }
  return lines;
}

// CLI11's own messages begin with the option's name.
std::string ExplainValue(const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string name = text.substr(0, text.find(':'));
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    const CLI::Option* const option = command.get_option_no_throw(name);
    const bool has_it = option != nullptr && !option->get_group().empty();  // and not only vLLM
    const std::string_view hint = has_it ? VllmHintOfValue(name) : VllmHint(name);
    return hint.empty() ? text : fmt::format("{}; {}", text, hint);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (text.ends_with("missing")) return name + " needs a value";
    return text.find("At Most") == std::string::npos ? text : name + " is given more than once";
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && text.starts_with("model ")) {
    return "no model: name its folder";
  }
  constexpr std::string_view kRequires = " requires ";
  if (const size_t at = text.find(kRequires);
      dynamic_cast<const CLI::RequiresError*>(&error) != nullptr && at != std::string::npos) {
    return fmt::format("{}: it means nothing without {}: say that too, or leave it out",
                       text.substr(0, at), text.substr(at + kRequires.size()));
  }
  constexpr std::string_view kConversion = "Could not convert: ";
  if (text.starts_with(kConversion)) {
    const std::string what = text.substr(kConversion.size());  // without the name of a hidden flag
    return (what.starts_with(" = ") ? "a flag" : "") + what + ": it does not take such a value";
  }
  return text;
}

// "--port: ..." as "FATHOM_PORT: ...", if that is where the value stands.
std::string WithSource(const std::string& text, const std::map<std::string, std::string>& sources) {
  const size_t end = std::min(text.find_first_of(": "), text.size());
  const auto source = sources.find(text.substr(0, end));
  return source == sources.end() ? text : source->second + text.substr(end);
}

}  // namespace

void OnRun(CLI::App& command, int& exit_code, std::function<Status()> run) {
  command.callback([&command, &exit_code, run = std::move(run)] {
    const Status status = run();
    if (status.ok()) return;
    std::string name;
    for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
      name = app->get_name() + (name.empty() ? "" : " ") + name;
    }
    fmt::print(stderr, "{}: {}\n", name, status.message());
    exit_code = 1;
  });
}

int ExplainParse(const CLI::App& app, const CLI::ParseError& error,
                 const std::map<std::string, std::string>& sources) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  const bool wants_command = command->get_require_subcommand_min() > 0;
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  std::vector<std::string> lines;
  if (!rest.empty()) {
    lines = ExplainRest(*command, wants_command, rest);
  } else if (wants_command) {
    lines.push_back(fmt::format("say which command: {}", fmt::join(CommandsOf(*command), ", ")));
  } else {
    lines.push_back(WithSource(ExplainValue(*command, error), sources));
  }
  for (const std::string& line : lines) fmt::print(stderr, "{}: {}\n", name, line);
  fmt::print(stderr, "{} --help says what it takes\n", name);
  return kUsageError;
}

}  // namespace fathom
