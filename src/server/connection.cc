#include "server/connection.h"

#include <malloc.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/log_event.h"
#include "base/printable.h"
#include "server/http_wire.h"
#include "server/json_body.h"
#include "server/request_reader.h"

namespace fathom {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kReadAheadBytes = size_t{64} << 10;  // of pipelined requests
constexpr size_t kLoggedBytes = 96;                   // of a method or a path
constexpr size_t kJoinedBytes = size_t{16} << 10;     // of an answer that is sent with its head
constexpr size_t kInlineAnswer = size_t{64} << 10;    // JSON to build; more is a worker's
constexpr int kLingerMs = 2'000;
constexpr int kEndMs = 1'000;                      // for a client to agree that TLS ends
constexpr size_t kTrimmedBytes = size_t{8} << 20;  // memory of a request that the C library keeps

int64_t NowMs() {
  return SteadyClock().NowNs() / 1'000'000;
}

// Roughly the bytes of JSON that outputs make.
size_t SizeOf(const std::vector<std::pair<size_t, RequestOutput>>& outputs) {
  constexpr size_t kBytesPerLogprob = 32;
  size_t entries = 0;
  for (const auto& [index, output] : outputs) {
    for (const TokenLogprobs& logprobs : output.prompt_logprobs) entries += 1 + logprobs.top.size();
    for (const GeneratedToken& token : output.tokens) {
      entries += token.logprobs ? 1 + token.logprobs->top.size() : 1;
    }
  }
  return kBytesPerLogprob * entries;
}

}  // namespace

Connection::Connection(ClientSocket::Socket socket, std::shared_ptr<Tls::Context> tls,
                       ConnectionContext& context, bool reserved)
    : context_(context),
      reserved_(reserved),
      client_(std::make_shared<ClientSocket>(
          std::move(socket),
          ClientSocket::Limits{.max_ahead = kReadAheadBytes + context.options.max_header_bytes,
                               .send_timeout_ms = context.options.send_timeout_ms},
          std::move(tls))) {}

void Connection::Start(std::function<void()> done) {
  asio::co_spawn(
      client_->socket().get_executor(), [self = shared_from_this()] { return self->Serve(); },
      [self = shared_from_this(), done = std::move(done)](const std::exception_ptr& failure) {
        if (failure) LOG_ERROR("{} the connection ended by an exception", self->client_->peer());
        self->client_->Drop();
        done();
      });
}

void Connection::EndIfIdle() {
  asio::post(client_->socket().get_executor(), [self = shared_from_this()] {
    error_code ignored;
    self->ending_ = true;  // a request that came meanwhile is its last
    if (self->idle_) self->client_->socket().cancel(ignored);
  });
}

void Connection::Abort() {
  asio::post(client_->socket().get_executor(), [self = shared_from_this()] {
    self->aborting_ = true;
    self->client_->Notify();
  });
}

asio::awaitable<void> Connection::Serve() {
  bool more = co_await Handshake();
  while (more && !ending_) more = co_await ServeOne();
  co_await client_->End(kEndMs);
}

// A connection gives way to others as long as it has asked nothing.
asio::awaitable<bool> Connection::Handshake() {
  BeginIdle();
  const bool agreed = co_await client_->Handshake(context_.options.header_timeout_ms);
  EndIdle();
  co_return agreed;
}

void Connection::BeginIdle() {
  idle_ = true;
  idle_since_ms_ = NowMs();
}

void Connection::EndIdle() {
  idle_ = false;
  idle_since_ms_ = kBusy;
}

asio::awaitable<bool> Connection::WaitForRequest() {
  if (client_->buffer().size() > 0) co_return true;
  if (context_.state == ServerState::kDraining && !fresh_) co_return false;
  client_->SetReadDeadline(fresh_ ? context_.options.header_timeout_ms
                                  : context_.options.idle_timeout_ms);
  BeginIdle();
  const bool readable = co_await client_->Readable();
  EndIdle();
  fresh_ = false;
  co_return readable;
}

