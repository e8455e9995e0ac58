// What the server answers, over real sockets.
#include "server/http_server.h"

#include <algorithm>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/http_server_fixture.h"

namespace fathom {
namespace {

TEST_F(HttpServerTest, SmallEndpointsOnOneConnection) {
  Serve();
  Client client(port_);
  EXPECT_EQ(client.Ask("GET", "/health").status, 200);
  EXPECT_EQ(client.Ask("GET", "/ping").status, 200);
  EXPECT_EQ(client.Ask("GET", "/version").parsed().at("version"), json::value("1.2.3"));
  EXPECT_EQ(client.Ask("GET", "/version").parsed().at("sources"), json::value("0123abcd"));
  const json::value model = client.Ask("GET", "/v1/models").parsed().at("data").at(0);
  EXPECT_EQ(model.at("id"), json::value("tiny"));
  EXPECT_EQ(model.at("max_model_len"), json::value(4096));
  EXPECT_EQ(client.Ask("GET", "/v1/models/tiny").status, 200);
  EXPECT_EQ(client.Ask("GET", "/v1/models/org%2Ftiny%202%").parsed().at("id"), "org/tiny 2%");
  EXPECT_EQ(client.Ask("GET", "/v1/models/other").status, 404);
  const Response metrics = client.Ask("GET", "/metrics?x=1");
  EXPECT_NE(metrics.body.find("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25"),
            std::string::npos);
  EXPECT_NE(metrics.body.find("vllm:num_preemptions_total{engine=\"0\",model_name=\"tiny\"} 3"),
            std::string::npos);
  client.Send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
  for (const char* type :
       {"", "Content-Type: text/plain\r\n", "Content-Type: application/json\r\n"}) {
    EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("hi"), origin + type).status, 403);
  }
  EXPECT_EQ(Client(port_).Ask("GET", "/health", "", origin).status, 200);
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

// A page whose name was made to lead here (DNS rebinding).
TEST_F(HttpServerTest, AnswersToNamesOfThisMachine) {
  const auto ask = [&](const std::string& host, const char* path = "/v1/models") {
    Client client(port_);
    client.Send(std::string("GET ") + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.Read().status;
  };
  Serve({.allowed_hosts = {"models.example.com"}});
  for (const char* host : {"localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.1.2.3", "[::1]:8000",
                           "a.localhost", "models.example.com:443", "Models.Example.COM"}) {
    EXPECT_EQ(ask(host), 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                           "localhost.evil.example", "[::2]", "10.0.0.1", "x@localhost.com"}) {
    EXPECT_EQ(ask(host), 403) << host;
    EXPECT_EQ(ask(host, "/metrics"), 403) << host;
  }
}

TEST_F(HttpServerTest, ReadsHttpAsItIsWritten) {
  Serve({.api_key = "secret"});
  const auto status = [&](const std::string& text) {
    Client client(port_);
    client.Send(text);
    return client.Read().status;
  };
  const std::string host = "Host: localhost\r\n";
  EXPECT_EQ(status("GET http://localhost/version?x HTTP/1.1\r\n" + host + "\r\n"), 200);
  EXPECT_EQ(status("GET HTTP://localhost:8000/version HTTP/1.1\r\n" + host + "\r\n"), 200);
  EXPECT_EQ(status("GET http://evil.example/version HTTP/1.1\r\n" + host + "\r\n"), 403);
  EXPECT_EQ(status("GET /version HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /version HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status("GET /version HTTP/1.1\r\n" + host + host + "\r\n"), 400);
  const std::string origin = "Origin: http://localhost\r\n";
  EXPECT_EQ(status("GET /version HTTP/1.1\r\n" + host + origin + "\r\n"), 200);
  EXPECT_EQ(status("GET /version HTTP/1.1\r\n" + host + origin + origin + "\r\n"), 400);
  EXPECT_EQ(status("\r\n\r\nGET /version HTTP/1.1\r\n" + host + "\r\n"), 200);
  for (const char* key :
       {"Authorization: bearer secret", "Authorization: BEARER  secret", "X-Api-Key: secret"}) {
    EXPECT_EQ(status("GET /v1/models HTTP/1.1\r\n" + host + key + "\r\n\r\n"), 200) << key;
  }
  for (const char* key : {"Authorization: Bearer", "Authorization: Bearer secre", "X-Api-Key:",
                          "Authorization: Basic secret", "Authorization: Bearersecret"}) {
    EXPECT_EQ(status("GET /v1/models HTTP/1.1\r\n" + host + key + "\r\n\r\n"), 401) << key;
  }
  const std::string body = Chat("hi");
  const std::string post = "POST /v1/chat/completions HTTP/1.1\r\n" + host +
                           "Authorization: Bearer secret\r\nContent-Type: Application/JSON\r\n" +
                           fmt::format("Content-Length: {}\r\n", body.size());
  EXPECT_EQ(status(post + "\r\n" + body), 200);
  Client client(port_);
  client.Send(post + "Expect: 100-Continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(body);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerTest, NamesThatAreNoUtf8AreNotRepeated) {
  Serve();
  const Response response = Client(port_).Ask("GET", "/v1/models/a%FF%C3%28%ED%A0%80z");
  EXPECT_EQ(response.status, 404);
  json::error_code error;
  json::parse(response.body, error);
  EXPECT_FALSE(error) << error.message();
  EXPECT_NE(response.body.find("a?"
                               "?(???z"),
            std::string::npos)
      << response.body;
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
  // A prompt that fills the context to its last token.
  std::string ids = "5";
  for (int i = 1; i < 4096; ++i) ids += ",5";
  const Response full = client.Ask("POST", "/v1/completions",
                                   fmt::format(R"({{"prompt": [{}], "max_tokens": 1}})", ids));
  EXPECT_EQ(full.parsed().at("error").at("code"), json::value("context_length_exceeded"));
  EXPECT_EQ(client.Ask("POST", kChat, Chat("hi", R"(, "max_tokens": 4097)")).status, 400);
  EXPECT_EQ(client.Ask("POST", kChat, Chat(std::string(3 << 20, 'x'))).status, 400);
}

TEST_F(HttpServerTest, ThePrefixCacheIsReset) {
  Serve();
  Client client(port_);
  EXPECT_EQ(client.Ask("POST", "/reset_prefix_cache").status, 200);
  EXPECT_EQ(engine_->resets(), 1);
  EXPECT_EQ(client.Ask("GET", "/reset_prefix_cache").status, 405);
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

TEST(RequestStream, SubmitsAllOrNone) {
  EngineOutputs outputs;
  FakeEngine engine(
      outputs, [](const GenerateRequest&) { return Script{.starts = false}; }, 1ms, /*capacity=*/2);
  RequestStream stream(outputs, engine, [] {});
  EXPECT_EQ(stream.Submit(std::vector<GenerateRequest>(3)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(engine.live(), 0);
  EXPECT_EQ(engine.cancelled(), 2);
}

TEST_F(HttpServerTest, AnAnswerMayBeAsLongAsTheContextAndNoMore) {
  Serve();
  Client client(port_);
  const auto status = [&](int max_tokens) {
    const std::string body = fmt::format(R"({{"prompt": [5, 6], "max_tokens": {}}})", max_tokens);
    return client.Ask("POST", "/v1/completions", body).status;
  };
  EXPECT_EQ(status(4094), 200);
  EXPECT_EQ(status(4095), 200);  // cut to the room that is left, as vLLM does
  EXPECT_EQ(status(4097), 400);
}

TEST(ErrorResponses, SayWhenToTryAgain) {
  for (const Status& status :
       {ResourceExhausted("full"), Unavailable("ending"), Cancelled("gone")}) {
    const HttpResponse response = ErrorResponse(EngineError(status));
    EXPECT_TRUE(response.status == 429 || response.status == 503);
    EXPECT_EQ(std::count(response.headers.begin(), response.headers.end(),
                         std::pair<std::string, std::string>("Retry-After", "1")),
              1);
  }
  EXPECT_TRUE(ErrorResponse({400, "no"}).headers.empty());
}

TEST_F(HttpServerTest, AnEngineErrorEndsTheStreamWithAnEvent) {
  Serve();
  Client client(port_);
  const Response stream = client.Ask("POST", kChat, Stream("broken"));
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("data: {\"error\":{\"message\":\"NaN in the logits\""),
            std::string::npos)
      << stream.body;
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n")) << stream.body;
  EXPECT_TRUE(client.Ended());
  EXPECT_EQ(Client(port_).Ask("POST", kChat, Chat("broken")).status, 500);
}

// It was ready until the end of the server had begun, which is after the end of the requests.
TEST_F(HttpServerTest, IsNotReadyOnceItsEngineHasFailed) {
  Serve();
  EXPECT_EQ(Client(port_).Ask("GET", "/health").status, 200);
  engine_->FailFromNowOn();
  const Response failed = Client(port_).Ask("GET", "/health");
  EXPECT_EQ(failed.status, 503);
  EXPECT_EQ(failed.headers.at("Connection"), "close");
  EXPECT_EQ(Client(port_).Ask("GET", "/live").status, 200);
}

TEST_F(HttpServerTest, ATakenPortIsSaidPlainly) {
  Serve();
  const Result<BoundSocket> second = BoundSocket::Port("127.0.0.1", port_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("is taken by another program"), std::string::npos);
  EXPECT_EQ(BoundSocket::Port("no.such.host.invalid", 0).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
