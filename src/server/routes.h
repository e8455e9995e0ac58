// What the server can be asked.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

enum class Endpoint {
  kChat,
  kCompletions,
  kMessages,
  kCountTokens,
  kResponses,
  kStoredResponse,
  kCancelResponse,
  kModels,
  kTokenize,
  kDetokenize,
  kResetPrefixCache,
  kHealth,
  kLive,
  kLoad,
  kVersion,
  kServerInfo,
  kMetrics,
  kOpenApi,
  kWebPage,
};

struct Route {
  std::string_view method, path;  // "{id}" stands for any word
  Endpoint endpoint;
  // Says how the server is: needs no key unless told so, and is answered at any load.
  bool about_server = false;
  std::string_view also = {};  // another method that means the same
};

// `path` as the route has it that is meant: a slash at its end is dropped, and /v1 in front is
// added or taken off where only that makes it one.
std::string CanonicalPath(std::string_view path);

// Why there is nothing at `path`, for those who expect another server.
std::string NoSuchPath(std::string_view path);

// Null if there is none. /v1/models/NAME is /v1/models.
const Route* FindRoute(std::string_view path);
// The route's own path, for metrics: never the client's text.
std::string_view RouteName(std::string_view path);
bool IsAboutServer(std::string_view path);
// kInvalidArgument, with all routes, if `path` is none of them.
Status CheckRoute(std::string_view path);

inline constexpr std::string_view kModelsPath = "/v1/models";

}  // namespace fathom
