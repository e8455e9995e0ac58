// What to say of a command line that cannot be taken.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace fathom {

// Has `command` do `run`, whose error is printed under the command's name and makes the exit
// code 1.
void OnRun(CLI::App& command, int& exit_code, std::function<Status()> run);

// Prints the help or version that was asked for, or on stderr every argument that is wrong. Returns
// the exit code: 0, or 2.
// `sources`: of flags whose value does not stand on the command line, as CommandLine's.
int ExplainParse(const CLI::App& app, const CLI::ParseError& error,
                 const std::map<std::string, std::string>& sources);

// What to say of a flag that `command` does not have.
std::string NoFlag(const CLI::App& command, const std::string& argument);

// The nearest of `names`, or "" if none is near.
std::string Nearest(std::string name, const std::vector<std::string>& names);

// What somebody who knows vLLM should do instead of `flag`, which fathom does not have or which
// takes other values here; "" if there is nothing to say.
std::string_view VllmHint(std::string_view flag);
// The same where the command has the flag, and not that value.
std::string_view VllmHintOfValue(std::string_view flag);

}  // namespace fathom
