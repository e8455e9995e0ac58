// Flags in a YAML file, as vLLM's --config.
#pragma once

#include <string>

#include "base/status.h"
#include "command_line.h"

namespace fathom {

// Says in `*line` what `file` says of flags of `command` that are not there yet. Maps are JSON for
// flags whose values are JSON, and refused for others. kInvalidArgument, naming file and key, for
// what is no YAML, no flag, or no value of it.
Status AddConfigFile(const std::string& file, CLI::App* command, CommandLine* line);

}  // namespace fathom
