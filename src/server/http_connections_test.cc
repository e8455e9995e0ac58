// Many connections, and the end of the server.
#include <arpa/inet.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "server/client_socket.h"
#include "server/http_server_fixture.h"
#include "server/refused_connections.h"

namespace fathom {
namespace {

TEST_F(HttpServerTest, IdleConnectionsGiveWay) {
  Serve({.max_connections = 4});
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 40; ++i) {
    idle.push_back(std::make_unique<Client>(port_));
    EXPECT_EQ(idle.back()->Ask("GET", "/v1/models").status, 200) << i;
  }
  EXPECT_TRUE(idle.front()->Ended());  // the one that was idle the longest
  EXPECT_EQ(idle.back()->Ask("GET", "/v1/models").status, 200);
}

// It was told to give way between the arrival of its request and the look at it.
TEST_F(HttpServerTest, ARequestThatMeetsItsConnectionsEndIsTheLast) {
  std::promise<void> entered, leave;
  scripter_ = [&](const GenerateRequest& request) {
    entered.set_value();
    leave.get_future().wait();
    return ScriptFor(request);
  };
  Serve({.max_connections = 2, .io_threads = 1});
  Client idle(port_), busy(port_);
  EXPECT_EQ(idle.Ask("GET", "/v1/models").headers["Connection"], "keep-alive");
  busy.Request("POST", kChat, Chat("nothing"));
  entered.get_future().wait();  // the only I/O thread submits it, and sees nothing else for now
  Client newcomer(port_);
  newcomer.Request("GET", "/v1/models");
  idle.Request("GET", "/v1/models");
  leave.set_value();
  Response last = idle.Read();
  EXPECT_EQ(last.status, 200);
  EXPECT_EQ(last.headers["Connection"], "close");
  EXPECT_TRUE(idle.Ended());
  EXPECT_EQ(newcomer.Read().status, 200);  // in its place
}

TEST_F(HttpServerTest, AFullServerSaysHowItIs) {
  Serve({.max_connections = 2, .reserved_connections = 2});
  std::vector<std::unique_ptr<Client>> busy;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(std::make_unique<Client>(port_));
    busy.back()->Request("POST", kChat, Chat("nothing"));
  }
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 2; }));
  for (const char* path : {"/health", "/ping", "/metrics"}) {
    EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", path).status == 200; })) << path;
  }
  ASSERT_TRUE(Eventually([&] { return Client(port_).Ask("GET", "/v1/models").status == 503; }));
  Client silent(port_), second(port_);  // they give way
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", "/health").status == 200; }));
  std::vector<std::unique_ptr<Client>> slow;
  Response refused;
  EXPECT_TRUE(Eventually([&] {
    slow.push_back(std::make_unique<Client>(port_));  // once its line is read it is not idle
    slow.back()->Send("GET /health HTTP/1.1\r\n");
    Client third(port_);
    third.Request("GET", "/health");
    refused = third.Read();
    return refused.status == 503;
  }));
  EXPECT_EQ(refused.parsed().at("error").at("code"), json::value("unavailable"));
  EXPECT_TRUE(refused.headers.contains("Retry-After"));
  // Slow or not, whoever has had a second gives way, long before the time for a head is over.
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", "/health").status == 200; }));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  slow.clear();
  busy.clear();
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", "/v1/models").status == 200; }));
}