asio::awaitable<bool> Connection::ServeOne() {
  if (!co_await WaitForRequest()) co_return false;
  Exchange exchange(context_.options, context_.memory);
  // Locals, not temporaries, on both sides of a co_await: GCC 12 destroys some of those twice.
  ReadEnd read = co_await ReadHead(*client_, context_.options, exchange);
  if (read.gone) co_return false;
  if (!read.refusal) read.refusal = CheckHead(exchange);
  // Only a POST has a body that anybody wants; the connection ends after another's.
  if (!read.refusal && exchange.request.method == "POST") {
    read = co_await ReadBody(*client_, context_.options, exchange);
    if (read.gone) co_return false;
  }
  if (read.refusal) co_return co_await Respond(exchange, std::move(*read.refusal));
  co_return co_await Handle(exchange);
}

std::optional<HttpResponse> Connection::CheckHead(Exchange& exchange) const {
  // One that is stopped before it has a model has nothing to answer with either.
  const ServerState state = context_.api == nullptr ? ServerState::kLoading : context_.state.load();
  exchange.keep_alive = exchange.parser.keep_alive() && state == ServerState::kReady;
  const std::optional<ApiError> bad = BadHead(exchange.parser.get());
  exchange.unread = bad || !exchange.parser.is_done();
  if (bad) return ErrorResponse(*bad);
  if (reserved_ || ending_) exchange.keep_alive = false;
  if (auto answer = AnswerOfState(state, exchange.request.path)) return answer;
  if (reserved_ && !IsAboutServer(exchange.request.path)) {
    return ErrorResponse(EngineError(Unavailable("Too many connections: try again in a moment.")));
  }
  exchange.request.address = client_->address();
  return context_.access.CheckHead(exchange.request);
}

asio::awaitable<bool> Connection::Refuse(Exchange& exchange, const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  co_return co_await Respond(exchange, std::move(response));
}

// Does `work` on a worker. It is interrupted when the client leaves, the server stops, or the time
// for it is over.
template <class Work>
asio::awaitable<std::optional<ApiError>> Connection::OnWorker(size_t bytes, Work work) {
  Interrupt interrupt(std::chrono::milliseconds(context_.options.work_timeout_ms),
                      &context_.stopping);
  bool done = false;
  std::optional<ApiError> failure;
  asio::post(context_.workers.For(bytes), [&] {
    interrupt.Restart();  // it may have waited for its turn
    try {
      work(interrupt);
    } catch (const std::bad_alloc&) {
      failure = MemoryError({});
    } catch (const std::exception& error) {
      failure = EngineError(Internal("The server failed: {}", error.what()));
    }
    asio::post(client_->socket().get_executor(), [&done, client = client_] {
      done = true;
      client->Notify();
    });
  });
  while (!done) {
    co_await client_->Changed();
    if (client_->gone() || aborting_) interrupt.Raise();
  }
  client_->Notify();  // others may have waited for what was passed over here
  co_return failure;
}

asio::awaitable<bool> Connection::Handle(Exchange& exchange) {
  if (exchange.request.method != "POST") {
    Api::Answer answer = context_.api.load()->Handle(exchange.request, {});
    co_return co_await Respond(exchange, std::move(std::get<HttpResponse>(answer)));
  }
  Api::Answer answer;
  const size_t bytes = exchange.request.body.size();
  exchange.claim.SetLimit(MaxRequestMemory(bytes));
  client_->StartWatch();
  const auto work = [&](const Interrupt& interrupt) {
    answer = context_.api.load()->Handle(exchange.request, {&exchange.claim, &interrupt});
    exchange.request.body = {};
    if (exchange.claim.peak() > kTrimmedBytes) malloc_trim(0);
  };
  const std::optional<ApiError> failure = co_await OnWorker(bytes, work);
  if (failure) answer = ErrorResponse(*failure);
  exchange.claim.Reset();
  if (auto* response = std::get_if<HttpResponse>(&answer)) {
    co_await client_->StopWatch();
    if (client_->gone()) co_return Left(exchange);
    if (aborting_) *response = ShuttingDown();
    co_return co_await Respond(exchange, std::move(*response));
  }
  Generation& generation = *std::get<std::unique_ptr<Generation>>(answer);
  co_return co_await Generate(exchange, generation);
}

