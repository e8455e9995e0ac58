// Large answers: who builds them, for how long, and what they count.
#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "server/http_server_fixture.h"

namespace fathom {
namespace {

// Until there is a result no /health takes a quarter of the time.
template <class T>
void ExpectHealthUntil(uint16_t port, const std::future<T>& result) {
  const auto now = std::chrono::steady_clock::now;
  const auto began = now();
  std::chrono::nanoseconds worst{};
  while (result.wait_for(1ms) != std::future_status::ready) {
    const auto asked = now();
    EXPECT_EQ(Client(port).Ask("GET", "/health").status, 200);
    worst = std::max(worst, now() - asked);
  }
  EXPECT_LT(4 * worst, now() - began);
}

// Building them holds up no I/O thread.
TEST_F(HttpServerTest, LargeAnswersAreBuiltByWorkers) {
  Serve({.io_threads = 1});
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "a ";
  const std::string body =
      R"({"echo": true, "logprobs": 20, "max_tokens": 1, "n": 16, "prompt": ")" + words + "\"}";
  auto answer = std::async(std::launch::async,
                           [&] { return Client(port_).Ask("POST", "/v1/completions", body); });
  ExpectHealthUntil(port_, answer);
  EXPECT_EQ(answer.get().parsed().at("choices").as_array().size(), 16u);
}

// Nor do the last events of a stream, which say its text again.
TEST_F(HttpServerTest, EndsOfLongStreamsAreBuiltByWorkers) {
  Serve({.max_request_memory_bytes = size_t{4} << 30,
         .max_client_memory_bytes = size_t{4} << 30,
         .max_unsent_bytes = size_t{1} << 30,
         .io_threads = 1});
  Client client(port_);
  client.Request("POST", "/v1/responses", R"({"input": "nothing", "stream": true})");
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  const RequestId id = engine_->seen().back().id;
  constexpr size_t kTokens = 4'000'000;
  const GeneratedToken token{Tokens("!")[0], {}};
  outputs_.Deliver({{.id = id, .tokens = std::vector<GeneratedToken>(kTokens, token)}});
  client.ReadBytes(kTokens);
  auto end = std::async(std::launch::async, [&] { return client.ReadBytes(4 * kTokens); });
  outputs_.Deliver({{.id = id, .finish = FinishReason::kLength}});
  ExpectHealthUntil(port_, end);
  EXPECT_EQ(end.get().size(), 4 * kTokens);
  EXPECT_NE(client.ReadUntil("0\r\n\r\n").find("max_output_tokens"), std::string::npos);
}

class LargeAnswersTest : public HttpServerTest {
 protected:
  // Asks for an answer with log-probabilities, and lets it have so many tokens.
  Response Answer(const std::string& path, const std::string& asked, size_t tokens) {
    const size_t before = engine_->seen().size();
    Client client(port_);
    client.Request("POST", path, asked);
    EXPECT_TRUE(Eventually([&] { return engine_->seen().size() > before; }));
    Deliver(engine_->seen().back(), tokens);
    return client.Read();
  }
  void Deliver(const GenerateRequest& request, size_t tokens, bool ends = true) {
    TokenLogprobs logprobs{.logprob = -0.5f};
    for (int32_t id = 0; id < request.sampling.logprobs; ++id) {
      logprobs.top.emplace_back(TokenId(id), -1.25f);
    }
    const GeneratedToken token{Tokens("!")[0], logprobs};
    outputs_.Deliver({{.id = request.id, .tokens = std::vector<GeneratedToken>(tokens, token)}});
    if (ends) outputs_.Deliver({{.id = request.id, .finish = FinishReason::kLength}});
  }
  // One client waits for the answer; another leaves when an eighth of that time is over.
  void EndWithTheirClient(const std::string& asked) {
    Serve({.work_timeout_ms = 60'000, .io_threads = 1});
    constexpr size_t kTokens = 40'000;
    const auto now = std::chrono::steady_clock::now;
    const auto began = now();
    EXPECT_EQ(Answer(kChat, asked, kTokens).status, 200);
    const auto whole = now() - began;
    const size_t before = engine_->seen().size();
    Client client(port_);
    client.Request("POST", kChat, asked);
    ASSERT_TRUE(Eventually([&] { return engine_->seen().size() > before; }));
    Deliver(engine_->seen().back(), kTokens);
    std::this_thread::sleep_for(whole / 8);
    client.Close();
    EXPECT_TRUE(Eventually([&] { return Counted("499"); }));
    const auto stopping = now();
    Stop();
    EXPECT_LT(now() - stopping, whole / 4);
  }
  static constexpr char kCompletions[] = "/v1/completions";
  const std::string of_chat_ = Chat("nothing", R"(, "logprobs": true, "top_logprobs": 20)");
  const std::string streamed_ =
      Chat("nothing", R"(, "logprobs": true, "top_logprobs": 20, "stream": true)");
  const std::string of_completion_ = R"({"prompt": "nothing", "logprobs": 20, "max_tokens": 8})";
};

// It went on for as long as it took, though its client had left and the server was to end.
TEST_F(LargeAnswersTest, HaveATime) {
  Serve({.work_timeout_ms = 200});
  for (const auto& [path, asked] : {std::pair{kChat, of_chat_}, {kCompletions, of_completion_}}) {
    EXPECT_EQ(Answer(path, asked, 10).status, 200) << path;
    const Response late = Answer(path, asked, 100'000);
    EXPECT_EQ(late.status, 504) << path;
    EXPECT_NE(late.body.find("fewer tokens"), std::string::npos) << late.body;
  }
  const Response late = Answer(kChat, streamed_, 100'000);
  EXPECT_NE(late.body.find("fewer tokens"), std::string::npos) << late.body.size();
}

TEST_F(LargeAnswersTest, EndWithTheirClient) {
  EndWithTheirClient(of_chat_);
}

// So did a step of a stream: it wrote all that had come.
TEST_F(LargeAnswersTest, StreamsEndWithTheirClient) {
  EndWithTheirClient(streamed_);
}

// Each step has the time of one, and what came together is several.
TEST_F(LargeAnswersTest, WhatComesTogetherIsManySteps) {
  Serve({.work_timeout_ms = 1'000, .io_threads = 1});
  const size_t before = engine_->seen().size();
  Client client(port_);
  client.Request("POST", kChat, streamed_);
  ASSERT_TRUE(Eventually([&] { return engine_->seen().size() > before; }));
  const GenerateRequest request = engine_->seen().back();
  GeneratedToken token{Tokens("!")[0], TokenLogprobs{.logprob = -0.5f}};
  for (int32_t id = 0; id < 20; ++id) token.logprobs->top.emplace_back(TokenId(id), -1.25f);
  constexpr size_t kOutputs = 500, kTokens = 200;
  const RequestOutput output{.id = request.id, .tokens = std::vector(kTokens, token)};
  std::vector<RequestOutput> outputs(kOutputs, output);
  outputs.back().finish = FinishReason::kLength;
  outputs_.Deliver(std::move(outputs));
  const std::string body = client.Read().body;
  EXPECT_NE(body.find("[DONE]"), std::string::npos) << body.substr(body.size() - 500);
}

// One output of many tokens is a step of its own, for which another client's does not wait.
TEST_F(LargeAnswersTest, DoNotHoldUpOthersSteps) {
  Serve({.max_request_memory_bytes = size_t{4} << 30,
         .max_client_memory_bytes = size_t{1} << 30,
         .work_timeout_ms = 60'000,
         .io_threads = 1});
  const auto ask = [&](Client& client, const std::string& path, const std::string& body) {
    const size_t before = engine_->seen().size();
    client.Request("POST", path, body);
    EXPECT_TRUE(Eventually([&] { return engine_->seen().size() > before; }));
    return engine_->seen().back();
  };
  Client other(port_, 0, /*from=*/2);
  const RequestId id = ask(other, "/v1/responses", R"({"input": "nothing", "stream": true})").id;
  const GeneratedToken token{Tokens("!")[0], {}};
  outputs_.Deliver({{.id = id, .tokens = std::vector<GeneratedToken>(40'000, token)}});
  other.ReadUntil(std::string(40'000, '!'));
  Client first(port_), second(port_);
  const auto now = std::chrono::steady_clock::now;
  const auto began = now();
  for (Client* client : {&first, &second}) Deliver(ask(*client, kChat, streamed_), 30'000);
  auto answers = std::async(std::launch::async, [&] {
    for (Client* client : {&first, &second}) EXPECT_EQ(client->Read().status, 200);
  });
  outputs_.Deliver({{.id = id, .tokens = {{Tokens("?")[0], {}}}}});
  other.ReadUntil("?");
  const auto waited = now() - began;
  answers.wait();
  EXPECT_LT(2 * waited, now() - began);
}

// Nor does a large step wait for whole answers.
TEST_F(LargeAnswersTest, DoNotHoldUpOthersLargeSteps) {
  Serve({.max_request_memory_bytes = size_t{4} << 30,
         .max_client_memory_bytes = size_t{1} << 30,
         .work_timeout_ms = 60'000,
         .io_threads = 1});
  Client first(port_), second(port_), other(port_, 0, /*from=*/2);
  const auto ask = [&](Client& client, const std::string& body) {
    const size_t before = engine_->seen().size();
    client.Request("POST", kChat, body);
    EXPECT_TRUE(Eventually([&] { return engine_->seen().size() > before; }));
    return engine_->seen().back();
  };
  const GenerateRequest streams = ask(other, streamed_);
  std::vector<std::future<void>> answers;
  for (Client* client : {&first, &second}) {
    Deliver(ask(*client, of_chat_), 60'000);
    answers.push_back(
        std::async(std::launch::async, [=] { EXPECT_EQ(client->Read().status, 200); }));
  }
  for (int i = 0; i < 8; ++i) Deliver(streams, 700, /*ends=*/i == 7);  // one behind the other
  EXPECT_NE(other.Read().body.find("[DONE]"), std::string::npos);
  for (const auto& answer : answers) EXPECT_EQ(answer.wait_for(0s), std::future_status::timeout);
}

// The engine takes a request of each choice, with its prompt, and not on an I/O thread.
TEST_F(LargeAnswersTest, ManyChoicesAreAskedForByWorkers) {
  scripter_ = [](const GenerateRequest& request) {
    if (request.prompt.size() > 1'000) std::this_thread::sleep_for(5ms);
    return ScriptFor(request);
  };
  Serve({.io_threads = 1});
  std::string words = "hello";
  for (int i = 0; i < 2'000; ++i) words += " a";
  auto asked = std::async(std::launch::async, [&] {
    return Client(port_).Ask("POST", kCompletions,
                             R"({"n": 60, "max_tokens": 1, "prompt": ")" + words + "\"}");
  });
  EXPECT_TRUE(Eventually([&] { return engine_->seen().size() > 0; }));
  ExpectHealthUntil(port_, asked);
  Stop();
}

// What its tokens were counted for is the text's, once that is there.
TEST_F(LargeAnswersTest, CountOnce) {
  Serve({.max_body_bytes = size_t{64} << 10,
         .max_request_memory_bytes = size_t{16} << 20,
         .max_client_memory_bytes = size_t{16} << 20});
  for (const auto& [path, asked] : {std::pair{kChat, of_chat_}, {kCompletions, of_completion_}}) {
    EXPECT_EQ(Answer(path, asked, 5'000).status, 200) << path;
    const Response more = Answer(path, asked, 10'000);  // than a client may ever have
    EXPECT_EQ(more.status, 400) << path;
    EXPECT_NE(more.body.find("fewer tokens"), std::string::npos) << more.body;
  }
}

}  // namespace
}  // namespace fathom
