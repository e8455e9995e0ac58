// Requests for text: what passes between their clients and the engine.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/connection.h"
#include "server/http_wire.h"
#include "server/json_body.h"

namespace fathom {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr char kComment[] = ":\n\n";
constexpr size_t kInlineAnswer = size_t{64} << 10;  // JSON to build; more is a worker's
// A step of a stream ends when its events have so many: what has come behind waits for them.
constexpr size_t kStepBytes = size_t{256} << 10;
constexpr size_t kEventBytes = 256;  // of one, roughly, beside what it says
// Of a stream's events within this nothing is claimed: usual steps are to find room on a server
// that is full.
constexpr size_t kUnclaimedBytes = size_t{128} << 10;

// What ends a request before its text does.
std::optional<ApiError> EndedBy(bool aborting, const Exchange& exchange,
                                const ServerOptions& options) {
  if (aborting) return EngineError(Unavailable("The server is shutting down."));
  if (!exchange.timed_out(options.request_timeout_ms)) return std::nullopt;
  return TooLong(options.request_timeout_ms);
}

// `claim` holds what a generation has, beside the bytes `kept` of its request: what is collected
// counts as the answer, and of a stream what it keeps to say again, and what `waits` to be sent.
Status Hold(MemoryClaim& claim, const Generation& generation, size_t kept, size_t waits) {
  size_t bytes = kept;
  if (generation.streams()) {
    // What events repeat is claimed already.
    const size_t claimed = kUnclaimedBytes + generation.BytesAsked() + generation.repeated_text();
    bytes += generation.kept_text() + generation.repeated_text() + waits - std::min(waits, claimed);
  } else {
    bytes += generation.size();
  }
  if (bytes > claim.held()) return claim.Grow(bytes - claim.held());
  claim.Shrink(claim.held() - bytes);
  return {};
}

// Why there was no room for a generation and for what waits for it: others' requests, or, where it
// would be the same without them, its own size.
ApiError NoRoom(const Status& room, const MemoryClaim& claim, const RequestStream& stream) {
  const Status could = claim.CouldHave(claim.asked() + stream.asked());
  return EngineError(could.ok() ? room : could);
}

}  // namespace

// Until it is compiled, the deadline, or nobody waits for it any more.
asio::awaitable<std::optional<ApiError>> Connection::AwaitGrammar(Exchange& exchange,
                                                                  Generation& generation) {
  const std::string param = generation.asked_grammar()->param;
  GrammarCompiler* const grammars = context_.api.load()->grammars();
  if (grammars == nullptr)
    co_return BadParameter(param, param + " is not supported by this server");
  struct Wait {
    std::optional<GrammarCompiler::Made> made;
    bool expired = false;
    std::shared_ptr<const void> wanted;  // at the deadline too: the client may ask again
  };
  const auto wait = std::make_shared<Wait>();
  const auto executor = client_->socket().get_executor();
  wait->wanted = grammars->Get(
      generation.asked_grammar()->spec,
      [wait, executor, client = client_](GrammarCompiler::Made made) {
        asio::post(executor, [wait, client, made = std::move(made)]() mutable {
          wait->made = std::move(made);
          client->Notify();
        });
      },
      exchange.request.client->id());
  asio::steady_timer deadline(executor, grammars->options().deadline);
  deadline.async_wait([wait, client = client_](error_code error) {
    wait->expired = !error;
    client->Notify();
  });
  std::optional<ApiError> end;
  while (!wait->made && !wait->expired && !client_->gone() && !end) {
    if (client_->half_closed() && !std::exchange(exchange.probed, true)) client_->Send(kProtocol);
    co_await client_->Changed();
    end = EndedBy(aborting_, exchange, context_.options);
  }
  client_->Notify();  // others may have waited for what was passed over here
  if (client_->gone()) {
    wait->wanted = nullptr;
    co_return EngineError(Cancelled("The client went away."));
  }
  if (wait->made && wait->made->ok()) {
    generation.SetGrammar(
        grammars->For(std::move(*wait->made).value(), exchange.request.client->id()));
    co_return std::nullopt;
  }
  if (wait->made && wait->made->status().code() == StatusCode::kInvalidArgument) {
    co_return BadParameter(param, fmt::format("{}: {}", param, wait->made->status().message()));
  }
  if (wait->made) co_return EngineError(wait->made->status());
  if (end) co_return end;
  co_return EngineError(Unavailable(
      "{} was not compiled within {} s, behind others or for its own size: try again, or "
      "simplify it",
      param, grammars->options().deadline.count() / 1000));
}

