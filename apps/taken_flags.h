// Flags of vllm serve that ask for what runs here anyway: these are taken, and not shown in --help.
// Other values get a hint (vllm_hints.cc).
#pragma once

namespace CLI {
class App;
}

namespace fathom {

// After the flags that `command` has itself.
void TakeWhatRunsAnyway(CLI::App& command);

}  // namespace fathom
