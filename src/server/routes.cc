#include "server/routes.h"

#include <string>

#include "base/printable.h"

namespace fathom {
namespace {

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Endpoint::kChat},
    {"POST", "/v1/completions", Endpoint::kCompletions},
    {"GET", kModelsPath, Endpoint::kModels},
    {"POST", "/tokenize", Endpoint::kTokenize},
    {"POST", "/detokenize", Endpoint::kDetokenize},
    {"POST", "/reset_prefix_cache", Endpoint::kResetPrefixCache},
    {"GET", "/health", Endpoint::kHealth, true},
    {"GET", "/ping", Endpoint::kHealth, true},
    {"GET", "/live", Endpoint::kLive, true},
    {"GET", "/load", Endpoint::kLoad, true},
    {"GET", "/version", Endpoint::kVersion, true},
    {"GET", "/metrics", Endpoint::kMetrics, true},
    {"GET", "/openapi.json", Endpoint::kOpenApi, true},
};

}  // namespace

const Route* FindRoute(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (path == route.path) return &route;
    if (route.path == kModelsPath && path.starts_with("/v1/models/")) return &route;
  }
  return nullptr;
}

std::string_view RouteName(std::string_view path) {
  const Route* route = FindRoute(path);
  return route == nullptr ? "other" : route->path;
}

bool IsAboutServer(std::string_view path) {
  const Route* route = FindRoute(path);
  return route != nullptr && route->about_server;
}

Status CheckRoute(std::string_view path) {
  std::string all;
  for (const Route& route : kRoutes) {
    if (path == route.path) return {};
    all += all.empty() ? "" : ", ";
    all += route.path;
  }
  return InvalidArgument("{} is no route: there are {}", Printable(path, 64), all);
}

}  // namespace fathom