// On a worker where it `asked` for much: each choice has a copy of its prompt.
asio::awaitable<std::optional<ApiError>> Connection::Submit(const Exchange& exchange,
                                                            Generation& generation,
                                                            RequestStream& stream, size_t asked) {
  Status status;
  const Work submit = [&](const Interrupt& interrupt) {
    status = interrupt.Check();
    if (status.ok()) status = stream.Submit(generation.Requests());
  };
  const std::optional<ApiError> failure =
      co_await DoWork(context_.workers.ForSteps(asked), asked, submit);
  if (failure || status.ok()) co_return failure;
  co_return EndedBy(aborting_, exchange, context_.options).value_or(EngineError(status));
}

asio::awaitable<bool> Connection::Generate(Exchange& exchange,
                                           std::unique_ptr<Generation>& generation, size_t kept) {
  std::optional<RequestStream> stream;
  Api& api = *context_.api;
  const auto wake = [client = client_] {
    asio::post(client->socket().get_executor(), [client] { client->Notify(); });
  };
  auto inbox = std::make_unique<MemoryClaim>(context_.memory);
  inbox->CountFor({exchange.request.client, &exchange.request.client->memory()});
  stream.emplace(api.outputs(), api.engine(), wake, std::move(inbox));
  // A refusal may be held back, and a client may take its time to read it.
  const auto free_all = [&] {
    stream.reset();
    generation.reset();
    exchange.claim.Reset();
  };
  asio::steady_timer limit(client_->socket().get_executor());
  StartLimit(exchange, limit);
  std::optional<ApiError> error;
  // Others' responses, which a store let go for this one, may have been freed on the same thread.
  kept = std::max(kept, generation->repeated_bytes());
  const size_t asked = generation->BytesAsked();
  const Status room = exchange.claim.Grow(kept + asked);
  if (!room.ok()) {
    error = EngineError(room);
  } else if (generation->asked_grammar()) {
    error = co_await AwaitGrammar(exchange, *generation);
  }
  if (!error) error = co_await Submit(exchange, *generation, *stream, asked);
  if (error) {
    generation->Fail(*error, client_->gone() ? "abort" : "error");
    co_await client_->Flushed();  // or the end of the watch would break the probe off
    co_await client_->StopWatch();
    if (client_->gone()) co_return Left(exchange);
    free_all();
    co_return co_await Refuse(exchange, *error);
  }
  if (generation->streams()) SendStreamHead(exchange);
  bool intact = co_await Pump(exchange, *generation, *stream);
  exchange.waited_bytes = stream->peak();
  stream.reset();  // what has not ended is cancelled now, before the answer's last bytes are out
  exchange.usage = generation->usage();
  exchange.request.client->SpendTokens(exchange.usage.total_tokens());
  if (intact && !generation->streams()) co_return co_await SendAnswer(exchange, generation);
  if (intact) co_await client_->Flushed();
  co_await client_->StopWatch();
  intact = intact && !client_->gone();
  if (!intact) {
    generation->Fail(EngineError(Cancelled("The client went away.")), "abort");
    co_return Left(exchange);
  }
  const bool failed = generation->error().has_value();
  if (failed) exchange.failure = generation->error()->message;
  Log(exchange, 200);
  co_return !failed && exchange.keep_alive && exchange.chunked;
}

