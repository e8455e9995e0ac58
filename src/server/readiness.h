// Whether the server takes requests, and what it answers while it does not.
#pragma once

#include <optional>
#include <string_view>

#include "server/http.h"

namespace fathom {

enum class ServerState {
  kLoading,
  kFollowing,  // computes for a server on another host
  kReady,
  kLeaving,   // says that it is not ready, so that nobody sends it more; yet serves who comes
  kDraining,  // requests in flight may end; no others begin
};

// What is answered instead of what `path` asks for; nullopt if that is answered.
std::optional<HttpResponse> AnswerOfState(ServerState state, std::string_view path);
HttpResponse ShuttingDown();

}  // namespace fathom
