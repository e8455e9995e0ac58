// Clients that are slow, large, or gone.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/http_server_fixture.h"

namespace fathom {
namespace {

TEST_F(HttpServerTest, BadBodies) {
  Serve({.max_header_bytes = 4096, .max_body_bytes = 1 << 20});
  Client client(port_);
  EXPECT_EQ(client.Ask("POST", kChat, "{").status, 400);
  EXPECT_EQ(client.Ask("POST", kChat, "").status, 400);
  const std::string deep(100'000, '[');
  EXPECT_EQ(client.Ask("POST", kChat, "{\"messages\": " + deep).status, 400);
  EXPECT_EQ(client.Ask("GET", "/health").status, 200);
  EXPECT_EQ(Client(port_).Ask("POST", kChat, std::string(2 << 20, ' ')).status, 413);
  EXPECT_EQ(Client(port_).Ask("GET", "/health", "", "X: " + std::string(8000, 'x') + "\r\n").status,
            431);
  Client chunked(port_);
  chunked.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 40; ++i) chunked.Send("8000\r\n" + std::string(0x8000, ' ') + "\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  Client garbage(port_);
  garbage.Send(std::string("\x16\x03\x01\x02\0\x01", 6) + std::string(64, 'x') + "\r\n\r\n");
  EXPECT_EQ(garbage.Read().status, 400);
  EXPECT_TRUE(garbage.Ended());
}

// A last chunk that was the first, and of which three bytes had come and then a fourth, ended the
// process once.
TEST_F(HttpServerTest, ChunksMayArriveByteByByte) {
  Serve();
  const std::string body = R"({"prompt": "a b"})";
  const std::string chunks = fmt::format("5;x=y\r\n{}\r\n{:x}\r\n{}\r\n", body.substr(0, 5),
                                         body.size() - 5, body.substr(5));
  for (const auto& [sent, status] : {std::pair{chunks + "0\r\nTrailer: 1\r\n\r\n", 200},
                                     {chunks + "0\r\n\r\n", 200},
                                     {std::string("0\r\n\r\n"), 400}}) {
    Client client(port_);
    client.Send(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    for (const char byte : sent) {
      client.Send(std::string(1, byte));
      std::this_thread::sleep_for(3ms);
    }
    EXPECT_EQ(client.Read().status, status);
  }
}

// The end of such a body is not known: nothing after it is taken for a request.
TEST_F(HttpServerTest, EncodedBodies) {
  Serve();
  const std::string post = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n";
  Client transfer(port_), content(port_);
  transfer.Send(post +
                "Transfer-Encoding: gzip\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(transfer.Read().status, 400);
  EXPECT_TRUE(transfer.Ended());
  content.Send(post + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08");
  EXPECT_EQ(content.Read().status, 415);
}

// However many share the bound, and though nothing of them is sent before their end.
TEST_F(HttpServerTest, AnswersThatAreCollectedCountAgainstTheMemoryOfRequests) {
  Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{34} << 20}, 100us,
        /*capacity=*/128);
  const std::string asked =
      R"({"messages": [{"role": "user", "content": "forever"}], "n": 128, "max_tokens": 4000, )"
      R"("logprobs": true, "top_logprobs": 20})";
  Client client(port_);
  const Response refused = client.Ask("POST", kChat, asked);
  EXPECT_EQ(refused.status, 400);  // alone it is too large: nothing would come of trying again
  EXPECT_EQ(engine_->cancelled(), 128);                          // long before their ends
  EXPECT_EQ(client.Ask("POST", kChat, Chat("hi")).status, 200);  // what it held was given back
}

// Here most of what there is no room for waits to be collected: that is the request's own, too.
TEST_F(HttpServerTest, WhatWaitsForARequestIsNoOthersRequest) {
  Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{34} << 20}, 0us,
        /*capacity=*/128);
  const Response refused = Client(port_).Ask(
      "POST", kChat,
      R"({"messages": [{"role": "user", "content": "forever"}], "n": 128, "max_tokens": 4000, )"
      R"("logprobs": true, "top_logprobs": 20})");
  EXPECT_EQ(refused.status, 400);
}

TEST_F(HttpServerTest, ARequestEndsWithItsTime) {
  Serve({.request_timeout_ms = 300});
  Client client(port_);
  const Response ended = client.Ask("POST", kChat, Chat("forever"));
  EXPECT_EQ(ended.status, 504);
  EXPECT_EQ(ended.headers.at("X-Should-Retry"), "false");
  EXPECT_NE(ended.body.find("more than 0.3 s"), std::string::npos) << ended.body;
  EXPECT_EQ(client.Ask("POST", kChat, Chat("nothing")).status, 504);  // while it waits, too
  const Response stream = client.Ask("POST", kChat, Stream("forever"));
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("\"code\":\"request_timeout\""), std::string::npos);
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(Eventually([&] { return engine_->live() == 0; }));
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 200);
}

TEST_F(HttpServerTest, WhatAWorkerFailsOfIsItsRequestsAnswer) {
  Serve();
  engine_->ThrowFromNowOn();
  Client client(port_);
  const Response failed = client.Ask("POST", kChat, Chat("hi"));
  EXPECT_EQ(failed.status, 500);
  EXPECT_NE(failed.body.find("no room to count in"), std::string::npos);
  EXPECT_EQ(client.Ask("GET", "/health").status, 200);
}

constexpr char kPostHead[] =
    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

// What has arrived counts, and what was announced does not.
TEST_F(HttpServerTest, BodiesInFlightAreBoundedTogether) {
  Serve({.max_body_bytes = size_t{4} << 20, .max_request_memory_bytes = size_t{65} << 20});
  const std::string announced = std::string(kPostHead) + "Content-Length: 4194304\r\n\r\n";
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 100; ++i) {  // of three clients, or the share of one would be the bound
    slow.push_back(std::make_unique<Client>(port_, 0, static_cast<uint8_t>(1 + i % 3)));
    slow.back()->Send(announced + " ");
  }
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 200);
  const std::string most(4'000'000, ' ');
  for (int i = 0; i < 20; ++i) slow[i]->Send(most);  // twelve fit
  Response refused;
  EXPECT_TRUE(Eventually([&] {  // once they have arrived
    refused = Client(port_).Ask("POST", kChat, most);
    return refused.status == 503;
  }));
  EXPECT_EQ(refused.headers.at("Retry-After"), "1");
  // The last quarter is for small requests.
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 200);
  slow.clear();
  EXPECT_TRUE(Eventually(
      [&] { return Client(port_).Ask("POST", kChat, std::string(4'000'000, ' ')).status == 400; }));
}

