#include "server/readiness.h"

#include "server/routes.h"

namespace fathom {

HttpResponse ShuttingDown() {
  return ErrorResponse(EngineError(Unavailable("The server is shutting down.")));
}

std::optional<HttpResponse> AnswerOfState(ServerState state, std::string_view path) {
  const Route* route = FindRoute(path);
  const bool about_server = route != nullptr && route->about_server;
  const bool asks_health = about_server && route->endpoint == Endpoint::kHealth;
  switch (state) {
    case ServerState::kReady: return std::nullopt;
    case ServerState::kFollowing:
      if (asks_health || (about_server && route->endpoint == Endpoint::kLive)) {
        return HttpResponse{.content_type = "text/plain"};
      }
      return ErrorResponse(EngineError(Unavailable(
          "This host computes for the first one of its engine, which answers: ask that one.")));
    case ServerState::kLoading:
      if (about_server && route->endpoint == Endpoint::kLive) {
        return HttpResponse{.content_type = "text/plain"};
      }
      return ErrorResponse(EngineError(Unavailable("The model is loading: try again later.")));
    case ServerState::kLeaving:
      if (asks_health) return ShuttingDown();
      return std::nullopt;
    case ServerState::kDraining:
      if (asks_health || !about_server) return ShuttingDown();
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace fathom
