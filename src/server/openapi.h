// The API, described as OpenAPI 3.1 (openapi.json).
#pragma once

namespace fathom {

extern const char kOpenApi[];

}  // namespace fathom