// Parsing, rendering and tokenising end with the time for them, and never hold up an I/O thread.
TEST_F(HttpServerTest, WorkOnARequestIsBoundedInTime) {
  Serve({.work_timeout_ms = 1});
  std::string messages;
  for (int i = 0; i < 10'000; ++i) messages += R"({"role": "user", "content": "word"},)";
  messages.pop_back();
  const Response late = Client(port_).Ask("POST", kChat, "{\"messages\": [" + messages + "]}");
  EXPECT_EQ(late.status / 100, 4);
  EXPECT_NE(late.body.find("takes more than 0.001 s"), std::string::npos) << late.body;
}

TEST_F(HttpServerTest, AnswersThatNobodyReadsAreBoundedTogether) {
  Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{34} << 20});
  std::string words;
  for (int i = 0; i < 30'000; ++i) words += "a ";
  const std::string body = R"({"return_token_strs": true, "prompt": ")" + words + "\"}";
  std::vector<std::unique_ptr<Client>> unread;
  for (int i = 0; i < 200; ++i) {
    unread.push_back(std::make_unique<Client>(port_, /*receive_buffer=*/4096));
    unread.back()->Request("POST", "/tokenize", body);
  }
  Client metrics(port_);
  EXPECT_TRUE(Eventually([&] {
    return metrics.Ask("GET", "/metrics")
               .body.find(R"(handler="/tokenize",method="POST",status="5xx")") != std::string::npos;
  }));
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi")).status, 200);
}

