#include "server/connection.h"

#include <malloc.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "base/log_event.h"
#include "base/printable.h"
#include "base/thread_bytes.h"
#include "server/http_wire.h"
#include "server/json_body.h"
#include "server/messages_request.h"
#include "server/refused_connections.h"
#include "server/request_reader.h"

namespace fathom {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kReadAheadBytes = size_t{16} << 10;  // of pipelined requests
constexpr int kEndMs = 1'000;                         // for a client to agree that TLS ends
constexpr std::string_view kStored = "/v1/responses/";
constexpr size_t kTrimmedBytes = size_t{8} << 20;  // memory of a request that the C library keeps

// Of a client's: how the server is has none. What is asked by a POST, and what was stored.
bool IsWork(const HttpRequest& request) {
  return request.client != nullptr &&
         (request.method == "POST" || request.path.starts_with(kStored));
}

bool AsksMetrics(const HttpRequest& request) {
  const Route* const route = FindRoute(request.path);
  return route != nullptr && route->endpoint == Endpoint::kMetrics;
}

int64_t NowMs() {
  return SteadyClock().NowNs() / 1'000'000;
}

}  // namespace

Connection::Connection(ClientSocket::Socket socket, std::shared_ptr<Tls::Context> tls,
                       ConnectionContext& context, std::optional<ApiError> refusal)
    : context_(context),
      refusal_(std::move(refusal)),
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
    self->client_->Notify();  // an answer that is held back comes now
  });
}

