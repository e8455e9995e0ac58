// The page to talk on, and who it may ask.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "server/access.h"
#include "server/http_server_fixture.h"

namespace fathom {
namespace {

class HttpWebPageTest : public HttpServerTest {};

TEST_F(HttpWebPageTest, IsOneFileThatRunsNothingElse) {
  Serve({.api_key = "secret"});
  const Response page = Client(port_).Ask("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.body.ends_with("</html>\n"));
  const std::string policy = page.headers.at("Content-Security-Policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'sha256-"));
  EXPECT_EQ(policy.find("unsafe"), policy.npos);
  EXPECT_EQ(policy.find("http"), policy.npos);
}

TEST_F(HttpWebPageTest, IsNotSentAgain) {
  Serve();
  const Response page = Client(port_).Ask("GET", "/");
  const std::string tag = page.headers.at("ETag");
  const auto known = [&](const std::string& tags) {
    return Client(port_).Ask("GET", "/", "", "If-None-Match: " + tags + "\r\n").status;
  };
  EXPECT_EQ(known(tag), 304);
  EXPECT_EQ(known("\"other\", W/" + tag), 304);
  EXPECT_EQ(known("\"other\""), 200);
}

TEST_F(HttpWebPageTest, CanBeLeftOut) {
  Serve({.webui = false});
  EXPECT_EQ(Client(port_).Ask("GET", "/").status, 404);
}

TEST_F(HttpWebPageTest, NeedsAKeyIfTheFlagSaysSo) {
  Serve({.api_key = "secret", .open_routes = std::vector<std::string>{"/health"}});
  EXPECT_EQ(Client(port_).Ask("GET", "/").status, 401);
}

// What a POST of a page of `origin` to the server that it calls `host` is answered; 200: nothing is
// against it.
int AskedFrom(const std::string& origin, const std::string& host, const ServerOptions& options = {},
              const std::string& key = "") {
  const std::unique_ptr<Access> access = Access::Make(options).value();
  HttpRequest head{.method = "POST",
                   .path = "/v1/chat/completions",
                   .content_type = "application/json",
                   .authorization = "Bearer " + key,
                   .host = host,
                   .origin = origin,
                   .address = "10.0.0.9"};
  const std::optional<HttpResponse> refused = access->CheckHead(head);
  return refused ? refused->status : 200;
}

TEST(WebPageAccess, ItsOwnPageMayAsk) {
  EXPECT_EQ(AskedFrom("http://10.0.0.7:8000", "10.0.0.7:8000"), 200);
  EXPECT_EQ(AskedFrom("http://[fd00::7]:8000", "[fd00::7]:8000"), 200);
  EXPECT_EQ(AskedFrom("http://LOCALHOST:8000", "localhost:8000"), 200);
  EXPECT_EQ(
      AskedFrom("https://models.example", "models.example", {.allowed_hosts = {"models.example"}}),
      200);
  EXPECT_EQ(AskedFrom("http://gpu:8000", "gpu:8000", {.api_key = "secret"}, "secret"), 200);
}

TEST(WebPageAccess, AnothersMayNot) {
  EXPECT_EQ(AskedFrom("http://evil.example", "10.0.0.7:8000"), 403);
  EXPECT_EQ(AskedFrom("http://10.0.0.7:9000", "10.0.0.7:8000"), 403);
  EXPECT_EQ(AskedFrom("null", "10.0.0.7:8000"), 403);
  EXPECT_EQ(AskedFrom("http://10.0.0.7:8000", "10.0.0.7:8000", {.webui = false}), 403);
}

// A name that its owner has lead here.
TEST(WebPageAccess, ANameThatNobodyGaveMayNotWithoutAKey) {
  const std::string evil = "evil.example:8000";
  EXPECT_EQ(AskedFrom("http://" + evil, evil), 403);
  EXPECT_EQ(AskedFrom("http://" + evil, evil, {.allowed_hosts = {"*"}}), 403);
  EXPECT_EQ(AskedFrom("http://" + evil, evil, {.api_key = "secret"}), 401);
}

}  // namespace
}  // namespace fathom