// However many come at once, and whether they have sent their requests by then or not.
TEST_F(HttpServerTest, WhoeverIsTurnedAwayIsTold) {
  Serve({.max_connections = 1, .reserved_connections = 4});
  Client busy(port_);
  busy.Request("POST", kChat, Chat("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  constexpr size_t kNewcomers = 2 * RefusedConnections::kMost;
  const std::string body = Chat(std::string(100'000, ' '));
  std::vector<std::unique_ptr<Client>> newcomers;
  for (size_t i = 0; i < kNewcomers; ++i) {
    newcomers.push_back(std::make_unique<Client>(port_));
    if (i % 2 == 0) newcomers.back()->Request("POST", kChat, body);
  }
  for (size_t i = 0; i < kNewcomers; ++i) {
    if (i % 2 != 0) newcomers[i]->Request("POST", kChat, body);
    Response refused = newcomers[i]->Read();
    EXPECT_EQ(refused.status, 503) << i;
    EXPECT_EQ(refused.headers["Retry-After"], "1") << i;
    EXPECT_EQ(refused.headers["Connection"], "close") << i;
    EXPECT_TRUE(newcomers[i]->Ended()) << i;
  }
  const std::string refused = R"(fathom:connections_refused_total{reason="server"} )";
  EXPECT_TRUE(Eventually([&] {  // who asks may be turned away too, and counts
    const std::string metrics = Client(port_).Ask("GET", "/metrics").body;
    const size_t at = metrics.find(refused);
    return at != metrics.npos && std::stod(metrics.substr(at + refused.size())) >= kNewcomers;
  }));
}

TEST_F(HttpServerTest, AnAddressHasItsShareOfTheReserve) {
  Serve({.max_connections = 1, .reserved_connections = 16});
  Client busy(port_);
  busy.Request("POST", kChat, Chat("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 40; ++i) {  // of three addresses
    slow.push_back(std::make_unique<Client>(port_, 0, static_cast<uint8_t>(2 + i % 3)));
    slow.back()->Send("G");
    EXPECT_EQ(Client(port_).Ask("GET", "/health").status, 200) << i;
  }
  std::vector<std::unique_ptr<Client>> other;
  EXPECT_TRUE(Eventually([&] {  // a fourth address, once its share is taken
    other.push_back(std::make_unique<Client>(port_, 0, uint8_t{5}));
    other.back()->Send("G");
    return Client(port_, 0, 5).Ask("GET", "/health").status == 503;
  }));
  // Those who hold all of it give way to others who have less.
  for (uint8_t address = 6; address < 10; ++address) {
    other.push_back(std::make_unique<Client>(port_, 0, address));
    other.back()->Send("GET /health HTTP/1.1\r\n");
    EXPECT_EQ(Client(port_, 0, address).Ask("GET", "/health").status, 200) << int{address};
  }
}

TEST_F(HttpServerTest, AnAddressAloneHasNoMoreThanItsShareOfTheReserve) {
  constexpr size_t kReserved = 16;
  Serve({.max_connections = 1, .reserved_connections = kReserved});
  Client busy(port_);
  busy.Request("POST", kChat, Chat("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  std::vector<std::unique_ptr<Client>> slow;
  EXPECT_TRUE(Eventually([&] {
    slow.push_back(std::make_unique<Client>(port_, 0, uint8_t{2}));
    slow.back()->Send("GET /health HTTP/1.1\r\n");
    return Client(port_, 0, 2).Ask("GET", "/health").status == 503;
  }));
  EXPECT_LT(slow.size(), kReserved);  // before all of it is taken
}

// Whoever has an IPv6 network has 2^64 addresses of it.
TEST(ClientAt, CountsANetworkAsOne) {
  const auto client_at = [](const char* text) {
    in6_addr address{};
    EXPECT_EQ(inet_pton(AF_INET6, text, &address), 1);
    return ClientAt(address);
  };
  EXPECT_EQ(client_at("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(client_at("2001:db8:1:2:ffff::1"), "2001:db8:1:2::/64");
  EXPECT_EQ(client_at("2001:db8:1:3::1"), "2001:db8:1:3::/64");
  EXPECT_EQ(client_at("::1"), "::/64");
  EXPECT_EQ(client_at("::ffff:192.0.2.7"), "192.0.2.7");
}

TEST_F(HttpServerTest, AClientHasItsShareOfConnections) {
  Serve({.max_connections = 100, .max_connections_per_client = 2});
  Client first(port_), second(port_);
  first.Request("POST", kChat, Chat("nothing"));
  second.Request("POST", kChat, Chat("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 2; }));
  const Response refused = Client(port_).Ask("GET", "/v1/models");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.parsed().at("error").at("code"), json::value("too_many_connections"));
  EXPECT_TRUE(refused.headers.contains("Retry-After"));
  for (const char* path : {"/health", "/ping", "/metrics"}) {  // from the reserve
    EXPECT_EQ(Client(port_).Ask("GET", path).status, 200) << path;
  }
  EXPECT_EQ(Client(port_, 0, 2).Ask("GET", "/v1/models").status, 200);
  first.Close();
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", "/v1/models").status == 200; }));
}

TEST_F(HttpServerTest, DrainsWhatIsInFlight) {
  Serve({}, 20ms);
  Client idle(port_), busy(port_);
  EXPECT_EQ(idle.Ask("GET", "/health").status, 200);
  busy.Request("POST", kChat, Stream("hi"));
  busy.ReadUntil("assistant");
  server_->Stop();
  EXPECT_TRUE(idle.Ended());
  EXPECT_NE(busy.ReadUntil("[DONE]").find("[DONE]"), std::string::npos);
  busy.ReadUntil("0\r\n\r\n");
  EXPECT_TRUE(busy.Ended());
  EXPECT_EQ(running_.wait_for(5s), std::future_status::ready);
  EXPECT_FALSE(Client(port_).connected());
}

TEST_F(HttpServerTest, SaysThatTheModelIsLoading) {
  engine_ = std::make_unique<FakeEngine>(outputs_, ScriptFor, 1ms);
  Listen({});
  const auto status = [&](const char* path) { return Client(port_).Ask("GET", path).status; };
  EXPECT_EQ(status("/live"), 200);
  for (const char* path : {"/health", "/ping", "/metrics", "/v1/models", "/nowhere"}) {
    const Response loading = Client(port_).Ask("GET", path);
    EXPECT_EQ(loading.status, 503) << path;
    EXPECT_NE(loading.body.find("The model is loading"), std::string::npos);
    EXPECT_TRUE(loading.headers.contains("Retry-After"));
  }
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 503);
  MakeReady();
  EXPECT_EQ(status("/health"), 200);
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 200);
  EXPECT_EQ(Client(port_).Ask("GET", "/load").parsed().at("server_load"), json::value(0));
  const std::string metrics = Client(port_).Ask("GET", "/metrics").body;
  const std::string refused =
      R"(fathom:http_answers_total{handler="/v1/chat/completions",status="503"} 1)";
  EXPECT_NE(metrics.find(refused), metrics.npos) << metrics;
}

TEST_F(HttpServerTest, RequestsWhileTheModelIsLoadingAreLogged) {
  engine_ = std::make_unique<FakeEngine>(outputs_, ScriptFor, 1ms);
  ASSERT_TRUE(SetLogLevel("info"));
  testing::internal::CaptureStderr();
  Listen({});
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 503);
  EXPECT_EQ(Client(port_).Ask("GET", "/health").status, 503);
  MakeReady();
  Stop();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("POST /v1/chat/completions 503"), log.npos) << log;
  EXPECT_EQ(log.find("/health"), log.npos) << log;
}

TEST_F(HttpServerTest, ARequestWhoseFirstLineDoesNotArriveIsLogged) {
  ASSERT_TRUE(SetLogLevel("info"));
  testing::internal::CaptureStderr();
  Serve({.header_timeout_ms = 50});
  Client slow(port_);
  slow.Send("GET /v1/mod");
  EXPECT_TRUE(slow.ReadUntil("\r\n").starts_with("HTTP/1.1 408"));
  Stop();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(" - - 408 "), log.npos) << log;
}

TEST_F(HttpServerTest, ASilentStreamShowsThatItLives) {
  Serve({.sse_keep_alive_ms = 20});
  Client client(port_);
  client.Request("POST", kChat, Stream("nothing"));
  const std::string comment = "3\r\n:\n\n\r\n";
  EXPECT_TRUE(client.ReadUntil(comment).starts_with("HTTP/1.1 200"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ReadUntil(comment), comment);
}

TEST_F(HttpServerTest, CanStopWhileTheModelIsLoading) {
  engine_ = std::make_unique<FakeEngine>(outputs_, ScriptFor, 1ms);
  Listen({});
  EXPECT_EQ(Client(port_).Ask("GET", "/live").status, 200);
  Client asking(port_);
  asking.Send("GET /metrics HTTP/1.1\r\n");
  std::this_thread::sleep_for(200ms);  // until its line is read
  server_->Stop();
  std::this_thread::sleep_for(50ms);
  asking.Send("Host: localhost\r\n\r\n");
  EXPECT_EQ(asking.Read().status, 503);
  EXPECT_EQ(running_.wait_for(5s), std::future_status::ready);
}

// Whoever looks finds a server that says so, until the last request has ended.
TEST_F(HttpServerTest, IsNotReadyWhileItDrains) {
  Serve();
  Client busy(port_), slow(port_);
  busy.Request("POST", kChat, Stream("forever"));
  busy.ReadUntil("\"reasoning\":\"");
  server_->Stop();
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", "/health").status == 503; }));
  EXPECT_EQ(Client(port_).Ask("GET", "/live").status, 200);
  EXPECT_EQ(Client(port_).Ask("GET", "/metrics").status, 200);
  EXPECT_EQ(Client(port_).Ask("GET", "/load").parsed().at("server_load"), json::value(1));
  const Response refused = Client(port_).Ask("POST", kChat, Chat("hi"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("shutting down"), std::string::npos);
  Client guest(port_);
  guest.Send("GET /health HTTP/1.1\r\n");  // and no more: nobody waits for it
  busy.Close();
  EXPECT_EQ(running_.wait_for(5s), std::future_status::ready);
  EXPECT_FALSE(Client(port_).connected());
}

TEST_F(HttpServerTest, EndsStreamsWithAnErrorWhenDrainingTakesTooLong) {
  Serve({.shutdown_timeout_ms = 100});
  Client stream(port_), whole(port_);
  stream.Request("POST", kChat, Stream("forever"));
  whole.Request("POST", kChat, Chat("nothing"));
  stream.ReadUntil("\"reasoning\":\"");
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 2; }));
  server_->Stop();
  EXPECT_NE(stream.ReadUntil("shutting down").find("\"error\""), std::string::npos);
  EXPECT_TRUE(stream.ReadUntil("\n\n").ends_with("\n\n"));
  EXPECT_NE(stream.ReadUntil("\n\n").find("data: [DONE]"), std::string::npos);
  const Response ended = whole.Read();
  EXPECT_EQ(ended.status, 503);
  EXPECT_EQ(ended.headers.at("Retry-After"), "1");
  EXPECT_EQ(running_.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(engine_->live(), 0);
}

TEST_F(HttpServerTest, ARequestWhoseClientLeavesWithinTheBodyIsLogged) {
  Serve();
  Client(port_).Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
      "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_TRUE(Eventually([&] {
    const std::string metrics = Client(port_).Ask("GET", "/metrics").body;
    return metrics.find(R"({handler="/v1/completions",status="499"} 1)") != std::string::npos;
  }));
}

TEST_F(HttpServerTest, ManyClientsComeAndGo) {
  Serve({.io_threads = 4}, 200us, /*capacity=*/1000);
  std::vector<std::jthread> threads;
  std::atomic<int> answered{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t);
      for (int i = 0; i < 20; ++i) {
        Client client(port_);
        const bool leave = rng.Below(3) == 0;
        client.Request("POST", kChat, leave ? Stream("forever") : Stream("hi"));
        if (leave) {
          std::this_thread::sleep_for(std::chrono::milliseconds(rng.Below(10)));
          continue;
        }
        if (client.Read().body.ends_with("data: [DONE]\n\n")) ++answered;
        if (client.Ask("GET", "/metrics").status == 200) ++answered;
      }
    });
  }
  threads.clear();
  EXPECT_GT(answered, 100);
  EXPECT_TRUE(Eventually([&] { return engine_->live() == 0; }));
}

}  // namespace
}  // namespace fathom
