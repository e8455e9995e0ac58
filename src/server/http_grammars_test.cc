// Grammars that take their time, and what waits for them.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "server/http_server_fixture.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;

class HttpGrammarsTest : public HttpServerTest {
 protected:
  // Until go_on_; then they refuse.
  void HoldCompilers(const GrammarCompilerOptions& options) {
    const auto compile =
        [this, may = go_on_.get_future().share()](const GrammarSpec&) -> GrammarCompiler::Made {
      ++begun_;
      may.wait();
      return InvalidArgument("it is no grammar");
    };
    grammars_ = std::make_unique<GrammarCompiler>(compile, options);
  }
  // The compilers, too, which use what is here.
  void Stop() {
    HttpServerTest::Stop();
    grammars_.reset();
  }

  std::promise<void> go_on_;
  std::atomic<int> begun_ = 0;
};

// Both threads of the compiler are held up: who asks is told at the deadline, what waits behind
// them too, and others are answered meanwhile.
TEST_F(HttpGrammarsTest, GrammarsThatTakeTooLong) {
  HoldCompilers({.threads = 2, .deadline = 300ms});
  Serve();
  std::vector<std::future<Response>> asked;
  const auto began = std::chrono::steady_clock::now();
  for (const char* pattern : {"a", "b", "c"}) {
    asked.push_back(std::async(std::launch::async, [this, pattern] {
      return Client(port_).Ask("POST", kChat,
                               Chat("hi", fmt::format(R"(, "guided_regex": "{}")", pattern)));
    }));
  }
  Client other(port_);
  int answered = 0;
  for (; asked[0].wait_for(0s) != std::future_status::ready; ++answered) {
    EXPECT_EQ(other.Ask("GET", "/health").status, 200);
    EXPECT_EQ(other.Ask("POST", kChat, Chat("hi")).status, 200);
  }
  EXPECT_GT(answered, 3);
  for (std::future<Response>& response : asked) EXPECT_EQ(response.get().status, 503);
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_TRUE(took > 290ms && took < 5s);
  go_on_.set_value();
  EXPECT_TRUE(Eventually([&] {
    return other.Ask("POST", kChat, Chat("hi", R"(, "guided_regex": "d")")).status == 400;
  }));
  Stop();
}

// The whole time of a request ends while its grammar is being compiled, too.
TEST_F(HttpGrammarsTest, AGrammarTakesOfTheRequestsTime) {
  HoldCompilers({});
  Serve({.request_timeout_ms = 200});
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi", R"(, "guided_regex": "a")")).status, 504);
  go_on_.set_value();
  Stop();
}

// One that closed was noticed when its grammar was made; one that reset was refused.
TEST_F(HttpGrammarsTest, AClientThatLeavesWhileItsGrammarIsCompiledIsNoticed) {
  HoldCompilers({.threads = 2, .deadline = std::chrono::hours(1)});
  Serve();
  Client leaves(port_), waits(port_), streams(port_);
  const auto chat = [](const char* more) {
    return Chat("hi", R"(, "guided_regex": "a")" + std::string(more));
  };
  leaves.Request("POST", kChat, chat(""));
  ASSERT_TRUE(Eventually([&] { return begun_ == 1; }));
  leaves.Close();
  EXPECT_TRUE(Eventually([&] { return Counted("499"); }));
  waits.Request("POST", kChat, chat(""));
  streams.Request("POST", kChat, chat(R"(, "stream": true)"));
  for (Client* client : {&waits, &streams}) {
    client->EndSending();
    EXPECT_EQ(client->ReadUntil("HTTP/1.1"), "HTTP/1.1");  // while it is compiled
  }
  go_on_.set_value();
  for (Client* client : {&waits, &streams}) {
    EXPECT_TRUE(client->ReadUntil("\r\n\r\n").starts_with(" 400 "));
  }
  Stop();
}

// One address's forms had those of all others wait behind them, or turned away.
TEST_F(HttpGrammarsTest, AddressesTakeTurnsForCompilers) {
  HoldCompilers({.threads = 1, .max_waiting = 2, .deadline = std::chrono::hours(1)});
  Serve();
  Client works(port_), waits(port_), has_two(port_), other(port_, 0, 2);
  const auto ask = [](Client& client, const char* regex) {
    client.Request("POST", kChat, Chat("hi", fmt::format(R"(, "guided_regex": "{}")", regex)));
  };
  ask(works, "a");
  ASSERT_TRUE(Eventually([&] { return begun_ == 1; }));
  ask(waits, "b");
  ask(has_two, "c");
  ask(other, "d");
  EXPECT_TRUE(Eventually([&] { return Counted("503"); }));
  go_on_.set_value();
  EXPECT_TRUE(other.ReadUntil("\r\n\r\n").starts_with("HTTP/1.1 400 "));
  Stop();
}

// Grammars that others hold are in no plan if they are not bounded.
TEST_F(HttpGrammarsTest, GrammarsBeyondTheirMemoryAreRefusedUntilSomeAreLetGo) {
  class Large final : public Grammar {
   public:
    Result<std::unique_ptr<GrammarState>> Start() const override { return Internal("a fake"); }
    size_t bytes() const override { return size_t{3} << 20; }
  };
  const auto compile = [](const GrammarSpec& spec) -> GrammarCompiler::Made {
    if (!spec.text.starts_with("large")) return InvalidArgument("it is no grammar");
    return std::shared_ptr<const Grammar>(std::make_shared<Large>());
  };
  grammars_ = std::make_unique<GrammarCompiler>(
      compile, GrammarCompilerOptions{.compile_bytes = 1, .grammar_bytes = size_t{12} << 20});
  Serve();
  std::vector<GrammarCompiler::Made> held;
  for (const uint64_t client : {1001, 1002, 1003, 1004}) {
    std::promise<GrammarCompiler::Made> made;
    const auto wanted = grammars_->Get(
        {GrammarKind::kRegex, fmt::format("large{}", client)},
        [&](GrammarCompiler::Made got) { made.set_value(got); }, client);
    held.push_back(made.get_future().get());
  }
  Client client(port_);
  const auto holds = [&client](const char* bytes) {
    return client.Ask("GET", "/metrics")
               .body.find(
                   fmt::format("fathom:grammar_memory_bytes{{engine=\"0\",model_name=\"tiny\"}} "
                               "{}\n",
                               bytes)) != std::string::npos;
  };
  EXPECT_TRUE(holds("12582912"));
  const std::string asks = Chat("hi", R"(, "guided_regex": "large")");
  const Response refused = client.Ask("POST", kChat, asks);
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("Retry-After"));
  EXPECT_NE(refused.body.find(
                "all clients' requests in flight, and their answers, take more than 12 MiB"),
            std::string::npos)
      << refused.body;
  held.clear();
  EXPECT_NE(client.Ask("POST", kChat, asks).status, 503);
  Stop();
}

}  // namespace
}  // namespace fathom
