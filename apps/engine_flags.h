// Flags that every subcommand with an engine has.
#pragma once

#include "load_engine.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace fathom {

// How a model is cut over ranks: the sizes of `*layout`.
void AddLayoutFlags(CLI::App& command, ParallelLayout* layout, const char* group);

// Those of a backend, which `fathom verify` has too; their defaults are what `*settings` has.
void AddBackendFlags(CLI::App& command, BackendSettings* settings, const char* group);

// Adds the model and the engine's flags to `command`; they are stored in `*settings`.
void AddEngineFlags(CLI::App& command, EngineSettings* settings);

// How much an engine takes on, and the size of its KV cache.
void AddLimitFlags(CLI::App& command, EngineLimits* limits, const char* group);

// Which configuration, where there are no weights: --config-preset, --dtype, --num-layers.
void AddConfigFlags(CLI::App& command, EngineSettings* settings, const char* group);

// Several hosts that share an engine's ranks.
void AddHostFlags(CLI::App& command, HostsOptions* hosts);

// --step-timeout, which `fathom verify` has too.
void AddStepTimeout(CLI::App& command, double* seconds, const char* group);

// --chat-template, where there is chat.
void AddTemplateFlag(CLI::App& command, EngineSettings* settings, const char* group);

// 32k is 32000 and 32K is 32768, as in vLLM.
CLI::Validator Thousands();

// Refuses a number outside, in words: CLI::Range says doubles with six decimals.
CLI::Validator Between(double low, double high);

// --log-level, which is in force as soon as it is parsed; `otherwise` if it is not given.
void AddLogLevel(CLI::App& command, const char* otherwise);

}  // namespace fathom
