// What requests keep while they wait, run and are sent: it was in no account once its body was
// read, and a client whose requests waited, or who did not read, had the server's memory.
#include <memory>
#include <string>
#include <vector>

#include "server/http_server_fixture.h"

namespace fathom {
namespace {

constexpr char kResponses[] = "/v1/responses";

std::string Asked(const std::string& input, size_t repeated, const std::string& more = "") {
  return fmt::format(R"({{"input": "{}", "user": "{}"{}}})", input, std::string(repeated, 'x'),
                     more);
}

TEST_F(HttpServerTest, WhatWaitsCounts) {
  Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{1} << 20});
  const std::string kStream = R"(, "stream": true, "store": false)";
  std::vector<std::unique_ptr<Client>> waiting;
  for (int i = 0; i < 16; ++i) {
    waiting.push_back(std::make_unique<Client>(port_));
    waiting.back()->Request("POST", kResponses, Asked("nothing", 60'000, kStream));
  }
  EXPECT_TRUE(Eventually([&] {
    return Client(port_).Ask("POST", kResponses, Asked("hi", 60'000, kStream)).status == 503;
  }));
  EXPECT_LE(engine_->Stats().running, 8);
  waiting.clear();
  EXPECT_TRUE(Eventually(
      [&] { return Client(port_).Ask("POST", kResponses, Asked("hi", 60'000)).status == 200; }));
}

TEST_F(HttpServerTest, StoredResponsesCountForWhoAsks) {
  Serve({.max_body_bytes = size_t{16} << 20, .max_request_memory_bytes = size_t{120} << 20});
  const Response stored = Client(port_).Ask("POST", kResponses, Asked("hi", 14'000'000));
  ASSERT_EQ(stored.status, 200);
  const std::string path =
      std::string(kResponses) + "/" + stored.parsed().at("id").as_string().c_str();
  std::vector<std::unique_ptr<Client>> unread;
  for (int i = 0; i < 12; ++i) {
    unread.push_back(std::make_unique<Client>(port_, /*receive_buffer=*/4096));
    unread.back()->Request("GET", path, "");
  }
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", path).status == 503; }));
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 200);
  unread.clear();
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", path).status == 200; }));
}

// A running one, too: what is stored says that it runs.
TEST_F(HttpServerTest, ACancelledResponseIsTheStoredOne) {
  Serve();
  Client client(port_);
  client.Request("POST", kResponses, Asked("forever", 100, R"(, "stream": true)"));
  const std::string events = client.ReadUntil("response.in_progress");
  const size_t at = events.find("resp_");
  const std::string path = std::string(kResponses) + "/" + events.substr(at, 37);
  EXPECT_EQ(Client(port_).Ask("GET", path).parsed().at("status"), json::value("in_progress"));
  const json::value cancelled = Client(port_).Ask("POST", path + "/cancel").parsed();
  EXPECT_EQ(cancelled.at("status"), json::value("cancelled"));
  EXPECT_EQ(cancelled.at("user"), json::value(std::string(100, 'x')));
}

}  // namespace
}  // namespace fathom
