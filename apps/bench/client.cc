#include "client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "event_stream.h"

namespace fathom {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace json = boost::json;
using boost::system::error_code;

namespace {

constexpr size_t kMaxErrorBytes = 4096;  // of a refusal's body
constexpr size_t kMaxMetricsBytes = size_t{4} << 20;
constexpr uint64_t kMaxStreamBytes = uint64_t{1} << 30;
constexpr size_t kReadBytes = size_t{64} << 10;

std::string Text(const json::value& value) {
  const json::string* text = value.if_string();
  return text == nullptr ? json::serialize(value) : std::string(text->data(), text->size());
}

std::string ErrorMessage(const json::object& reply) {
  const json::value* error = reply.if_contains("error");
  if (error == nullptr) error = reply.if_contains("detail");
  if (error == nullptr) return json::serialize(reply);
  const json::object* fields = error->if_object();
  const json::value* message = fields == nullptr ? nullptr : fields->if_contains("message");
  return Text(message == nullptr ? *error : *message);
}

// Whether a choice of a chunk brings something that was generated.
bool HasText(const json::object& choice) {
  const auto filled = [](const json::object& fields, const char* name) {
    const json::value* value = fields.if_contains(name);
    return value != nullptr && ((value->is_string() && !value->get_string().empty()) ||
                                (value->is_array() && !value->get_array().empty()));
  };
  if (filled(choice, "text")) return true;
  const json::value* delta = choice.if_contains("delta");
  if (delta == nullptr || !delta->is_object()) return false;
  for (const char* name : {"content", "reasoning_content", "reasoning", "tool_calls"}) {
    if (filled(delta->get_object(), name)) return true;
  }
  return false;
}

int32_t Count(const json::object& usage, const char* name) {
  const json::value* value = usage.if_contains(name);
  const int64_t* count = value == nullptr ? nullptr : value->if_int64();
  return count == nullptr ? 0 : static_cast<int32_t>(*count);
}

// What {"prompt_tokens_details": {"cached_tokens": n}} says.
std::optional<int32_t> Cached(const json::object& usage) {
  const json::value* details = usage.if_contains("prompt_tokens_details");
  const json::object* fields = details == nullptr ? nullptr : details->if_object();
  if (fields == nullptr || !fields->contains("cached_tokens")) return std::nullopt;
  return Count(*fields, "cached_tokens");
}

// A chat's answer, without its reasoning: what a next turn would send back.
std::string_view Content(const json::object& choice) {
  const json::value* delta = choice.if_contains("delta");
  const json::object* fields = delta == nullptr ? nullptr : delta->if_object();
  const json::value* content = fields == nullptr ? nullptr : fields->if_contains("content");
  const json::string* text = content == nullptr ? nullptr : content->if_string();
  return text == nullptr ? std::string_view() : std::string_view(*text);
}

// Turns a stream's events into a record.
class AnswerReader {
 public:
  explicit AnswerReader(RequestRecord& record) : record_(record) {}

  void OnEvent(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    error_code error;
    const json::value value = json::parse(data, error);
    if (error || !value.is_object()) return Fail("an event that is not a JSON object");
    const json::object& chunk = value.get_object();
    if (chunk.contains("error")) return Fail("an error event: " + ErrorMessage(chunk));
    if (const json::value* choices = chunk.if_contains("choices"); choices && choices->is_array()) {
      for (const json::value& choice : choices->get_array()) {
        if (choice.is_object()) OnChoice(choice.get_object());
      }
    }
    if (const json::value* usage = chunk.if_contains("usage"); usage && usage->is_object()) {
      record_.prompt_tokens = Count(usage->get_object(), "prompt_tokens");
      record_.output_tokens = Count(usage->get_object(), "completion_tokens");
      record_.cached_tokens = Cached(usage->get_object());
      counted_ = true;
    }
  }

  // At the end of the body.
  void Finish() {
    record_.last_s = SecondsNow();
    if (!finished_ && !done_) return Fail("the stream ended before its answer");
    if (!counted_) record_.output_tokens = texts_;
    // Tokens that are no text yet, or none at all.
    if (texts_ == 0) record_.first_s = finish_s_;
  }

