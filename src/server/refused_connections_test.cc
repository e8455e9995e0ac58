#include "server/refused_connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <string>
#include <vector>

namespace fathom {
namespace {

using namespace std::chrono_literals;  // NOLINT: of tests only
using Clock = std::chrono::steady_clock;

constexpr char kAnswer[] = "HTTP/1.1 503 Service Unavailable\r\n\r\n";

class RefusedConnectionsTest : public testing::Test {
 protected:
  ~RefusedConnectionsTest() override {
    for (const int peer : peers_) close(peer);
  }
  // The other end of one that is turned away. `first`: what it has sent by then.
  int TurnAway(const std::string& first = "") {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    EXPECT_EQ(send(ends[0], first.data(), first.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(first.size()));
    ClientStream::Socket socket(io_, boost::asio::generic::stream_protocol(AF_UNIX, 0), ends[1]);
    refused_.Add(std::move(socket), kAnswer);
    peers_.push_back(ends[0]);
    return ends[0];
  }
  static std::string Received(int peer) {
    std::string text(1000, '\0');
    const ssize_t read = recv(peer, text.data(), text.size(), MSG_DONTWAIT);
    text.resize(read < 0 ? 0 : static_cast<size_t>(read));
    return text;
  }
  static bool Takes(int peer) { return send(peer, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1; }

  boost::asio::io_context io_;
  RefusedConnections refused_{io_.get_executor()};
  std::vector<int> peers_;
};

TEST_F(RefusedConnectionsTest, WhoeverStaysHasASecondAndNoMore) {
  const int silent = TurnAway(), noisy = TurnAway(std::string(50'000, 'x'));
  const auto began = Clock::now();
  io_.run_for(200ms);
  EXPECT_TRUE(Takes(silent) && Takes(noisy));
  while (io_.run_for(10ms) > 0 || Clock::now() - began < 500ms) (void)Takes(noisy);
  io_.run();  // until there is nobody left
  EXPECT_GT(Clock::now() - began, 900ms);
  EXPECT_LT(Clock::now() - began, 10s);
  EXPECT_EQ(Received(silent), kAnswer);
  EXPECT_EQ(Received(noisy), kAnswer);
  EXPECT_FALSE(Takes(silent) || Takes(noisy));
}

TEST_F(RefusedConnectionsTest, WhoeverLeavesIsForgotten) {
  shutdown(TurnAway(), SHUT_WR);
  const auto began = Clock::now();
  io_.run();
  EXPECT_LT(Clock::now() - began, 900ms);
}

TEST_F(RefusedConnectionsTest, TheFirstGiveWay) {
  for (size_t i = 0; i < RefusedConnections::kMost + 3; ++i) TurnAway();
  for (size_t i = 0; i < peers_.size(); ++i) {
    EXPECT_EQ(Takes(peers_[i]), i >= 3) << i;
    EXPECT_EQ(Received(peers_[i]), kAnswer) << i;
  }
  refused_.Close();
  for (const int peer : peers_) EXPECT_FALSE(Takes(peer));
  io_.run();
}

}  // namespace
}  // namespace fathom
