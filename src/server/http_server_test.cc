// The server over real sockets, with an engine that follows a script.
#include "server/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/rng.h"
#include "server/fake_engine.h"

namespace fathom {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
  return *tokenizer;
}

std::vector<TokenId> Tokens(const std::string& text) {
  return TinyTokenizer().Encode(SpannedText(text, /*trusted=*/true)).value();
}

struct Response {
  int status = 0;  // 0: the connection ended before there was one
  std::map<std::string, std::string> headers;
  std::string body;
  json::value parsed() const { return json::parse(body); }
};

// A client that does as it is told, good or bad.
class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    timeval timeout{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { Close(); }
  void Close() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }
  bool connected() const { return connected_; }

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void Request(const std::string& method, const std::string& path, const std::string& body = "",
               const std::string& headers = "Content-Type: application/json\r\n") {
    Send(method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + headers +
         (method == "POST" ? "Content-Length: " + std::to_string(body.size()) + "\r\n" : "") +
         "\r\n" + body);
  }
  Response Ask(const std::string& method, const std::string& path, const std::string& body = "",
               const std::string& headers = "Content-Type: application/json\r\n") {
    Request(method, path, body, headers);
    return Read();
  }

  // Up to and including `end`; what has come so far if the connection ends.
  std::string ReadUntil(const std::string& end) {
    size_t found;
    while ((found = buffer_.find(end)) == std::string::npos) {
      if (!Fill()) return std::exchange(buffer_, {});
    }
    std::string text = buffer_.substr(0, found + end.size());
    buffer_.erase(0, text.size());
    return text;
  }
  Response Read() {
    Response response;
    const std::string head = ReadUntil("\r\n\r\n");
    if (!head.starts_with("HTTP/1.1 ")) return response;
    response.status = std::stoi(head.substr(9, 3));
    for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      const size_t end = head.find("\r\n", at), colon = head.find(": ", at);
      response.headers[head.substr(at, colon - at)] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (response.headers.contains("Transfer-Encoding")) {
      while (true) {
        const std::string size_line = ReadUntil("\r\n");
        const size_t size = size_line.empty() ? 0 : std::stoul(size_line, nullptr, 16);
        response.body += ReadBytes(size + 2).substr(0, size);
        if (size == 0) return response;
      }
    }
    if (!response.headers.contains("Content-Length")) {
      response.body = ReadUntil(std::string("\0never\0", 7));
    } else {
      response.body = ReadBytes(std::stoul(response.headers["Content-Length"]));
    }
    return response;
  }
  std::string ReadBytes(size_t size) {
    while (buffer_.size() < size && Fill()) {
    }
    std::string text = buffer_.substr(0, size);
    buffer_.erase(0, text.size());
    return text;
  }
  bool Ended() { return buffer_.empty() && !Fill(); }  // by the server

 private:
  bool Fill() {
    char bytes[4096];
    const ssize_t read = recv(socket_, bytes, sizeof bytes, 0);
    if (read > 0) buffer_.append(bytes, static_cast<size_t>(read));
    return read > 0;
  }

  int socket_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

bool Eventually(const std::function<bool()>& condition) {
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
    answer.push_back(*TinyTokenizer().eos());
    return {answer, Script::End::kStop};
  }

  void Serve(ServerOptions options = {}, std::chrono::microseconds tick = 1ms, int capacity = 64) {
    engine_ = std::make_unique<FakeEngine>(outputs_, ScriptFor, tick, capacity);
    options.served_model_names = {"tiny"};
    options.vocab_size = TinyTokenizer().vocab_size();
    options.eos_tokens = {*TinyTokenizer().eos()};
    options.version = "1.2.3";
    BoundPort port = BoundPort::Bind("127.0.0.1", 0).value();
    port_ = port.port();
    server_ =
        HttpServer::Listen(options, std::move(port), {*engine_, outputs_, TinyTokenizer()}).value();
    running_ = std::async(std::launch::async, [this] { server_->Run(); });
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

  EngineOutputs outputs_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<HttpServer> server_;
  std::future<void> running_;
  uint16_t port_ = 0;
};

