// What requests may not ask for, or only in the way that it is done anyway.
#pragma once

#include "server/json_fields.h"

namespace fathom {

// Refuses by name every field of a request for text that would change its answer if it were served.
void RefuseUnsupported(RequestFields& fields);

}  // namespace fathom
