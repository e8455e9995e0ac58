// Whom the server lets in, and how much of it each may have.
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/test_folder.h"
#include "server/access.h"
#include "server/http_server_fixture.h"
#include "server/json_body.h"

namespace fathom {
namespace {

class HttpAccessTest : public HttpServerTest {
 protected:
  void WriteKeys(const std::string& text) { std::ofstream(keys_) << text; }
  static std::string Key(const std::string& key) {
    return "Authorization: Bearer " + key + "\r\nContent-Type: application/json\r\n";
  }
  int Status(const std::string& key) {
    return Client(port_).Ask("GET", "/v1/models", "", Key(key)).status;
  }

  const TestFolder folder_;
  const std::string keys_ = folder_.path() + "/keys";
};

TEST_F(HttpAccessTest, KeysAreReadAgain) {
  WriteKeys("anna sk-anna\nben sk-ben\n");
  Serve({.api_key = "shared", .api_key_file = keys_});
  EXPECT_EQ(Status("sk-anna"), 200);
  EXPECT_EQ(Status("sk-ben"), 200);
  EXPECT_EQ(Status("shared"), 200);
  EXPECT_EQ(Status("sk-carl"), 401);
  EXPECT_EQ(Status(""), 401);
  Client stream(port_);
  stream.Request("POST", kChat, Stream("forever"), Key("sk-ben"));
  stream.ReadUntil("\"reasoning\":\"");
  WriteKeys("anna sk-anna\ncarl sk-carl\n");
  server_->Reread();
  EXPECT_TRUE(Eventually([&] { return Status("sk-carl") == 200; }));
  EXPECT_EQ(Status("sk-ben"), 401);
  EXPECT_EQ(Status("shared"), 200);
  EXPECT_FALSE(stream.ReadUntil("data: ").empty());  // what has begun goes on
}

TEST_F(HttpAccessTest, AFileThatCannotBeTakenChangesNothing) {
  WriteKeys("anna sk-anna\n");
  const ServerOptions options{.api_key_file = keys_};
  const std::unique_ptr<Access> access = Access::Make(options).value();
  HttpRequest head{.method = "GET", .path = "/v1/models", .authorization = "Bearer sk-anna"};
  WriteKeys("anna\n");
  EXPECT_FALSE(access->RereadKeys().ok());
  EXPECT_FALSE(access->CheckHead(head));
  WriteKeys("anna sk-new\n");
  EXPECT_TRUE(access->RereadKeys().ok());
  EXPECT_EQ(access->CheckHead(head)->status, 401);
}

TEST_F(HttpAccessTest, WhoAskedWhileTheModelIsLoadingIsLogged) {
  WriteKeys("anna sk-anna\n");
  engine_ = std::make_unique<FakeEngine>(outputs_, ScriptFor, 1ms);
  ASSERT_TRUE(SetLogLevel("info"));
  testing::internal::CaptureStderr();
  Listen({.api_key_file = keys_});
  EXPECT_EQ(Status("sk-anna"), 503);
  MakeReady();
  Stop();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(", key anna"), log.npos) << log;
}

TEST_F(HttpAccessTest, AFileWithoutKeysOpensNothing) {
  WriteKeys("# none yet\n");
  const auto refused =
      HttpServer::Listen({.api_key_file = keys_}, BoundSocket::Port("127.0.0.1", 0).value());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--api-key-file"), std::string::npos);
}

// What queue and batch never have room for was taken, unlike the flag that says the same.
TEST_F(HttpAccessTest, AShareThatIsMoreThanThereIsIsRefused) {
  const ServerOptions options{.api_key_file = keys_, .max_requests = 3};
  WriteKeys("anna sk-anna in-flight=4\n");
  const std::string refused = Access::Make(options).status().message();
  EXPECT_NE(refused.find("anna: in-flight=4 is more than --max-queue allows"), std::string::npos)
      << refused;
  WriteKeys("anna sk-anna in-flight=3\n");
  const std::unique_ptr<Access> access = Access::Make(options).value();
  HttpRequest head{.method = "GET", .path = "/v1/models", .authorization = "Bearer sk-anna"};
  WriteKeys("ben sk-ben in-flight=4\n");
  EXPECT_FALSE(access->RereadKeys().ok());
  EXPECT_FALSE(access->CheckHead(head));
  WriteKeys("ben sk-ben in-flight=2\n");
  EXPECT_TRUE(access->RereadKeys().ok());
  EXPECT_EQ(access->CheckHead(head)->status, 401);
}

TEST_F(HttpAccessTest, AKeyHasItsRequestsAMinute) {
  WriteKeys("anna sk-anna requests-per-minute=2 tokens-per-minute=100000\nben sk-ben\n");
  Serve({.api_key_file = keys_});
  const Response first = Client(port_).Ask("POST", kChat, Chat("hi"), Key("sk-anna"));
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.headers.at("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first.headers.at("x-ratelimit-remaining-requests"), "1");
  const int64_t used = first.parsed().at("usage").at("total_tokens").as_int64();
  EXPECT_GT(used, 0);
  const int64_t left = std::stoll(first.headers.at("x-ratelimit-remaining-tokens"));
  EXPECT_GE(left, 100000 - used);
  EXPECT_LT(left, 100000);
  const Response second = Client(port_).Ask("POST", kChat, Stream("hi"), Key("sk-anna"));
  EXPECT_EQ(second.headers.at("x-ratelimit-remaining-requests"), "0");
  const Response third = Client(port_).Ask("POST", kChat, Chat("hi"), Key("sk-anna"));
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(third.parsed().at("error").at("code"), json::value("rate_limit_exceeded"));
  EXPECT_GT(std::stoi(third.headers.at("Retry-After")), 20);
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi"), Key("sk-ben")).status, 200);
  for (const char* line : {"fathom:key_requests_total{key=\"anna\",status=\"200\"} 2",
                           "fathom:key_requests_total{key=\"anna\",status=\"429\"} 1",
                           "fathom:key_requests_total{key=\"ben\",status=\"200\"} 1"}) {
    EXPECT_TRUE(Eventually([&] {
      return Client(port_).Ask("GET", "/metrics").body.find(line) != std::string::npos;
    })) << line;
  }
}

TEST_F(HttpAccessTest, AClientHasItsShareInFlight) {
  WriteKeys("anna sk-anna in-flight=2\nben sk-ben\n");
  Serve({.api_key_file = keys_, .max_requests_per_client = 3});
  Client anna(port_);
  anna.Request("POST", kChat, Chat("nothing", R"(, "n": 2)"), Key("sk-anna"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 2; }));
  const Response more = Client(port_).Ask("POST", kChat, Chat("hi"), Key("sk-anna"));
  EXPECT_EQ(more.status, 429);
  EXPECT_NE(more.body.find("2 answers are in flight for the key anna"), std::string::npos);
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi", R"(, "n": 4)"), Key("sk-ben")).status, 400);
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi", R"(, "n": 3)"), Key("sk-ben")).status, 200);
  const auto seen = engine_->seen();
  EXPECT_EQ(seen[0].client, seen[1].client);
  EXPECT_NE(seen[0].client, seen[2].client);
  anna.Close();
  EXPECT_TRUE(Eventually(
      [&] { return Client(port_).Ask("POST", kChat, Chat("hi"), Key("sk-anna")).status == 200; }));
}

// Forty clients that asked on at once were refused 7,000 times a second, and took a core for it.
TEST_F(HttpAccessTest, WhoAsksOnAlthoughToldToWaitIsHeldBack) {
  Serve({.max_requests_per_client = 1,
         .refusal_gap_ms = 3'600'000,  // until the server stops
         .refusal_delay_ms = 3'600'000});
  Client busy(port_), first(port_), second(port_), other(port_, 0, /*from=*/2);
  busy.Request("POST", kChat, Chat("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  EXPECT_EQ(first.Ask("POST", kChat, Chat("hi")).status, 429);
  second.Request("POST", kChat, Chat("hi"));
  const std::string refused =
      "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\","
      "status=\"4xx\"} ";
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(other.Ask("POST", kChat, Chat("hi")).status, 200);
    EXPECT_NE(other.Ask("GET", "/metrics").body.find(refused + "1"), std::string::npos);
  }
  server_->Stop();
  EXPECT_EQ(second.Read().status, 429);  // and does not keep it
}

// Others of its address were turned away for connections whose answers were held back.
TEST_F(HttpAccessTest, AnAnswerThatIsHeldBackTakesNobodysPlace) {
  Serve({.max_connections_per_client = 3,
         .max_requests_per_client = 1,
         .refusal_gap_ms = 3'600'000,
         .refusal_delay_ms = 3'600'000});
  Client busy(port_), first(port_), second(port_), other(port_, 0, /*from=*/2);
  busy.Request("POST", kChat, Chat("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  EXPECT_EQ(first.Ask("POST", kChat, Chat("hi")).status, 429);
  second.Request("POST", kChat, Chat("hi"));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(other.Ask("POST", kChat, Chat("hi")).status, 200);
  Client third(port_), fourth(port_);
  EXPECT_EQ(third.Ask("GET", "/v1/models").status,
            200);  // in the place of the first, which is idle
  EXPECT_EQ(fourth.Ask("GET", "/v1/models").status, 200);
  const Response told = second.Read();
  EXPECT_EQ(told.status, 429);
  EXPECT_EQ(told.headers.at("Connection"), "close");
}

// Bodies that stay on their way keep nobody else's out; whose key it is counts, not the address.
TEST_F(HttpAccessTest, AClientHasItsShareOfTheMemoryOfRequests) {
  WriteKeys("anna sk-anna\nben sk-ben\n");
  Serve({.api_key_file = keys_,
         .max_body_bytes = size_t{4} << 20,
         .max_request_memory_bytes = size_t{260} << 20});
  const std::string most(4'000'000, ' ');
  const auto begin = [&](Client& client) {
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + Key("sk-anna") +
                "Content-Length: 4194304\r\n\r\n" + most);
  };
  std::vector<std::unique_ptr<Client>> slow;
  for (size_t i = 0; i < 24; ++i) {
    slow.push_back(std::make_unique<Client>(port_, 0, static_cast<uint8_t>(1 + i % 2)));
    begin(*slow.back());
  }
  Response refused;
  EXPECT_TRUE(Eventually([&] {  // once they have arrived
    refused = Client(port_).Ask("POST", kChat, most, Key("sk-anna"));
    return refused.status == 503;
  }));
  EXPECT_EQ(refused.headers.at("Retry-After"), "1");
  EXPECT_NE(refused.body.find("large requests of one client"), std::string::npos) << refused.body;
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi"), Key("sk-anna")).status, 200);
  const std::string large = Chat(std::string(3'000'000, ' '));
  EXPECT_EQ(Client(port_).Ask("POST", kChat, large, Key("sk-ben")).status, 400);  // it was read
  slow.clear();
  EXPECT_TRUE(Eventually(
      [&] { return Client(port_).Ask("POST", kChat, large, Key("sk-anna")).status == 400; }));
}

TEST_F(HttpAccessTest, AShareHasRoomForARequest) {
  const auto listen = [](ServerOptions options) {
    return HttpServer::Listen(std::move(options), BoundSocket::Port("127.0.0.1", 0).value())
        .status()
        .message();
  };
  const size_t one = MaxRequestMemory(ServerOptions().max_body_bytes);
  EXPECT_NE(listen({.max_client_memory_bytes = one - 1}).find("--max-client-memory"),
            std::string::npos);
  EXPECT_EQ(listen({.max_client_memory_bytes = one}), "");
}

TEST_F(HttpAccessTest, ARefusalNamesBothWaysToSendAKey) {
  Serve({.api_key = "secret"});
  const Response refused = Client(port_).Ask("GET", "/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_NE(refused.body.find("Authorization: Bearer KEY, or X-Api-Key: KEY"), std::string::npos);
  const auto status = [&](const std::string& headers) {
    return Client(port_).Ask("GET", "/v1/models", "", headers).status;
  };
  EXPECT_EQ(status("X-Api-Key: secret\r\n"), 200);
  // Where there is a Bearer, it counts.
  EXPECT_EQ(status("Authorization: Bearer wrong\r\nX-Api-Key: secret\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer secret\r\nX-Api-Key: wrong\r\n"), 200);
  EXPECT_EQ(status("Authorization: Basic c2VjcmV0\r\nX-Api-Key: secret\r\n"), 200);
}

TEST_F(HttpAccessTest, WhichRoutesNeedNoKeyIsTold) {
  const auto status = [&](const char* path) { return Client(port_).Ask("GET", path).status; };
  Serve({.api_key = "secret", .open_routes = std::vector<std::string>{"/health", "/v1/models"}});
  EXPECT_EQ(status("/health"), 200);
  EXPECT_EQ(status("/v1/models"), 200);
  EXPECT_EQ(status("/metrics"), 401);
  EXPECT_EQ(status("/ping"), 401);
  EXPECT_EQ(Client(port_).Ask("GET", "/metrics", "", Key("secret")).status, 200);
  // A web page may not, though no key is needed.
  EXPECT_EQ(Client(port_).Ask("GET", "/v1/models", "", "Origin: http://evil.example\r\n").status,
            403);
  const auto refused = HttpServer::Listen({.open_routes = std::vector<std::string>{"/healthz"}},
                                          BoundSocket::Port("127.0.0.1", 0).value());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("/healthz is no route: there are /v1/chat"),
            std::string::npos);
  const auto joined = HttpServer::Listen({.open_routes = std::vector<std::string>{"/ping,/live"}},
                                         BoundSocket::Port("127.0.0.1", 0).value());
  ASSERT_FALSE(joined.ok());
  EXPECT_NE(joined.status().message().find("with spaces between"), std::string::npos);
}

// With a key any page could ask for metrics, though they were not open.
TEST_F(HttpAccessTest, PagesOfOthersMayAskForTheServersOpenStateAlone) {
  const std::string page = "Origin: http://evil.example\r\n";
  const auto status = [&](const char* path, const std::string& headers) {
    return Client(port_).Ask("GET", path, "", headers + page).status;
  };
  Serve({.api_key = "secret", .open_routes = std::vector<std::string>{"/health", "/v1/models"}});
  EXPECT_EQ(status("/health", ""), 200);
  for (const char* path : {"/metrics", "/load", "/v1/models", "/v1/responses/resp_1"}) {
    EXPECT_EQ(status(path, Key("secret")), 403) << path;
  }
}

}  // namespace
}  // namespace fathom