TEST_F(HttpServerTest, SmallEndpointsOnOneConnection) {
  Serve();
  Client client(port_);
  EXPECT_EQ(client.Ask("GET", "/health").status, 200);
  EXPECT_EQ(client.Ask("GET", "/ping").status, 200);
  EXPECT_EQ(client.Ask("GET", "/version").parsed().at("version"), json::value("1.2.3"));
  const json::value model = client.Ask("GET", "/v1/models").parsed().at("data").at(0);
  EXPECT_EQ(model.at("id"), json::value("tiny"));
  EXPECT_EQ(model.at("max_model_len"), json::value(4096));
  EXPECT_EQ(client.Ask("GET", "/v1/models/tiny").status, 200);
  EXPECT_EQ(client.Ask("GET", "/v1/models/other").status, 404);
  const Response metrics = client.Ask("GET", "/metrics?x=1");
  EXPECT_NE(metrics.body.find("vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0.25"),
            std::string::npos);
  EXPECT_NE(metrics.body.find("vllm:num_preemptions_total{model_name=\"tiny\"} 3"),
            std::string::npos);
  client.Send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.ReadUntil("\r\n\r\n").find("200 OK"), std::string::npos);
}

TEST_F(HttpServerTest, RefusesByPathMethodTypeAndKey) {
  Serve({.api_key = "secret"});
  const std::string key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(Client(port_).Ask("GET", "/health").status, 200);
  EXPECT_EQ(Client(port_).Ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(Client(port_).Ask("GET", "/v1/models", "", "Authorization: Bearer secrets\r\n").status,
            401);
  EXPECT_EQ(Client(port_).Ask("GET", "/v1/models", "", key).status, 200);
  EXPECT_EQ(Client(port_).Ask("GET", "/nowhere", "", key).status, 404);
  const Response wrong_method = Client(port_).Ask("GET", kChat, "", key);
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.headers.at("Allow"), "POST");
  EXPECT_EQ(
      Client(port_).Ask("POST", kChat, Chat("hi"), key + "Content-Type: text/plain\r\n").status,
      415);
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi"), key).status, 200);  // is meant to be JSON
  const Response unknown_model = Client(port_).Ask("POST", kChat, Chat("hi", R"(, "model": "x")"),
                                                   key + "Content-Type: application/json\r\n");
  EXPECT_EQ(unknown_model.status, 404);
  EXPECT_EQ(unknown_model.parsed().at("error").at("code"), json::value("model_not_found"));
  EXPECT_EQ(unknown_model.parsed().at("error").at("param"), json::value("model"));
}

TEST_F(HttpServerTest, WebPagesMayUseItOnlyIfAllowed) {
  const std::string origin = "Origin: http://localhost:3000\r\n";
  const std::string asking = origin +
                             "Access-Control-Request-Method: POST\r\n"
                             "Access-Control-Request-Headers: authorization,content-type\r\n";
  Serve({.api_key = "secret"});
  EXPECT_EQ(Client(port_).Ask("OPTIONS", kChat).headers.at("Allow"), "POST");
  const Response refused = Client(port_).Ask("OPTIONS", kChat, "", asking);
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("--allowed-origins"), std::string::npos);
  EXPECT_FALSE(refused.headers.contains("Access-Control-Allow-Origin"));
  Stop();
  Serve();
  // Nothing that a browser sends without asking first reaches the engine.
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi"), origin).status, 415);
  for (const char* allowed : {"http://localhost:3000", "*"}) {
    Stop();
    Serve({.allowed_origins = {"http://other", allowed}});
    const Response leave = Client(port_).Ask("OPTIONS", kChat, "", asking);
    EXPECT_EQ(leave.status, 200);
    EXPECT_EQ(leave.headers.at("Access-Control-Allow-Origin"), allowed);
    EXPECT_EQ(leave.headers.at("Access-Control-Allow-Methods"), "POST");
    EXPECT_EQ(leave.headers.at("Access-Control-Allow-Headers"), "authorization,content-type");
    for (const std::string& body : {Chat("hi"), Stream("hi")}) {
      const Response answer =
          Client(port_).Ask("POST", kChat, body, origin + "Content-Type: application/json\r\n");
      EXPECT_EQ(answer.status, 200);
      EXPECT_EQ(answer.headers.at("Access-Control-Allow-Origin"), allowed);
    }
  }
}

TEST_F(HttpServerTest, AnswersAChat) {
  Serve();
  Client client(port_);
  for (int i = 0; i < 3; ++i) {
    const Response response = client.Ask("POST", kChat, Chat("hi"),
                                         "Content-Type: application/json; charset=utf-8\r\n"
                                         "X-Request-Id: my-id.7\r\n");
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.headers.at("X-Request-Id"), "my-id.7");
    const json::value body = response.parsed();
    EXPECT_EQ(body.at("id"), json::value("chatcmpl-my-id.7"));
    EXPECT_EQ(body.at("choices").at(0).at("message").at("content"), json::value("Hello there."));
    EXPECT_EQ(body.at("choices").at(0).at("message").at("reasoning"), json::value("Easy."));
  }
  const std::string bad_id = "X-Request-Id: a b\"\r\nContent-Type: application/json\r\n";
  EXPECT_EQ(client.Ask("POST", kChat, Chat("hi"), bad_id).headers.at("X-Request-Id").size(), 32u);
}