// They follow no body's size.
TEST_F(HttpServerTest, AnswersAreBoundedWhileTheyAreMade) {
  Serve({.max_body_bytes = size_t{64} << 10, .max_request_memory_bytes = size_t{1} << 20});
  std::string words;
  for (int i = 0; i < 12'000; ++i) words += "\u9f98";  // a token a byte
  const auto tokens = [&](const char* more) {
    return Client(port_).Ask("POST", "/tokenize", R"({"prompt": ")" + words + "\"" + more + "}");
  };
  const Response ids = tokens("");
  EXPECT_EQ(ids.status, 200);
  EXPECT_EQ(ids.parsed().at("count"), ids.parsed().at("tokens").as_array().size());
  EXPECT_TRUE(ids.parsed().at("token_strs").is_null());
  EXPECT_EQ(tokens(R"(, "return_token_strs": true)").status, 413);
}

TEST_F(HttpServerTest, DetokenizeTakesAContextAtMost) {
  Serve();
  const auto ids = [](int count) {
    std::string list = "1";
    for (int i = 1; i < count; ++i) list += ",1";
    return R"({"tokens": [)" + list + "]}";
  };
  EXPECT_EQ(Client(port_).Ask("POST", "/detokenize", ids(4096)).status, 200);
  EXPECT_EQ(Client(port_).Ask("POST", "/detokenize", ids(4097)).status, 400);
}

// Without being read: nobody wants it.
TEST_F(HttpServerTest, BodiesOfOpenRoutesAreNotWaitedFor) {
  Serve({.api_key = "secret"});
  for (const char* path : {"/health", "/ping", "/version", "/metrics"}) {
    Client client(port_);
    client.Send(std::string("GET ") + path +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 33554432\r\n\r\nx");
    EXPECT_EQ(client.Read().status, 200);
    client.EndSending();
    EXPECT_TRUE(client.Ended());
  }
}

TEST_F(HttpServerTest, WaitsForLeaveToSendABody) {
  Serve();
  Client client(port_);
  const std::string body = Chat(std::string(200'000, ' ') + "hi", R"(, "max_tokens": 1)");
  client.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(body);
  EXPECT_EQ(client.Read().status, 400);  // too many tokens, but it was read
}

TEST_F(HttpServerTest, ADisconnectFreesTheRequestAtOnce) {
  Serve();
  for (const bool stream : {true, false}) {
    const int before = engine_->cancelled();
    Client client(port_);
    client.Request("POST", kChat, stream ? Stream("forever") : Chat("nothing"));
    if (stream) client.ReadUntil("\"reasoning\":\"");
    ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
    client.Close();
    EXPECT_TRUE(Eventually([&] { return engine_->live() == 0; }));
    EXPECT_EQ(engine_->cancelled(), before + 1);
  }
  EXPECT_TRUE(Eventually([&] {
    return Client(port_)
               .Ask("GET", "/metrics")
               .body.find(R"(finished_reason="abort",model_name="tiny"} 2)") != std::string::npos;
  }));
}

// Each choice of it.
TEST_F(HttpServerTest, ADisconnectFreesEveryChoice) {
  Serve();
  Client client(port_);
  client.Request("POST", kChat, Chat("forever", R"(, "stream": true, "n": 3)"));
  client.ReadUntil("\"reasoning\":\"");
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 3; }));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->live() == 0; }));
  EXPECT_EQ(engine_->cancelled(), 3);
}

