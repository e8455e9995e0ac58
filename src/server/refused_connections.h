// Connections that a full server turned away: how they end.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <string_view>

#include "server/api_error.h"
#include "server/client_stream.h"

namespace fathom {

// For metrics: of which there are too many, of its "client" or of the "server".
inline const char* NameOfRefusal(const ApiError& refusal) {
  return refusal.status == 429 ? "client" : "server";
}

// Throws away what has arrived, but no more than that, and not without end. False if the client
// ended its side, or is gone.
bool DiscardArrived(ClientStream::Socket& socket);

// Whoever is turned away has its answer written at once, and a while to take it: closing on bytes
// that nobody read would make the client's kernel throw the answer away. Nobody is waited for: what
// clients send is discarded now and then, and whoever was turned away first gives way to others.
// THREAD: one at a time.
class RefusedConnections {
 public:
  static constexpr size_t kMost = 128;  // at a time

  explicit RefusedConnections(boost::asio::any_io_executor executor) : timer_(executor) {}

  void Add(ClientStream::Socket socket, std::string_view answer);
  // Ends them all now.
  void Close();

 private:
  struct Refused {
    ClientStream::Socket socket;
    std::chrono::steady_clock::time_point until;
  };
  void SweepLater();
  void Sweep();

  boost::asio::steady_timer timer_;
  std::deque<Refused> refused_;  // in the order of their ends
};

}  // namespace fathom
