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

// Of a stream, what it repeats; of a talk, the conversation that is stored.
TEST_F(HttpServerTest, WhatWaitsCounts) {
  const std::string thought = fmt::format(
      R"({{"input": [{{"role": "user", "content": "a"}}, {{"type": "reasoning", "summary": [], )"
      R"("content": [{{"type": "reasoning_text", "text": "{}"}}]}}, )"
      R"({{"role": "assistant", "content": "b"}}, {{"role": "user", "content": "nothing"}}]}})",
      std::string(60'000, 'x'));
  for (const std::string& body :
       {Asked("nothing", 60'000, R"(, "stream": true, "store": false)"), thought}) {
    Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{1} << 20});
    std::vector<std::unique_ptr<Client>> waiting;
    bool refused = false;
    const auto is_refused = [&] {
      return Client(port_)
                 .Ask("GET", "/metrics")
                 .body.find(R"(handler="/v1/responses",method="POST",status="5xx")") !=
             std::string::npos;
    };
    for (int i = 0; i < 24 && !refused; ++i) {  // one after the other: reading takes more
      waiting.push_back(std::make_unique<Client>(port_));
      waiting.back()->Request("POST", kResponses, body);
      EXPECT_TRUE(Eventually([&] {
        refused = is_refused();
        return refused || engine_->Stats().running > i;
      }));
    }
    EXPECT_TRUE(refused);
    waiting.clear();
    EXPECT_TRUE(Eventually(
        [&] { return Client(port_).Ask("POST", kResponses, Asked("hi", 60'000)).status == 200; }));
    Stop();
  }
}

// A stream that says its text again at its end keeps it until then.
TEST_F(HttpServerTest, TextThatAStreamKeepsCounts) {
  Serve({.max_body_bytes = size_t{64} << 10,
         .max_request_memory_bytes = size_t{1} << 20,
         .max_unsent_bytes = size_t{8} << 20});
  const auto end_of = [&](const char* path, const std::string& body) {
    const size_t before = engine_->seen().size();
    Client client(port_);
    client.Request("POST", path, body);
    EXPECT_TRUE(Eventually([&] { return engine_->seen().size() > before; }));
    RequestOutput output{.id = engine_->seen().back().id};
    std::string events;
    for (int i = 0; i < 30; ++i) {  // 0.3 MB of text, said four times
      for (int j = 0; j < 5000; ++j) output.tokens.push_back({Tokens(" a")[0], {}});
      outputs_.Deliver({std::exchange(output, {.id = output.id})});
      events += client.ReadUntil(R"(a a")");  // or what waits would count
    }
    output.finish = FinishReason::kLength;
    outputs_.Deliver({output});
    return events + client.ReadUntil("\r\n0\r\n\r\n");
  };
  const std::string stream = R"(, "stream": true)";
  EXPECT_NE(end_of(kResponses, Asked("nothing", 1, stream)).find("response.failed"),
            std::string::npos);
  EXPECT_NE(end_of(kChat, Stream("nothing")).find("[DONE]"), std::string::npos);
}

// What waits to be written, and what is written of one step: a client that did not read had as much
// as its requests could generate.
TEST_F(HttpServerTest, WhatAStreamHasNotSentCounts) {
  const size_t budget = size_t{8} << 20;
  Serve({.max_body_bytes = size_t{64} << 10,
         .max_request_memory_bytes = budget,
         .max_client_memory_bytes = budget});
  const auto end_of = [&](int outputs, size_t tokens) {
    const size_t before = engine_->seen().size();
    Client client(port_, /*receive_buffer=*/4096);
    client.Request("POST", kChat, Chat("nothing", R"(, "logprobs": true, "top_logprobs": 20,
                                                      "stream": true)"));
    EXPECT_TRUE(Eventually([&] { return engine_->seen().size() > before; }));
    GeneratedToken token{Tokens("!")[0], TokenLogprobs{.logprob = -0.5f}};
    for (int32_t id = 0; id < 20; ++id) token.logprobs->top.emplace_back(TokenId(id), -1.25f);
    RequestOutput output{.id = engine_->seen().back().id, .tokens = {tokens, token}};
    for (int i = 1; i < outputs; ++i) outputs_.Deliver({output});
    output.finish = FinishReason::kLength;
    outputs_.Deliver({output});
    const std::string events = client.ReadUntil("\r\n0\r\n\r\n");
    return events.substr(events.size() - std::min<size_t>(events.size(), 600));
  };
  const std::string none = R"({"error":)";
  EXPECT_EQ(end_of(1, 2'000).find(none), std::string::npos);
  EXPECT_NE(end_of(1, 8'000).find(none), std::string::npos);   // 12 MB of events, 2 of outputs
  EXPECT_EQ(end_of(10, 1'000).find(none), std::string::npos);  // 15 MB of events, but step by step
  EXPECT_NE(end_of(60, 1'000).find(none), std::string::npos);  // 14 MB of outputs
  EXPECT_EQ(end_of(1, 2'000).find(none), std::string::npos);   // all is given back
}

// Once its client has read it, and though the stream goes on.
TEST_F(HttpServerTest, WhatAStreamHasSentIsGivenBack) {
  Serve();
  const auto held = [&] {
    const std::string name = "\nfathom:request_memory_bytes ";
    const std::string page = Client(port_).Ask("GET", "/metrics").body;
    return std::stod(page.substr(page.find(name) + name.size()));
  };
  Client client(port_, /*receive_buffer=*/4096);
  client.Request("POST", kChat, Stream("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->seen().size() == 1; }));
  constexpr size_t kOutputs = 100, kTokens = 2'000;
  const RequestOutput output{.id = engine_->seen().back().id,
                             .tokens = {kTokens, {Tokens("!")[0], {}}}};
  std::vector<RequestOutput> outputs(kOutputs, output);
  outputs.back().tokens.push_back({Tokens("?")[0], {}});
  outputs_.Deliver(std::move(outputs));
  EXPECT_TRUE(Eventually([&] { return held() > 4e6; }));
  client.ReadUntil("?");
  EXPECT_TRUE(Eventually([&] { return held() < 2e6; }));  // its events count until its end
}

// They need no key, and had a copy each, which counted for nobody.
TEST_F(HttpServerTest, PagesThatNobodyReadsTakeNothing) {
  constexpr int kUnread = 200;  // of 0.3 MB: more than large requests may have
  Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{34} << 20});
  for (const std::string path : {"/", "/openapi.json"}) {
    std::vector<std::unique_ptr<Client>> unread;
    for (int i = 0; i < kUnread; ++i) {
      unread.push_back(std::make_unique<Client>(port_, /*receive_buffer=*/4096));
      unread.back()->Request("GET", path, "");
    }
    EXPECT_TRUE(Eventually([&] {
      return Client(port_)
                 .Ask("GET", "/metrics")
                 .body.find(fmt::format("http_answers_total{{handler=\"{}\",status=\"200\"}} {}\n",
                                        path, kUnread)) != std::string::npos;
    })) << path;
    EXPECT_EQ(Client(port_).Ask("POST", kResponses, Asked("hi", 60'000)).status, 200);
  }
  const Response page = Client(port_).Ask("GET", "/");
  EXPECT_EQ(page.headers.at("Content-Length"), std::to_string(page.body.size()));
  EXPECT_TRUE(page.body.ends_with("</html>\n")) << page.body.substr(page.body.size() - 20);
}

// What is written of many keys is large, and counts for who does not read it.
TEST_F(HttpServerTest, MetricsThatNobodyReadsCount) {
  Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{1} << 20});
  std::vector<std::unique_ptr<Client>> unread;
  for (int i = 0; i < 400; ++i) {
    unread.push_back(std::make_unique<Client>(port_, /*receive_buffer=*/4096));
    unread.back()->Request("GET", "/metrics", "");
  }
  const std::string busy = R"(http_answers_total{handler="/metrics",status="503"})";
  Response last;
  EXPECT_TRUE(Eventually([&] {
    last = Client(port_).Ask("GET", "/metrics");
    return last.status == 503;
  }));
  EXPECT_EQ(last.body.find(busy), std::string::npos);
  unread.clear();
  EXPECT_TRUE(Eventually([&] {
    return Client(port_).Ask("GET", "/metrics").body.find("\nfathom:request_memory_bytes 0\n") !=
           std::string::npos;
  }));
  EXPECT_TRUE(Eventually(
      [&] { return Client(port_).Ask("GET", "/metrics").body.find(busy) != std::string::npos; }));
}

TEST_F(HttpServerTest, StoredResponsesCountForWhoAsks) {
  Serve({.max_body_bytes = size_t{16} << 20, .max_request_memory_bytes = size_t{240} << 20});
  const Response stored = Client(port_).Ask("POST", kResponses, Asked("hi", 14'000'000));
  ASSERT_EQ(stored.status, 200);
  const std::string path =
      std::string(kResponses) + "/" + stored.parsed().at("id").as_string().c_str();
  std::vector<std::unique_ptr<Client>> unread;
  for (int i = 0; i < 16; ++i) {
    unread.push_back(std::make_unique<Client>(port_, /*receive_buffer=*/4096));
    unread.back()->Request("GET", path, "");
  }
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", path).status == 503; }));
  // Others have what is theirs.
  Client other(port_, 0, /*from=*/2);
  EXPECT_EQ(other.Ask("POST", kChat, std::string(14'000'000, ' ')).status, 400);
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