// A client that has said all it had to say (shutdown of its sending side, as nc -N) is answered.
TEST_F(HttpServerTest, AHalfClosedClientGetsItsAnswer) {
  Serve({}, 20ms);
  Client stream(port_), whole(port_), two(port_), old(port_);
  stream.Request("POST", kChat, Stream("hi"));
  stream.EndSending();
  whole.Request("POST", kChat, Chat("hi"));
  whole.EndSending();
  two.Request("POST", kChat, Stream("hi"));
  two.Request("POST", kChat, Stream("hi"));
  two.EndSending();
  const std::string body = Chat("hi");
  old.Send("POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n" +
           fmt::format("Content-Length: {}\r\n\r\n", body.size()) + body);
  old.EndSending();
  EXPECT_TRUE(stream.Read().body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(whole.Read().status, 200);
  EXPECT_EQ(old.Read().status, 200);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(two.Read().body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(stream.Ended() && whole.Ended() && two.Ended());
  EXPECT_EQ(engine_->cancelled(), 0);
}

TEST_F(HttpServerTest, AHalfClosedClientThatLeavesIsNoticed) {
  Serve();
  Client client(port_);
  client.Request("POST", kChat, Stream("forever"));
  client.EndSending();
  client.ReadUntil(":\n\n");
  EXPECT_EQ(engine_->live(), 1);
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->cancelled() == 1; }));
}

// Nor does one hide by sending more than is read ahead.
TEST_F(HttpServerTest, AClientThatSendsOnAndLeavesIsNoticed) {
  Serve();
  Client client(port_);
  client.Request("POST", kChat, Stream("forever"));
  client.Send(std::string(300'000, 'x'));
  client.ReadUntil(":\n\n");
  EXPECT_EQ(engine_->live(), 1);
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->cancelled() == 1; }));
}

TEST_F(HttpServerTest, AClientThatStopsReadingIsDropped) {
  Serve({.max_unsent_bytes = 65536}, 100us);
  Client client(port_, /*receive_buffer=*/4096);
  client.Request("POST", kChat,
                 Chat("forever", R"(, "stream": true, "logprobs": true, "top_logprobs": 20)"));
  client.ReadUntil("\"reasoning\":\"");
  EXPECT_TRUE(Eventually([&] { return engine_->cancelled() == 1; }));
  EXPECT_TRUE(Eventually([&] { return engine_->live() == 0; }));
}

TEST_F(HttpServerTest, AClientThatStopsReadingIsDroppedByTime) {
  Serve({.max_unsent_bytes = size_t{1} << 30, .send_timeout_ms = 300}, 100us);
  Client client(port_, /*receive_buffer=*/4096);
  client.Request("POST", kChat,
                 Chat("forever", R"(, "stream": true, "logprobs": true, "top_logprobs": 20)"));
  EXPECT_TRUE(Eventually([&] { return engine_->cancelled() == 1; }));
}

TEST_F(HttpServerTest, ALargeStepIsNoSlowClient) {
  Serve({.max_unsent_bytes = 1024});
  Client client(port_);
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "word ";
  const Response response =
      client.Ask("POST", "/v1/completions",
                 R"({"stream": true, "echo": true, "logprobs": 20, "prompt": ")" + words + "\"}");
  EXPECT_GT(response.body.size(), 200'000u);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(HttpServerTest, SlowSendersAreClosed) {
  Serve({.header_timeout_ms = 200, .body_timeout_ms = 200, .idle_timeout_ms = 200});
  Client silent(port_), header(port_), body(port_), idle(port_);
  header.Send("GET /health HTTP/1.1\r\nX: ");
  body.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 100\r\n\r\n{");
  EXPECT_EQ(idle.Ask("GET", "/health").status, 200);
  std::jthread drip([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      header.Send("x");
      body.Send(" ");
      std::this_thread::sleep_for(20ms);
    }
  });
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(silent.Ended());
  EXPECT_EQ(header.Read().status, 408);
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_TRUE(idle.Ended());
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
}

}  // namespace
}  // namespace fathom
