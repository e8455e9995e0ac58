// Fields that the server knows and does not serve.
#pragma once

#include <span>

#include "server/json_fields.h"

namespace fathom {

struct UnsupportedField {
  const char* key;
  // What may stand there all the same: a list in JSON. Null always may; where the list is empty, so
  // may what is empty itself.
  const char* harmless;
  const char* instead = "";  // what to say instead
};

// Refuses each by name unless it says what happens anyway.
void RefuseFields(RequestFields& fields, std::span<const UnsupportedField> unsupported);

// So every field of a request for text that would change its answer if it were served.
void RefuseUnsupported(RequestFields& fields);

}  // namespace fathom
