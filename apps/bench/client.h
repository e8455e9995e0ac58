// A client of OpenAI-compatible servers that times what it is streamed.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "draft_counts.h"
#include "source.h"
#include "summary.h"

namespace fathom {

// A server, as --base-url names it.
struct Target {
  std::string host, port;
  std::string prefix;  // of every path: "" or "/something", without "/v1"
  std::string api_key;
  int timeout_ms = 0;  // of a whole request
  boost::asio::ip::tcp::resolver::results_type addresses;

  // "http://host[:port][/prefix][/v1]"; does not resolve the host. Errors do not name the flag.
  static Result<Target> Parse(const std::string& base_url);
  // And resolves it.
  static Result<Target> Resolve(const std::string& base_url, const std::string& api_key,
                                double timeout_s);
};

struct HttpReply {
  int status = 0;
  std::string body;
};

// GET, or POST of a JSON body, and waits for the whole reply. kUnavailable if none came within the
// target's timeout, or one of more than `max_bytes`.
struct HttpRequest {
  std::string path;
  std::string body;  // empty: GET
  size_t max_bytes = size_t{1} << 20;
};
Result<HttpReply> Fetch(const Target& target, const HttpRequest& request);

// What the server's /metrics count of drafts; nothing if it has none.
std::optional<DraftCounts> FetchDraftCounts(const Target& target);

// What the body of a refusal says: {"error": {"message": ...}}, or what else a server may say.
std::string ErrorMessage(const std::string& body);

// Coroutines run on one thread. Targets outlive them.
class BenchClient {
 public:
  explicit BenchClient(const Target& target) : target_(target) {}

  // Posts a request and follows its stream to the end. Never fails: the record says what did.
  // Arguments live until then. (Named locals, not temporaries: GCC 12 destroys some of those
  // twice.)
  boost::asio::awaitable<RequestRecord> Generate(const std::string& path,
                                                 const RequestSource::Prepared& request);
  boost::asio::awaitable<Result<HttpReply>> Fetch(const HttpRequest& request);

 private:
  struct Reply {
    int status = 0;
    std::string error;  // of the connection; empty if the reply is whole
  };
  using OnBody = std::function<bool(int status, std::string_view bytes)>;
  // Calls on_body with the pieces of a reply's body as they come, until it returns false.
  boost::asio::awaitable<Reply> Exchange(const std::string& request, const OnBody& on_body);
  std::string Head(std::string_view method, const std::string& path, size_t body_bytes) const;

  const Target& target_;
};

}  // namespace fathom
