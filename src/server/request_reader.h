// Reads a request from a client's socket, within its times and bounds.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <optional>

#include "server/client_socket.h"
#include "server/exchange.h"
#include "server/http.h"
#include "server/options.h"

namespace fathom {

struct ReadEnd {
  bool gone = false;                    // the client: there is nobody to answer
  std::optional<HttpResponse> refusal;  // of what could not be read
};

// THREAD: the socket's strand, both.
boost::asio::awaitable<ReadEnd> ReadHead(ClientSocket& client, const ServerOptions& options,
                                         Exchange& exchange);
// REQUIRES: the head was read. Moves the body into the request.
boost::asio::awaitable<ReadEnd> ReadBody(ClientSocket& client, const ServerOptions& options,
                                         Exchange& exchange);

}  // namespace fathom