// The end of a request whose client went away.
bool Connection::Left(Exchange& exchange) {
  Log(exchange, 499);  // nginx's number for it
  client_->Drop();
  return false;
}

asio::awaitable<bool> Connection::Generate(Exchange& exchange, Generation& generation) {
  std::optional<RequestStream> stream;
  Api& api = *context_.api;
  stream.emplace(api.outputs(), api.engine(), [client = client_] {
    asio::post(client->socket().get_executor(), [client] { client->Notify(); });
  });
  const Status status = stream->Submit(generation.Requests());
  if (!status.ok()) {
    const ApiError error = EngineError(status);
    co_await client_->StopWatch();
    co_return co_await Refuse(exchange, error);
  }
  if (generation.streams()) {
    client_->Send(
        fmt::format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                    "Cache-Control: no-cache\r\nX-Request-Id: {}\r\n{}{}{}\r\n",
                    exchange.request.id, exchange.chunked ? "Transfer-Encoding: chunked\r\n" : "",
                    exchange.keep_alive && exchange.chunked ? "" : "Connection: close\r\n",
                    ExtraHeaders(exchange.request)));
  }
  bool intact = co_await Pump(exchange, generation, *stream);
  stream.reset();  // what has not ended is cancelled now, before the answer's last bytes are out
  exchange.usage = generation.usage();
  exchange.request.client->SpendTokens(exchange.usage.total_tokens());
  if (intact && generation.streams()) co_await client_->Flushed();
  co_await client_->StopWatch();
  intact = intact && !client_->gone();
  if (!intact) {
    generation.Fail(EngineError(Cancelled("The client went away.")), "abort");
    co_return Left(exchange);
  }
  if (!generation.streams()) {
    if (generation.error()) co_return co_await Refuse(exchange, *generation.error());
    HttpResponse response;
    const auto build = [&](const Interrupt&) { response.body = generation.Body(); };
    if (generation.size() > kInlineAnswer) {
      const std::optional<ApiError> failure = co_await OnWorker(generation.size(), build);
      if (failure) co_return co_await Refuse(exchange, *failure);
    } else {
      build(Interrupt({}));
    }
    co_return co_await Respond(exchange, std::move(response));
  }
  const bool failed = generation.error().has_value();
  Log(exchange, 200, failed ? generation.error()->message : "");
  co_return !failed && exchange.keep_alive && exchange.chunked;
}