void Connection::Drop() {
  asio::post(client_->socket().get_executor(), [self = shared_from_this()] {
    self->ending_ = true;
    self->client_->Drop();
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
  while (more && !ending_) {
    more = co_await ServeOne();
    context_.trim.OnFreed(std::exchange(held_bytes_, 0));
  }
  co_await client_->End(kEndMs);
}

// A connection gives way to others as long as it has asked nothing.
asio::awaitable<bool> Connection::Handshake() {
  BeginIdle();
  const bool agreed = co_await client_->Handshake(context_.options.header_timeout_ms);
  EndIdle();
  if (!client_->handshake_failure().empty()) OnFailedHandshake();
  co_return agreed;
}

void Connection::OnFailedHandshake() {
  context_.metrics.OnFailedHandshake();
  const std::optional<int64_t> failed = context_.failed_handshakes.OnHappened();
  if (!failed) return;
  LOG_WARNING("{} no TLS: {}{}", client_->peer(), client_->handshake_failure(),
              *failed == 1 ? "" : fmt::format("; {} such clients since the last line", *failed));
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

// Of the reserve, before it has asked anything: it gives way to others, and is told why.
asio::awaitable<void> Connection::TurnAway() {
  CountRefusal();
  client_->Send(ClosingAnswer(*refusal_));
  co_await client_->Flushed();
  if (!client_->stream().tls()) (void)DiscardArrived(client_->socket());
}

void Connection::CountRefusal() {
  context_.metrics.OnRefusedConnection(NameOfRefusal(*refusal_));
}

asio::awaitable<bool> Connection::ServeOne() {
  if (!co_await WaitForRequest()) {
    if (refusal_ && ending_ && !client_->gone()) co_await TurnAway();
    co_return false;
  }
  Exchange exchange(context_.options, context_.memory);
  const bool more = co_await ServeExchange(exchange);
  held_bytes_ = exchange.claim.peak() + exchange.waited_bytes;
  co_return more;
}

asio::awaitable<bool> Connection::ServeExchange(Exchange& exchange) {
  // Locals, not temporaries, on both sides of a co_await: GCC 12 destroys some of those twice.
  ReadEnd read = co_await ReadHead(*client_, context_.options, exchange);
  if (read.gone) co_return false;
  if (!read.refusal) read.refusal = CheckHead(exchange);
  // Only what a client asks by a POST has a body that anybody wants; the connection ends after
  // another's.
  if (!read.refusal && IsWork(exchange.request)) {
    const std::shared_ptr<ClientAccount>& client = exchange.request.client;
    exchange.claim.CountFor({client, &client->memory()});
    if (exchange.request.method == "POST") {
      read = co_await ReadBody(*client_, context_.options, exchange);
      if (read.gone) co_return Left(exchange);
    }
  }
  if (read.refusal) co_return co_await Respond(exchange, std::move(*read.refusal));
  co_return co_await Handle(exchange);
}

std::optional<HttpResponse> Connection::CheckHead(Exchange& exchange) {
  // One that is stopped before it has a model has nothing to answer with either.
  ServerState state = context_.state;
  Api* const api = context_.api;
  if (api == nullptr && state != ServerState::kFollowing) state = ServerState::kLoading;
  // The end of the server comes later than that of the engine's requests, who ask what is amiss.
  if (state == ServerState::kReady && !api->engine().status().ok()) state = ServerState::kLeaving;
  exchange.keep_alive = exchange.parser.keep_alive() && state == ServerState::kReady;
  const std::optional<ApiError> bad = BadHead(exchange.parser.get());
  exchange.unread = bad || !exchange.parser.is_done();
  if (bad) return ErrorResponse(*bad);
  if (refusal_ || ending_) exchange.keep_alive = false;
  exchange.request.address = client_->client();
  if (auto answer = AnswerOfState(state, exchange.request.path)) {
    if (!IsAboutServer(exchange.request.path)) context_.access.NameCaller(exchange.request);
    return answer;
  }
  if (refusal_ && !IsAboutServer(exchange.request.path)) {
    CountRefusal();
    return ErrorResponse(*refusal_);
  }
  return context_.access.CheckHead(exchange.request);
}

asio::awaitable<bool> Connection::Refuse(Exchange& exchange, const ApiError& error) {
  HttpResponse response = Refusal(exchange.request, error);
  if (error.status >= 500) exchange.failure = error.message;
  co_return co_await Respond(exchange, std::move(response));
}

// Does `work` on a worker. It is interrupted when the client leaves, the server stops, or the time
// for it is over.
asio::awaitable<std::optional<ApiError>> Connection::OnWorker(asio::thread_pool& workers,
                                                              const Work& work,
                                                              Exchange* unanswered) {
  Interrupt interrupt(std::chrono::milliseconds(context_.options.work_timeout_ms),
                      &context_.stopping);
  bool done = false;
  std::optional<ApiError> failure;
  asio::post(workers, [&] {
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
    if (unanswered != nullptr && client_->half_closed() &&
        !std::exchange(unanswered->probed, true)) {
      client_->Send(kProtocol);
    }
    co_await client_->Changed();
    if (client_->gone() || aborting_) interrupt.Raise();
  }
  client_->Notify();  // others may have waited for what was passed over here
  co_return failure;
}

// They take a worker a millisecond and more, and as text that nobody reads count for who asks.
asio::awaitable<HttpResponse> Connection::Metrics(Exchange& exchange) {
  exchange.claim.CountFor(context_.access.MemoryOf(exchange.request.address));
  HttpResponse response;
  const Work work = [&](const Interrupt&) {
    context_.metrics.SetRequestMemory(context_.memory.used());
    Api::Answer answer = context_.api.load()->Handle(exchange.request, {});
    response = std::move(std::get<HttpResponse>(answer));
  };
  std::optional<ApiError> failure = co_await OnWorker(context_.workers.ForMetrics(), work);
  if (!failure && response.shared) {
    const Status room = exchange.claim.Grow(response.shared->size());
    if (!room.ok()) failure = EngineError(room);
  }
  if (failure) response = Refusal(exchange.request, *failure);
  co_return response;
}

asio::awaitable<bool> Connection::Handle(Exchange& exchange) {
  if (AsksMetrics(exchange.request)) {
    HttpResponse metrics = co_await Metrics(exchange);
    co_return co_await Respond(exchange, std::move(metrics));
  }
  if (!IsWork(exchange.request)) {
    Api::Answer answer = context_.api.load()->Handle(exchange.request, {});
    co_return co_await Respond(exchange, std::move(std::get<HttpResponse>(answer)));
  }
  Api::Answer answer;
  size_t kept = 0;  // of the request by its answer
  const size_t bytes = exchange.request.body.size();
  exchange.claim.SetLimit(MaxRequestMemory(bytes));
  client_->StartWatch();
  const Work work = [&](const Interrupt& interrupt) {
    const int64_t before =
        ThreadBytes() - static_cast<int64_t>(exchange.request.body.capacity());  // freed here
    answer = context_.api.load()->Handle(exchange.request, {&exchange.claim, &interrupt});
    exchange.request.body = {};
    kept = static_cast<size_t>(std::max<int64_t>(ThreadBytes() - before, 0));
    if (exchange.claim.peak() > kTrimmedBytes) malloc_trim(0);
  };
  const std::optional<ApiError> failure = co_await OnWorker(context_.workers.For(bytes), work);
  if (failure) {
    exchange.failure = failure->message;
    answer = Refusal(exchange.request, *failure);
  }
  exchange.claim.Reset();
  if (auto* response = std::get_if<HttpResponse>(&answer)) {
    co_await client_->StopWatch();
    if (client_->gone()) co_return Left(exchange);
    if (aborting_) *response = ShuttingDown();
    co_return co_await Respond(exchange, std::move(*response));
  }
  auto& generation = std::get<std::unique_ptr<Generation>>(answer);
  co_return co_await Generate(exchange, generation, kept);
}

}  // namespace fathom
