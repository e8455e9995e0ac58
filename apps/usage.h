// What to say of a command line that cannot be taken.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace fathom {

// Prints the help or version that was asked for, or on stderr every argument that is wrong. Returns
// the exit code: 0, or 2.
int ExplainParse(const CLI::App& app, const CLI::ParseError& error);

// What somebody who knows vLLM should do instead of `flag`, which fathom does not have or which
// takes other values here; "" if there is nothing to say.
std::string_view VllmHint(std::string_view flag);

}  // namespace fathom
