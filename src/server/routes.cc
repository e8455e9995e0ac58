#include "server/routes.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/printable.h"

namespace fathom {
namespace {

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Endpoint::kChat},
    {"POST", "/v1/completions", Endpoint::kCompletions},
    {"POST", "/v1/messages", Endpoint::kMessages},
    {"POST", "/v1/messages/count_tokens", Endpoint::kCountTokens},
    {"POST", "/v1/responses", Endpoint::kResponses},
    {"GET", "/v1/responses/{id}", Endpoint::kStoredResponse, false, "DELETE"},
    {"POST", "/v1/responses/{id}/cancel", Endpoint::kCancelResponse},
    {"GET", kModelsPath, Endpoint::kModels},
    {"POST", "/tokenize", Endpoint::kTokenize},
    {"POST", "/detokenize", Endpoint::kDetokenize},
    {"POST", "/reset_prefix_cache", Endpoint::kResetPrefixCache},
    {"GET", "/health", Endpoint::kHealth, true},
    {"GET", "/ping", Endpoint::kHealth, true, "POST"},
    {"GET", "/live", Endpoint::kLive, true},
    {"GET", "/load", Endpoint::kLoad, true},
    {"GET", "/version", Endpoint::kVersion, true},
    {"GET", "/server_info", Endpoint::kServerInfo},
    {"GET", "/metrics", Endpoint::kMetrics, true},
    {"GET", "/openapi.json", Endpoint::kOpenApi, true},
    {"GET", "/", Endpoint::kWebPage, true},
};

// Whether `path` is that of a route, whose "{id}" may be any word.
bool Matches(std::string_view route, std::string_view path) {
  constexpr std::string_view kId = "{id}";
  const size_t at = route.find(kId);
  if (at == route.npos) return path == route;
  const std::string_view end = route.substr(at + kId.size());
  if (path.size() <= at + end.size() || !path.starts_with(route.substr(0, at)) ||
      !path.ends_with(end)) {
    return false;
  }
  return path.substr(at, path.size() - at - end.size()).find('/') == path.npos;
}

}  // namespace

const Route* FindRoute(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (Matches(route.path, path)) return &route;
    if (route.path == kModelsPath && path.starts_with("/v1/models/")) return &route;
  }
  return nullptr;
}

std::string CanonicalPath(std::string_view path) {
  constexpr std::string_view kVersion = "/v1";
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (FindRoute(path) != nullptr) return std::string(path);
  const bool versioned = path.starts_with("/v1/");
  std::string other =
      versioned ? std::string(path.substr(kVersion.size())) : fmt::format("{}{}", kVersion, path);
  return std::string(FindRoute(other) != nullptr ? std::string_view(other) : path);
}

std::string NoSuchPath(std::string_view path) {
  static constexpr std::pair<std::string_view, std::string_view> kExpected[] = {
      {"embeddings", "no embeddings: fathom serves models that write text"},
      {"rerank", "no reranking: fathom serves models that write text"},
      {"score", "no scoring of pairs: fathom serves models that write text"},
      {"pooling", "no pooling: fathom serves models that write text"},
      {"classify", "no classification: fathom serves models that write text"},
      {"audio", "no audio: these models read and write text"},
      {"images", "no images: these models read and write text"},
      {"moderations", "no moderation"},
      {"files", "no store of files"},
      {"batches", "no batch API: send the requests, they share the machine"},
      {"fine_tuning", "no fine-tuning"},
      {"assistants", "no assistants API: /v1/chat/completions has tools"},
      {"threads", "no assistants API: /v1/chat/completions has tools"},
      {"lora", "no adapters"},
      {"generate", "no /generate: /v1/completions continues a prompt, of text or of token ids"},
      {"abort_request", "no /abort_request: a request ends when its connection is closed"},
      {"completion", "no /completion: it is /v1/completions"},
      {"sleep", "no sleep mode"},
      {"wake_up", "no sleep mode"},
      {"docs", "no page of documentation: /openapi.json describes every endpoint"},
  };
  const auto has = [path](std::string_view word) {
    const size_t at = path.find(word);
    return at != path.npos && at > 0 && path[at - 1] == '/' &&
           (at + word.size() == path.size() || path[at + word.size()] == '/');
  };
  for (const auto& [word, reason] : kExpected) {
    if (has(word)) return fmt::format("There is {}.", reason);
  }
  return fmt::format(
      "There is no {}. See /v1/chat/completions, /v1/completions, /v1/models, and /openapi.json "
      "for the others.",
      Printable(path, 64));
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
  if (path.find(',') != path.npos) {
    return InvalidArgument("{}: several are written with spaces between", Printable(path, 64));
  }
  return InvalidArgument("{} is no route: there are {}", Printable(path, 64), all);
}

}  // namespace fathom
