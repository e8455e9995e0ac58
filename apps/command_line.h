// What a command line says, in the words that the flags have.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fathom {

struct CommandLine {
  std::vector<std::string> arguments;  // after the program's name
  // Of flags whose value stands elsewhere, "--port": where that is, "FILE: port" or "FATHOM_PORT".
  std::map<std::string, std::string> sources;
};

// How a flag without its dashes is said in the environment: FATHOM_MAX_MODEL_LEN.
std::string VariableOf(std::string_view name);

std::string WithDashes(std::string_view name);

// Whether `arguments` say `option`, by any of its names.
bool Says(const std::vector<std::string>& arguments, const CLI::Option& option);

// Flags with dashes where they were written with underscores, vLLM's short forms in full, and what
// --config FILE says of flags of `serve`, a command of `app`, that are not there, then what
// FATHOM_... variables say of those that neither says. FILE is YAML as vLLM's: `max-model-len:
// 4096`, `enforce-eager: true`, lists where a flag takes several values, maps where it takes JSON,
// and `model`, which becomes the argument's default. Two variables of one flag are an error. Warns
// on stderr of variables FATHOM_... that are no flag's.
Result<CommandLine> ReadCommandLine(int argc, const char* const* argv, CLI::App& app);

}  // namespace fathom