asio::awaitable<bool> Connection::SendAnswer(Exchange& exchange,
                                             std::unique_ptr<Generation>& generation) {
  HttpResponse response;
  std::optional<ApiError> error = generation->error();
  if (!error) {
    Result<std::string> body = std::string();
    const Work build = [&](const Interrupt& interrupt) {
      body = generation->Body({.interrupt = &interrupt});
      if (body.ok()) generation.reset();  // here: freeing much takes its time, too
    };
    error = co_await DoWork(context_.workers.ForAnswers(), generation->size(), build, &exchange);
    if (!error && !body.ok()) {
      error = EndedBy(aborting_, exchange, context_.options)
                  .value_or(TooLong(context_.options.work_timeout_ms));
    }
    if (!error) {
      response.body = std::move(body).value();
      exchange.claim.Shrink(exchange.claim.held());  // all of it is gone, but for the body
    }
  }
  if (exchange.probed) co_await client_->Flushed();  // the end of the watch would break it off
  co_await client_->StopWatch();                     // who leaves before ends the work
  if (client_->gone()) co_return Left(exchange);
  if (!error) co_return co_await Respond(exchange, std::move(response));
  generation.reset();
  exchange.claim.Reset();
  co_return co_await Refuse(exchange, *error);
}

// What makes `bytes`, of a whole answer where it is `unanswered`: on a worker, if they are many.
asio::awaitable<std::optional<ApiError>> Connection::DoWork(asio::thread_pool& workers,
                                                            size_t bytes, const Work& work,
                                                            Exchange* unanswered) {
  if (bytes > kInlineAnswer) co_return co_await OnWorker(workers, work, unanswered);
  work(Interrupt(std::chrono::milliseconds(context_.options.work_timeout_ms)));
  co_return std::nullopt;
}

void Connection::SendStreamHead(const Exchange& exchange) {
  client_->Send(
      fmt::format("{}200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                  "Cache-Control: no-cache\r\nX-Request-Id: {}\r\n{}{}{}\r\n",
                  exchange.probed ? "" : kProtocol, exchange.request.id,
                  exchange.chunked ? "Transfer-Encoding: chunked\r\n" : "",
                  exchange.keep_alive && exchange.chunked ? "" : "Connection: close\r\n",
                  ExtraHeaders(exchange.request)));
}

void Connection::SendEvents(const Exchange& exchange, std::string events) {
  if (!exchange.chunked) {
    client_->Send(std::move(events));
  } else if (events.size() < kInlineAnswer) {
    client_->Send(fmt::format("{:x}\r\n{}\r\n", events.size(), events));
  } else {
    client_->Send(fmt::format("{:x}\r\n", events.size()));
    client_->Send(std::move(events.append("\r\n")));
  }
}

