// What to say of a command line that cannot be taken.
#pragma once

#include <functional>
#include <string_view>

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
int ExplainParse(const CLI::App& app, const CLI::ParseError& error);

// What somebody who knows vLLM should do instead of `flag`, which fathom does not have or which
// takes other values here; "" if there is nothing to say.
std::string_view VllmHint(std::string_view flag);

}  // namespace fathom
