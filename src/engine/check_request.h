// What no engine can run, whatever it has free.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/messages.h"

namespace fathom {

// kInvalidArgument, saying what is possible. `vocab_size`: EngineOptions.
Status CheckRequest(const GenerateRequest& request, int32_t vocab_size);

}  // namespace fathom
