#include "server/refused_connections.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace fathom {

using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kToTakeIt{1'000}, kBetweenSweeps{50};
constexpr int kReads = 4;  // of a sweep, of each connection

}  // namespace

bool DiscardArrived(ClientStream::Socket& socket) {
  std::array<char, size_t{64} << 10> discarded;
  for (int i = 0; i < kReads; ++i) {
    const ssize_t read =
        recv(socket.native_handle(), discarded.data(), discarded.size(), MSG_DONTWAIT);
    if (read < 0) return errno == EAGAIN || errno == EINTR;
    if (read == 0) return false;
  }
  return true;
}

void RefusedConnections::Add(ClientStream::Socket socket, std::string_view answer) {
  // A new connection's buffer has the room; if it has not, the client hears nothing.
  (void)send(socket.native_handle(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  error_code ignored;
  socket.shutdown(ClientStream::Socket::shutdown_send, ignored);
  if (!DiscardArrived(socket)) return;
  if (refused_.size() >= kMost) {
    (void)DiscardArrived(refused_.front().socket);
    refused_.pop_front();
  }
  refused_.push_back({std::move(socket), Clock::now() + kToTakeIt});
  if (refused_.size() == 1) SweepLater();
}

void RefusedConnections::Close() {
  timer_.cancel();
  refused_.clear();
}

void RefusedConnections::SweepLater() {
  timer_.expires_after(kBetweenSweeps);
  timer_.async_wait([this](error_code error) {
    if (!error) Sweep();
  });
}

void RefusedConnections::Sweep() {
  const Clock::time_point now = Clock::now();
  std::erase_if(refused_,
                [&](Refused& one) { return !DiscardArrived(one.socket) || one.until <= now; });
  if (!refused_.empty()) SweepLater();
}

}  // namespace fathom