// Moves tokens from the engine to the client until the generation is done. False if the client is
// gone or does not read.
asio::awaitable<bool> Connection::Pump(Exchange& exchange, Generation& generation,
                                       RequestStream& stream) {
  const auto frame = [&](const std::string& events) {
    return exchange.chunked ? fmt::format("{:x}\r\n{}\r\n", events.size(), events) : events;
  };
  while (!generation.done()) {
    if (client_->half_closed() && !std::exchange(exchange.probed, true)) {
      // What says nothing yet, to learn whether the client is still there: a comment, or the first
      // bytes of any answer.
      client_->Send(generation.streams() ? frame(":\n\n") : kProtocol);
    }
    co_await client_->Changed();
    if (client_->gone()) co_return false;
    std::string events;
    auto outputs = stream.Take();
    const auto take = [&](const Interrupt&) {
      for (auto& [index, output] : outputs) {
        generation.OnOutput(index, std::move(output), &events);
        for (const size_t cancelled : generation.TakeCancels()) stream.Cancel(cancelled);
      }
    };
    if (SizeOf(outputs) > kInlineAnswer) {
      const std::optional<ApiError> failure = co_await OnWorker(SizeOf(outputs), take);
      if (failure) generation.Fail(*failure, "error");
    } else {
      take(Interrupt({}));
    }
    if (!generation.streams()) {  // what is collected counts as the answer that it will be
      const Status room = exchange.claim.Grow(generation.size() - exchange.claim.held());
      if (!room.ok()) generation.Fail(EngineError(room), "abort");
    }
    if (aborting_ && !generation.done()) {
      generation.Fail(EngineError(Unavailable("The server is shutting down.")), "abort");
    }
    if (generation.streams() && generation.done()) {
      events += generation.error() ? generation.ErrorEvents() : generation.LastEvents();
    }
    if (events.empty()) continue;
    if (client_->unsent() > context_.options.max_unsent_bytes) {
      LOG_WARNING("{} does not read: dropped with {} bytes unsent", client_->peer(),
                  client_->unsent());
      co_return false;
    }
    const bool large = events.size() > context_.options.max_unsent_bytes;
    client_->Send(frame(events));
    // One large step is no sign of a client that does not read.
    if (large) co_await client_->FlushedInTime();
  }
  if (generation.streams() && exchange.chunked) client_->Send("0\r\n\r\n");
  co_return !client_->gone();
}

// `wanted` by value: the body is sent from where it is.
asio::awaitable<bool> Connection::Respond(Exchange& exchange, HttpResponse wanted) {
  HttpResponse response = std::move(wanted);
  if (const Status room = exchange.claim.Grow(response.body.size()); !room.ok()) {
    response = ErrorResponse(EngineError(room));
  }
  const bool keep_alive =
      exchange.keep_alive && !exchange.unread && context_.state != ServerState::kDraining;
  std::string head = fmt::format(
      "{}{} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Request-Id: {}\r\n"
      "Connection: {}\r\n",
      exchange.probed ? "" : kProtocol, response.status, Reason(response.status),
      response.content_type, response.body.size(), exchange.request.id,
      keep_alive ? "keep-alive" : "close");
  head += HeaderLines(response.headers);
  head += ExtraHeaders(exchange.request) + "\r\n";
  const int status = response.status;
  if (exchange.head_only) response.body.clear();
  if (response.body.size() < kJoinedBytes) {
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
void Connection::Log(const Exchange& exchange, int status, std::string_view error) const {
  const HttpRequest& request = exchange.request;
  const std::string_view route = RouteName(request.path);
  const bool known = request.method == "GET" || request.method == "POST";
  const std::string key = request.client ? request.client->key_name() : "";
  Api* api = context_.api;
  if (api != nullptr) {
    api->metrics().OnHttp(known ? request.method : "other", route, status);
    if (!key.empty()) api->metrics().OnKey(key, status, exchange.usage);
  }
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - exchange.began;
  std::string line = fmt::format(
      "{} {} {} {} {:.1f} ms, {} prompt + {} generated tokens, id {}", client_->peer(),
      Printable(request.method, kLoggedBytes), Printable(request.path, kLoggedBytes), status,
      took.count(), exchange.usage.prompt_tokens, exchange.usage.completion_tokens, request.id);
  if (!key.empty()) line += fmt::format(", key {}", key);
  if (!error.empty()) line += fmt::format(", ended by an error: {}", error);
  const LogField fields[] = {{"client", client_->peer()},
                             {"method", Printable(request.method, kLoggedBytes)},
                             {"path", Printable(request.path, kLoggedBytes)},
                             {"status", int64_t{status}},
                             {"ms", took.count()},
                             {"prompt_tokens", exchange.usage.prompt_tokens},
                             {"generated_tokens", exchange.usage.completion_tokens},
                             {"id", request.id},
                             {"key", key},
                             {"error", std::string(error)}};
  const bool quiet = api == nullptr || IsAboutServer(route);
  LogEvent(quiet ? LogLevel::kDebug : LogLevel::kInfo, line, fields);
}

}  // namespace fathom
