// Whether the model is to think, in the words of all who ask.
#pragma once

#include "server/json_fields.h"

namespace fathom {

// Reads enable_thinking, DeepSeek's thinking, reasoning and reasoning_effort into the template's
// variables, in this order: the first that says something counts, and what `*variables` has counts
// before all. `defaults` has what is left open; may be null.
void ReadThinking(RequestFields& fields, const boost::json::object* defaults,
                  boost::json::object* variables);

}  // namespace fathom