  void Fail(std::string error) {
    if (record_.error.empty()) record_.error = std::move(error);
  }

 private:
  void OnChoice(const json::object& choice) {
    const double now = SecondsNow();
    record_.content += Content(choice);
    if (HasText(choice)) {
      if (texts_++ == 0) {
        record_.first_s = now;
      } else {
        record_.inter_token_s.push_back(static_cast<float>(now - latest_s_));
      }
      latest_s_ = now;
    }
    const json::value* reason = choice.if_contains("finish_reason");
    if (reason == nullptr || reason->is_null()) return;
    finished_ = true;
    finish_s_ = now;
  }

  RequestRecord& record_;
  double latest_s_ = 0, finish_s_ = 0;
  int32_t texts_ = 0;
  bool finished_ = false, done_ = false, counted_ = false;
};

}  // namespace

std::string ErrorMessage(const std::string& body) {
  error_code error;
  const json::value reply = json::parse(body, error);
  return error || !reply.is_object() ? body : ErrorMessage(reply.as_object());
}

Result<Target> Target::Parse(const std::string& base_url) {
  constexpr std::string_view kScheme = "http://";
  if (!base_url.starts_with(kScheme)) {
    return InvalidArgument("{}: it must begin with http:// (https is not supported)", base_url);
  }
  Target target;
  std::string_view rest = std::string_view(base_url).substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  target.prefix = rest.substr(slash);
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  // OpenAI's clients count it to the base; here it is of --endpoint.
  if (target.prefix.ends_with("/v1")) target.prefix.erase(target.prefix.size() - 3);
  rest = rest.substr(0, slash);
  const size_t bracket = rest.rfind(']');  // of an IPv6 address
  const size_t colon = rest.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  target.port = has_port ? rest.substr(colon + 1) : std::string_view("80");
  target.host = has_port ? rest.substr(0, colon) : rest;
  if (target.host.starts_with('[') && target.host.ends_with(']')) {
    target.host = target.host.substr(1, target.host.size() - 2);
  }
  if (target.host.empty() || target.port.empty()) {
    return InvalidArgument("{}: it is not http://HOST:PORT", base_url);
  }
  return target;
}

Result<Target> Target::Resolve(const std::string& base_url, const std::string& api_key,
                               double timeout_s) {
  Target target = TRY(Parse(base_url));
  target.api_key = api_key;
  target.timeout_ms = static_cast<int>(timeout_s * 1000);
  asio::io_context io;
  error_code error;
  target.addresses = asio::ip::tcp::resolver(io).resolve(target.host, target.port, error);
  if (error) return Unavailable("{}: {}", base_url, error.message());
  return target;
}

std::string BenchClient::Head(std::string_view method, const std::string& path,
                              size_t body_bytes) const {
  const bool ipv6 = target_.host.find(':') != std::string::npos;
  return fmt::format(
      "{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\nAccept: */*\r\nConnection: close\r\n{}"
      "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
      method, target_.prefix, path, ipv6 ? "[" : "", target_.host, ipv6 ? "]" : "", target_.port,
      target_.api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", target_.api_key),
      body_bytes);
}

// A connection each: what is left of an earlier answer cannot disturb the next one.
asio::awaitable<BenchClient::Reply> BenchClient::Exchange(const std::string& request,
                                                          const OnBody& on_body) {
  Reply reply;
  error_code error;
  const auto executor = co_await asio::this_coro::executor;
  beast::tcp_stream stream(executor);
  stream.expires_after(std::chrono::milliseconds(target_.timeout_ms));
  for (const auto& entry : target_.addresses) {
    const asio::ip::tcp::endpoint endpoint = entry.endpoint();
    stream.close();  // after an address that did not answer
    co_await stream.async_connect(endpoint, asio::redirect_error(asio::use_awaitable, error));
    if (!error) break;
  }
  if (error) {
    reply.error =
        fmt::format("cannot connect to {}:{}: {}", target_.host, target_.port, error.message());
    co_return reply;
  }
  error_code ignored;
  stream.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto bytes = asio::buffer(request);
  co_await asio::async_write(stream, bytes, asio::redirect_error(asio::use_awaitable, error));
  beast::flat_buffer buffer(kReadBytes);
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(kMaxStreamBytes);
  if (!error) {
    co_await http::async_read_header(stream, buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
  }
  reply.status = error ? 0 : static_cast<int>(parser.get().result_int());
  std::array<char, 16384> piece;
  while (!error && !parser.is_done()) {
    auto& body = parser.get().body();
    body.data = piece.data();
    body.size = piece.size();
    co_await http::async_read_some(stream, buffer, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
    if (error == http::error::need_buffer) error = {};
    const size_t got = piece.size() - body.size;
    if (got > 0 && !on_body(reply.status, {piece.data(), got})) co_return reply;
  }
  if (error == beast::error::timeout) {
    reply.error =
        fmt::format("no complete answer within {:.0f} s (--timeout)", target_.timeout_ms / 1e3);
  } else if (error) {
    reply.error = "the connection broke: " + error.message();
  }
  co_return reply;
}

asio::awaitable<RequestRecord> BenchClient::Generate(const std::string& path,
                                                     const RequestSource::Prepared& request) {
  RequestRecord record;
  record.wanted_tokens = request.max_tokens;
  AnswerReader answer(record);
  EventStream events;
  std::string refusal;
  const std::string text = Head("POST", path, request.body.size()) + request.body;
  const OnBody on_body = [&](int status, std::string_view bytes) {
    if (status != 200) {
      refusal.append(bytes.substr(0, kMaxErrorBytes - refusal.size()));
      return refusal.size() < kMaxErrorBytes;
    }
    const bool fits = events.Push(bytes, [&](std::string_view data) { answer.OnEvent(data); });
    if (!fits) answer.Fail("an event that is too long");
    return fits && record.ok();
  };
  record.sent_s = SecondsNow();
  const Reply reply = co_await Exchange(text, on_body);
  if (!reply.error.empty()) {
    answer.Fail(reply.error);
  } else if (reply.status != 200) {
    answer.Fail(fmt::format("HTTP {}: {}", reply.status, ErrorMessage(refusal)));
  }
  answer.Finish();
  co_return record;
}

asio::awaitable<Result<HttpReply>> BenchClient::Fetch(const HttpRequest& request) {
  HttpReply reply;
  bool fits = true;
  const std::string_view method = request.body.empty() ? "GET" : "POST";
  const std::string text = Head(method, request.path, request.body.size()) + request.body;
  const OnBody on_body = [&](int, std::string_view bytes) {
    fits = reply.body.size() + bytes.size() <= request.max_bytes;
    if (fits) reply.body += bytes;
    return fits;
  };
  const Reply end = co_await Exchange(text, on_body);
  if (!fits) {
    co_return Unavailable("{} {}: an answer of more than {} bytes", method, request.path,
                          request.max_bytes);
  }
  if (!end.error.empty()) co_return Unavailable("{} {}: {}", method, request.path, end.error);
  reply.status = end.status;
  co_return reply;
}

Result<HttpReply> Fetch(const Target& target, const HttpRequest& request) {
  asio::io_context io;
  BenchClient client(target);
  Result<HttpReply> reply = Internal("no reply");
  const auto fetch = [&]() -> asio::awaitable<void> { reply = co_await client.Fetch(request); };
  asio::co_spawn(io, fetch, asio::detached);
  io.run();
  return reply;
}

std::optional<DraftCounts> FetchDraftCounts(const Target& target) {
  const HttpRequest request = {.path = "/metrics", .body = "", .max_bytes = kMaxMetricsBytes};
  const Result<HttpReply> reply = Fetch(target, request);
  if (!reply.ok() || reply->status != 200) return std::nullopt;
  return ReadDraftCounts(reply->body);
}

}  // namespace fathom