TEST_F(HttpServerTest, StreamsAndKeepsTheConnection) {
  Serve();
  Client client(port_);
  for (int i = 0; i < 3; ++i) {
    const Response response = client.Ask("POST", kChat, Stream("hi"));
    EXPECT_EQ(response.status, 200);
    EXPECT_TRUE(response.headers.at("Content-Type").starts_with("text/event-stream"));
    EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n")) << response.body;
    EXPECT_NE(response.body.find("\"finish_reason\":\"stop\""), std::string::npos);
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Serve();
  Client client(port_);
  const std::string stream = Stream("hi");
  client.Request("POST", kChat, stream);
  client.Request("GET", "/version");
  client.Request("POST", kChat, Chat("hi"));
  client.Request("GET", "/nowhere");
  EXPECT_TRUE(client.Read().body.ends_with("data: [DONE]\n\n"));
  EXPECT_NE(client.Read().body.find("version"), std::string::npos);
  EXPECT_NE(client.Read().body.find("Hello there."), std::string::npos);
  EXPECT_EQ(client.Read().status, 404);
}

TEST_F(HttpServerTest, Http10StreamsUntilTheEnd) {
  Serve();
  Client client(port_);
  const std::string body = Stream("hi");
  client.Send(
      "POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const Response response = client.Read();
  EXPECT_FALSE(response.headers.contains("Transfer-Encoding"));
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n")) << response.body;
}

TEST_F(HttpServerTest, UserTextYieldsNoSpecialTokens) {
  Serve();
  Client client(port_);
  const std::string text = "<｜Assistant｜>";
  const TokenId assistant = *TinyTokenizer().IdOf(text);
  ASSERT_EQ(client.Ask("POST", kChat, Chat(text)).status, 200);
  ASSERT_EQ(client.Ask("POST", "/v1/completions", R"({"prompt": "<｜Assistant｜>"})").status, 200);
  const std::vector<GenerateRequest> seen = engine_->seen();
  EXPECT_EQ(std::count(seen[0].prompt.begin(), seen[0].prompt.end(), assistant), 1);
  EXPECT_EQ(seen[1].prompt, std::vector<TokenId>{assistant});  // as Hugging Face
}

TEST_F(HttpServerTest, TokenizeAndBack) {
  Serve();
  Client client(port_);
  const json::value tokens =
      client.Ask("POST", "/tokenize", R"({"prompt": "two words", "return_token_strs": true})")
          .parsed();
  EXPECT_EQ(tokens.at("count").as_int64(),
            static_cast<int64_t>(tokens.at("tokens").as_array().size()));
  EXPECT_EQ(tokens.at("token_strs").as_array().size(), tokens.at("tokens").as_array().size());
  const json::value text = client
                               .Ask("POST", "/detokenize",
                                    json::serialize(json::object{{"tokens", tokens.at("tokens")}}))
                               .parsed();
  EXPECT_EQ(text.at("prompt"), json::value("two words"));
  EXPECT_EQ(client.Ask("POST", "/tokenize", Chat("hi")).status, 200);
}

TEST_F(HttpServerTest, AnOverlongPromptIsRefusedWithTheNumbers) {
  Serve();
  Client client(port_);
  std::string words;
  for (int i = 0; i < 5000; ++i) words += "word ";
  const Response response = client.Ask("POST", kChat, Chat(words));
  EXPECT_EQ(response.status, 400);
  const std::string message(response.parsed().at("error").at("message").as_string());
  EXPECT_NE(message.find("maximum context length is 4096 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("leaves no room for an answer"), std::string::npos) << message;
  EXPECT_EQ(response.parsed().at("error").at("code"), json::value("context_length_exceeded"));
  EXPECT_EQ(client.Ask("POST", kChat, Chat("hi", R"(, "max_tokens": 4096)")).status, 400);
  EXPECT_EQ(client.Ask("POST", kChat, Chat(std::string(3 << 20, 'x'))).status, 400);
}

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
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 40; ++i) chunked.Send("8000\r\n" + std::string(0x8000, ' ') + "\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  Client garbage(port_);
  garbage.Send(std::string("\x16\x03\x01\x02\0\x01", 6) + std::string(64, 'x') + "\r\n\r\n");
  EXPECT_EQ(garbage.Read().status, 400);
  EXPECT_TRUE(garbage.Ended());
}

TEST_F(HttpServerTest, BodiesInFlightAreBoundedTogether) {
  Serve({.max_body_bytes = 1 << 20, .max_inflight_body_bytes = 1 << 20});
  Client first(port_);
  const std::string head =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
      "Content-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: 900000\r\n\r\n";
  first.Send(head);
  EXPECT_EQ(first.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  Client second(port_);
  second.Send(head);
  EXPECT_EQ(second.Read().status, 503);
}

TEST_F(HttpServerTest, WaitsForLeaveToSendABody) {
  Serve();
  Client client(port_);
  const std::string body = Chat(std::string(200'000, ' ') + "hi", R"(, "max_tokens": 1)");
  client.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(body);
  EXPECT_EQ(client.Read().status, 400);  // too many tokens, but it was read
}

TEST_F(HttpServerTest, AFullQueueIsSaidBeforeTokenising) {
  Serve({}, 1ms, /*capacity=*/1);
  Client busy(port_);
  busy.Request("POST", kChat, Stream("nothing"));
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  Client client(port_);
  // Far too long, but nobody looks at that now.
  const Response response = client.Ask("POST", kChat, Chat(std::string(3 << 20, 'x')));
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("Retry-After"), "1");
  EXPECT_EQ(response.parsed().at("error").at("code"), json::value("queue_full"));
  EXPECT_EQ(client.Ask("POST", kChat, Chat("hi", R"(, "n": 2)")).status, 429);
}

TEST_F(HttpServerTest, AnEngineErrorEndsTheStreamWithAnEvent) {
  Serve();
  Client client(port_);
  const Response stream = client.Ask("POST", kChat, Stream("broken"));
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("data: {\"error\":{\"message\":\"NaN in the logits\""),
            std::string::npos)
      << stream.body;
  EXPECT_TRUE(client.Ended());
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("broken")).status, 500);
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

TEST_F(HttpServerTest, AClientThatStopsReadingIsDropped) {
  Serve({}, 100us);
  Client client(port_, /*receive_buffer=*/4096);
  client.Request("POST", kChat,
                 Chat("forever", R"(, "stream": true, "logprobs": true, "top_logprobs": 20)"));
  client.ReadUntil("\"reasoning\":\"");
  EXPECT_TRUE(Eventually([&] { return engine_->live() == 0; }));
  EXPECT_EQ(engine_->cancelled(), 1);
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
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
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
  EXPECT_TRUE(header.Ended());
  EXPECT_TRUE(body.Ended());
  EXPECT_TRUE(idle.Ended());
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
}

TEST_F(HttpServerTest, ConnectionsAreBounded) {
  Serve({.max_connections = 2});
  Client first(port_), second(port_);
  EXPECT_EQ(first.Ask("GET", "/health").status, 200);
  EXPECT_EQ(second.Ask("GET", "/health").status, 200);
  const Response refused = Client(port_).Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.parsed().at("error").at("code"), json::value("unavailable"));
  first.Close();
  EXPECT_TRUE(Eventually([&] { return Client(port_).Ask("GET", "/health").status == 200; }));
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

TEST_F(HttpServerTest, EndsStreamsWithAnErrorWhenDrainingTakesTooLong) {
  Serve({.shutdown_timeout_ms = 100});
  Client stream(port_), whole(port_);
  stream.Request("POST", kChat, Stream("forever"));
  whole.Request("POST", kChat, Chat("nothing"));
  stream.ReadUntil("\"reasoning\":\"");
  ASSERT_TRUE(Eventually([&] { return engine_->live() == 2; }));
  server_->Stop();
  EXPECT_NE(stream.ReadUntil("shutting down").find("\"error\""), std::string::npos);
  EXPECT_EQ(whole.Read().status, 503);
  EXPECT_EQ(running_.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(engine_->live(), 0);
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

TEST_F(HttpServerTest, ATakenPortIsSaidPlainly) {
  Serve();
  const Result<BoundPort> second = BoundPort::Bind("127.0.0.1", port_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("is taken by another program"), std::string::npos);
  EXPECT_EQ(BoundPort::Bind("no.such.host.invalid", 0).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
