// What the process is told by signals.
#include <csignal>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "base/test_folder.h"
#include "server/http_server_fixture.h"

namespace fathom {
namespace {

class HttpSignalsTest : public HttpServerTest {
 protected:
  void ServeWithSignals(ServerOptions options = {}) {
    options.handle_signals = true;
    Serve(std::move(options));
  }
  // As Serve(), but none of its threads runs.
  void ListenAlone() {
    engine_ = std::make_unique<FakeEngine>(outputs_, ScriptFor, 1ms);
    ServerOptions options;
    options.handle_signals = true;
    server_ =
        HttpServer::Listen(std::move(options), BoundSocket::Port("127.0.0.1", 0).value()).value();
  }
  bool EndsOnceItRuns() {
    running_ = std::async(std::launch::async, [this] { server_->Run(); });
    return running_.wait_for(5s) == std::future_status::ready;
  }
  int Health() { return Client(port_).Ask("GET", "/health").status; }
};

// As where an engine fails once it has started, and before the server has heard that it is there.
TEST_F(HttpSignalsTest, EndsIfItWasStoppedAheadOfItsEngine) {
  ListenAlone();
  server_->Stop();
  MakeReady();
  EXPECT_TRUE(EndsOnceItRuns());
}

// Whoever reads that a server is ready may signal before any of its threads has run since.
TEST_F(HttpSignalsTest, HeedsASignalFromTheMomentItIsReady) {
  ListenAlone();
  MakeReady();
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_TRUE(EndsOnceItRuns());
}

TEST_F(HttpSignalsTest, SighupReadsKeysAgainAndEndsNothing) {
  const TestFolder folder;
  const std::string keys = folder.path() + "/keys";
  std::ofstream(keys) << "anna sk-anna\n";
  ServeWithSignals({.api_key_file = keys});
  for (const std::string key : {"sk-ben", "sk-carl"}) {
    std::ofstream(keys) << "anna " + key + "\n";
    ASSERT_EQ(std::raise(SIGHUP), 0);
    EXPECT_TRUE(Eventually([&] {
      const std::string header = "Authorization: Bearer " + key + "\r\n";
      return Client(port_).Ask("GET", "/v1/models", "", header).status == 200;
    }));
  }
  EXPECT_EQ(Health(), 200);
}

TEST_F(HttpSignalsTest, SigtermLeavesBeforeItDrains) {
  ServeWithSignals({.drain_delay_ms = 3'600'000});
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_TRUE(Eventually([&] { return Health() == 503; }));
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 200);
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_EQ(running_.wait_for(5s), std::future_status::ready);
}

TEST_F(HttpSignalsTest, TheSecondSignalEndsWhatIsInFlight) {
  ServeWithSignals({.shutdown_timeout_ms = 3'600'000});
  Client stream(port_);
  stream.Request("POST", kChat, Stream("forever"));
  stream.ReadUntil("\"reasoning\":\"");
  ASSERT_EQ(std::raise(SIGINT), 0);
  EXPECT_TRUE(Eventually([&] { return Health() == 503; }));
  EXPECT_EQ(engine_->live(), 1);
  ASSERT_EQ(std::raise(SIGINT), 0);
  EXPECT_NE(stream.ReadUntil("shutting down").find("\"error\""), std::string::npos);
  EXPECT_EQ(running_.wait_for(5s), std::future_status::ready);
}

}  // namespace
}  // namespace fathom
