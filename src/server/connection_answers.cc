// How an exchange ends: its answer, its line in the log, its place in the metrics.
#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "base/log_event.h"
#include "base/printable.h"
#include "server/connection.h"
#include "server/http_wire.h"
#include "server/messages_request.h"

namespace fathom {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kLoggedBytes = 96;                // of a method or a path
constexpr size_t kJoinedBytes = size_t{16} << 10;  // of an answer that is sent with its head
constexpr int kLingerMs = 2'000;

// For a line of the log: what did not arrive.
std::string OrDash(std::string text) {
  return text.empty() ? "-" : text;
}

}  // namespace

// The end of a request whose client went away.
bool Connection::Left(Exchange& exchange) {
  Log(exchange, 499);  // nginx's number for it
  client_->Drop();
  return false;
}

// Until then, or the server stops, the client leaves, or somebody else wants the connection's
// place.
asio::awaitable<void> Connection::HoldBack(Exchange& exchange, int64_t ms) {
  if (ms <= 0) co_return;
  idle_since_ms_ = context_.clock.NowNs() / 1'000'000;
  asio::steady_timer due(client_->socket().get_executor(), std::chrono::milliseconds(ms));
  due.async_wait([client = client_](error_code error) {
    if (!error) client->Notify();
  });
  client_->StartWatch();
  while (due.expiry() > std::chrono::steady_clock::now() && !client_->gone() && !ending_) {
    if (client_->half_closed() && !std::exchange(exchange.probed, true)) client_->Send(kProtocol);
    co_await client_->Changed();
  }
  EndIdle();
  co_await client_->Flushed();  // or the end of the watch would break the probe off
  co_await client_->StopWatch();
}

// `wanted` by value: the body is sent from where it is.
asio::awaitable<bool> Connection::Respond(Exchange& exchange, HttpResponse wanted) {
  HttpResponse response = std::move(wanted);
  if (response.status == 429 && exchange.request.client) {
    const int64_t ms = exchange.request.client->HoldRefusalMs(context_.options.refusal_gap_ms,
                                                              context_.options.refusal_delay_ms);
    co_await HoldBack(exchange, ms);
    if (client_->gone()) co_return Left(exchange);
  }
  if (const Status room = exchange.claim.Grow(response.body.size()); !room.ok()) {
    response = Refusal(exchange.request, EngineError(room));
  }
  const size_t size = response.shared ? response.shared->size() : response.body.size();
  const bool keep_alive = exchange.keep_alive && !exchange.unread && !ending_ &&
                          context_.state != ServerState::kDraining;
  std::string head = fmt::format(
      "{}{} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Request-Id: {}\r\n"
      "Connection: {}\r\n",
      exchange.probed ? "" : kProtocol, response.status, Reason(response.status),
      response.content_type, size, exchange.request.id, keep_alive ? "keep-alive" : "close");
  head += HeaderLines(response.headers);
  head += ExtraHeaders(exchange.request) + "\r\n";
  const int status = response.status;
  if (exchange.head_only || status == 304) response.body = {}, response.shared = nullptr;
  if (response.shared) {
    client_->Send(std::move(head));
    client_->SendShared(std::move(response.shared));
  } else if (response.body.size() < kJoinedBytes) {
    client_->Send(head + response.body);
  } else {
    client_->Send(std::move(head));
    client_->Send(std::move(response.body));
  }
  Log(exchange, status);
  co_await client_->FlushedInTime();
  if (!keep_alive && exchange.unread && !client_->gone()) co_await client_->Linger(kLingerMs);
  co_return keep_alive && !client_->gone();
}

std::string Connection::ExtraHeaders(const HttpRequest& request) const {
  const std::string cors = HeaderLines(context_.access.cors().Headers(request.origin));
  return request.client ? cors + HeaderLines(request.client->Headers()) : cors;
}

// Of every exchange once, at its end: log and metrics.
void Connection::Log(const Exchange& exchange, int status) {
  const HttpRequest& request = exchange.request;
  const std::string_view route = RouteName(request.path);
  const bool known = request.method == "GET" || request.method == "POST";
  const std::string key = request.client ? request.client->key_name() : "";
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - exchange.began;
  context_.metrics.OnHttp(known ? request.method : "other", route, status, took.count() / 1000);
  if (!key.empty()) context_.metrics.OnKey(key, status, exchange.usage);
  std::string line =
      fmt::format("{} {} {} {} {:.1f} ms, {} prompt + {} generated tokens, id {}", client_->peer(),
                  OrDash(Printable(request.method, kLoggedBytes)),
                  OrDash(Printable(request.path, kLoggedBytes)), status, took.count(),
                  exchange.usage.prompt_tokens, exchange.usage.completion_tokens, request.id);
  if (!key.empty()) line += fmt::format(", key {}", key);
  const std::string& failure = exchange.failure;
  if (!failure.empty()) line += fmt::format(", ended by an error: {}", failure);
  const LogField fields[] = {{"client", client_->peer()},
                             {"method", Printable(request.method, kLoggedBytes)},
                             {"path", Printable(request.path, kLoggedBytes)},
                             {"status", int64_t{status}},
                             {"ms", took.count()},
                             {"prompt_tokens", exchange.usage.prompt_tokens},
                             {"generated_tokens", exchange.usage.completion_tokens},
                             {"id", request.id},
                             {"key", key},
                             {"error", failure}};
  LogEvent(IsAboutServer(route) ? LogLevel::kDebug : LogLevel::kInfo, line, fields);
}

}  // namespace fathom
