// What a command line says, in the words that the flags have.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace fathom {

// The arguments after the program's name: flags with dashes where they were written with
// underscores, vLLM's short forms in full, and what --config FILE says of flags that are not there.
// FILE is YAML as vLLM's: `max-model-len: 4096`, `enforce-eager: true`, lists, and `model`.
Result<std::vector<std::string>> ReadCommandLine(int argc, const char* const* argv);

}  // namespace fathom
