// Limits of `fathom serve` that bound each other.
#pragma once

namespace CLI {
class App;
}

namespace fathom {

struct ServeOptions;

// A limit that `command` was not told follows those that it was told. One that it was told, and
// that another keeps from ever being reached, is refused: CLI::ValidationError, which names both
// and what would do. REQUIRES: defaults of the engine are filled in.
void SettleLimits(const CLI::App& command, ServeOptions* options);

}  // namespace fathom
