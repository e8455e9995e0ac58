// What the hosts of an engine compare before they begin.
#pragma once

#include <string_view>

#include "checkpoint/checkpoint.h"
#include "hosts/handshake.h"
#include "load_engine.h"

namespace fathom {

// The build, the model (by its configuration, its tensors' places and the numbers of the small
// ones, which differ between models of one shape), the op table, and the flags that all hosts must
// have alike.
Result<HostFacts> FactsOf(const EngineSettings& settings, std::string_view ops,
                          const Checkpoint& checkpoint);

}  // namespace fathom
