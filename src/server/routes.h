// What the server can be asked.
#pragma once

#include <string_view>

#include "base/status.h"

namespace fathom {

enum class Endpoint {
  kChat,
  kCompletions,
  kModels,
  kTokenize,
  kDetokenize,
  kResetPrefixCache,
  kHealth,
  kLive,
  kLoad,
  kVersion,
  kMetrics,
  kOpenApi,
};

struct Route {
  std::string_view method, path;
  Endpoint endpoint;
  // Says how the server is: needs no key unless told so, and is answered at any load.
  bool about_server = false;
};

// Null if there is none. /v1/models/NAME is /v1/models.
const Route* FindRoute(std::string_view path);
// The route's own path, for metrics: never the client's text.
std::string_view RouteName(std::string_view path);
bool IsAboutServer(std::string_view path);
// kInvalidArgument, with all routes, if `path` is none of them.
Status CheckRoute(std::string_view path);

inline constexpr std::string_view kModelsPath = "/v1/models";

}  // namespace fathom
