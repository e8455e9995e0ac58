// What requests to `fathom serve` get where they leave something open.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "serve_flags.h"
#include "server/served_engine.h"

namespace fathom {

// By --generation-config, --override-generation-config and --default-chat-template-kwargs.
Status SetDefaults(const ServeOptions& options, const GenerationConfig& config,
                   ServedEngine* served);

// Whether these flags can be taken: sooner than the model is loaded.
Status CheckDefaults(const ServeOptions& options);

}  // namespace fathom
