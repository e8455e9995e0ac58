// For tests: the server over real sockets, with an engine that follows a script.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/fake_engine.h"
#include "server/http_server.h"
#include "server/test_client.h"

namespace fathom {

namespace json = boost::json;
using namespace std::chrono_literals;  // NOLINT: of tests only

inline const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
  return *tokenizer;
}

inline std::vector<TokenId> Tokens(const std::string& text) {
  return TinyTokenizer().Encode(SpannedText(text, /*trusted=*/true)).value();
}

inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(SetLogLevel("error")); }
  void TearDown() override { Stop(); }

  // What the engine does is decided by the prompt's last word.
  static Script ScriptFor(const GenerateRequest& request) {
    const std::string prompt = TinyTokenizer().Decode(request.prompt, false);
    const auto says = [&](const char* word) { return prompt.find(word) != std::string::npos; };
    if (says("forever")) return {Tokens("and so on "), Script::End::kNever};
    if (says("nothing")) return {.starts = false};
    if (says("broken")) return {Tokens("It begins"), Script::End::kError};
    std::vector<TokenId> answer = Tokens("Easy.</think>Hello there.");
    answer.push_back(*TinyTokenizer().IdOf(TinyTokenizer().eos_token()));
    return {answer, Script::End::kStop};
  }

  void Serve(ServerOptions options = {}, std::chrono::microseconds tick = 1ms, int capacity = 64) {
    engine_ = std::make_unique<FakeEngine>(outputs_, scripter_, tick, capacity);
    Listen(std::move(options));
    MakeReady();
  }
  // The model is loading until MakeReady. REQUIRES: engine_.
  void Listen(ServerOptions options) {
    options.version = "1.2.3";
    BoundSocket port = BoundSocket::Port("127.0.0.1", 0).value();
    port_ = port.port();
    server_ = HttpServer::Listen(std::move(options), std::move(port)).value();
    running_ = std::async(std::launch::async, [this] { server_->Run(); });
  }
  void MakeReady() {
    server_->Serve({.engine = *engine_,
                    .outputs = outputs_,
                    .tokenizer = TinyTokenizer(),
                    .chat_template = ChatTemplate::Parse(TinyTokenizer().chat_template()).value(),
                    .model_names = {"tiny", "org/tiny 2%"},
                    .sources = "0123abcd",
                    .eos_tokens = {*TinyTokenizer().IdOf(TinyTokenizer().eos_token())},
                    .vocab_size = TinyTokenizer().vocab_size(),
                    .grammars = grammars_.get()});
  }
  void Stop() {
    if (!server_) return;
    server_->Stop();
    running_.wait();
    server_.reset();
    engine_.reset();
  }

  static std::string Chat(const std::string& text, const std::string& more = "") {
    return R"({"messages": [{"role": "user", "content": )" + json::serialize(json::value(text)) +
           "}]" + more + "}";
  }
  static std::string Stream(const std::string& text) { return Chat(text, R"(, "stream": true)"); }
  static constexpr char kChat[] = "/v1/chat/completions";

  // Whether one request to kChat ended with this status.
  bool Counted(const std::string& status) {
    return Client(port_, 0, /*from=*/2)
               .Ask("GET", "/metrics")
               .body.find(fmt::format("{{handler=\"{}\",status=\"{}\"}} 1\n", kChat, status)) !=
           std::string::npos;
  }

  FakeEngine::Scripter scripter_ = ScriptFor;
  std::unique_ptr<GrammarCompiler> grammars_;  // none: answers are free
  EngineOutputs outputs_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<HttpServer> server_;
  std::future<void> running_;
  uint16_t port_ = 0;
};

}  // namespace fathom