// What there is of tokens, as a stream's events or for the answer, up to a bound. `kept`: what the
// request had claimed before any came.
asio::awaitable<Connection::Step> Connection::TakeStep(Exchange& exchange, Generation& generation,
                                                       RequestStream& stream, size_t kept) {
  Step step;
  std::optional<ApiError> failure;
  std::vector<std::pair<size_t, RequestOutput>> outputs;
  size_t bytes = 0;
  while (bytes < kStepBytes) {
    auto next = stream.Next();
    if (!next) break;
    bytes += generation.SizeOf(next->first, next->second) + kEventBytes;
    outputs.push_back(std::move(*next));
  }
  step.more = bytes >= kStepBytes;  // or so it may be
  Status room = stream.failure();
  if (room.ok() && generation.streams()) {
    room = Hold(exchange.claim, generation, kept, client_->unsent() + bytes);
  }
  if (!room.ok()) {
    generation.Fail(NoRoom(room, exchange.claim, stream), "abort");
    outputs.clear();
  }
  if (!outputs.empty()) {
    bool stopped = false;
    const Work take = [&](const Interrupt& interrupt) {
      for (auto& [index, output] : outputs) {
        generation.OnOutput(index, std::move(output), &step.events, {.interrupt = &interrupt});
        for (const size_t cancelled : generation.TakeCancels()) stream.Cancel(cancelled);
        stopped = !interrupt.Check().ok();
        if (stopped) return;
      }
    };
    // What ends a block repeats its text: any step may, and the last one does.
    const size_t repeated = generation.streams() ? generation.repeated_text() : 0;
    const size_t at_least = bytes + (outputs.back().second.finish ? repeated : 0);
    failure = co_await DoWork(context_.workers.ForSteps(at_least), bytes + repeated, take);
    if (stopped) {
      failure = EndedBy(aborting_, exchange, context_.options)
                    .value_or(TooLong(context_.options.work_timeout_ms));
    }
    if (failure) generation.Fail(*failure, "error");
  }
  room = Hold(exchange.claim, generation, kept, client_->unsent() + step.events.size());
  if (!room.ok()) {
    generation.Fail(NoRoom(room, exchange.claim, stream), "abort");
    step.events = {};
  }
  const std::optional<ApiError> end = EndedBy(aborting_, exchange, context_.options);
  if (end && !generation.done()) generation.Fail(*end, "abort");
  if (generation.streams() && generation.done()) {
    const Work finish = [&](const Interrupt&) {
      step.events += generation.error() ? generation.ErrorEvents() : generation.LastEvents();
    };
    const size_t repeated = generation.repeated_bytes() + generation.repeated_text();
    failure = co_await DoWork(context_.workers.ForSteps(repeated), repeated, finish);
    if (failure) {
      generation.Fail(*failure, "error");
      step.events += ErrorEvent(*failure);  // of the stream, which has no other end
    }
  }
  co_return step;
}

// Moves tokens from the engine to the client until the generation is done. False if the client is
// gone or does not read.
asio::awaitable<bool> Connection::Pump(Exchange& exchange, Generation& generation,
                                       RequestStream& stream) {
  // A stream that has nothing to say shows that it lives.
  const std::chrono::milliseconds silence(generation.streams() ? context_.options.sse_keep_alive_ms
                                                               : 0);
  asio::steady_timer silent(client_->socket().get_executor());
  const auto listen = [&] {
    if (silence.count() == 0) return;
    silent.expires_after(silence);
    silent.async_wait([client = client_](error_code error) {
      if (!error) client->Notify();
    });
  };
  listen();
  const size_t kept = exchange.claim.held();
  bool more = false;
  while (!generation.done()) {
    if (client_->half_closed() && !std::exchange(exchange.probed, true)) {
      // What says nothing yet, to learn whether the client is still there: a comment, or the first
      // bytes of any answer.
      if (generation.streams()) {
        SendEvents(exchange, kComment);
      } else {
        client_->Send(kProtocol);
      }
    }
    if (!more) co_await client_->Changed();
    if (client_->gone()) co_return false;
    Step step = co_await TakeStep(exchange, generation, stream, kept);
    more = step.more;
    std::string events = std::move(step.events);
    if (events.empty() && silence.count() > 0 &&
        silent.expiry() <= std::chrono::steady_clock::now()) {
      events = kComment;
    }
    if (events.empty()) continue;
    listen();
    if (client_->unsent() > context_.options.max_unsent_bytes) {
      LOG_WARNING("{} does not read: dropped with {} bytes unsent", client_->peer(),
                  client_->unsent());
      co_return false;
    }
    const bool large = more || events.size() > context_.options.max_unsent_bytes;
    SendEvents(exchange, std::move(events));
    // One large step is no sign of a client that does not read.
    if (large) co_await client_->FlushedInTime();
  }
  if (generation.streams() && exchange.chunked) client_->Send("0\r\n\r\n");
  co_return !client_->gone();
}

// Looks at the request again when its time is over.
void Connection::StartLimit(const Exchange& exchange, asio::steady_timer& limit) const {
  if (context_.options.request_timeout_ms == 0) return;
  limit.expires_at(exchange.began + std::chrono::milliseconds(context_.options.request_timeout_ms));
  limit.async_wait([client = client_](error_code error) {
    if (!error) client->Notify();
  });
}

}  // namespace fathom
