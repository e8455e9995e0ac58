// One client's connection: its requests, one after the other, and their answers.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/rare_warning.h"
#include "base/thread_priority.h"
#include "server/access.h"
#include "server/api.h"
#include "server/client_socket.h"
#include "server/exchange.h"
#include "server/http_metrics.h"
#include "server/memory_trim.h"
#include "server/readiness.h"
#include "server/request_stream.h"

namespace fathom {

// Threads that parse, render, tokenise and write, so that no I/O thread does. Long requests have
// their own, and do not keep short ones waiting; the system has these give way to all other
// threads. Steps that answer a request, or hand it to the engine, have their own, which wait for
// nobody's request or whole answer; large steps, whole answers and metrics have theirs, and these
// give way.
class Workers {
 public:
  Workers() {
    Lower(long_, kThreads, kLongNice, "read long requests");
    Lower(large_steps_, kThreads, kNice, "write large parts of streams");
    Lower(answers_, kThreads, kNice, "write large answers");
    Lower(metrics_, 1, kNice, "write metrics");
  }
  boost::asio::thread_pool& ForMetrics() { return metrics_; }
  boost::asio::thread_pool& ForSteps(size_t bytes) {
    return bytes > kLargeStepBytes ? large_steps_ : steps_;
  }
  boost::asio::thread_pool& ForAnswers() { return answers_; }
  boost::asio::thread_pool& For(size_t bytes) { return bytes > kLongBytes ? long_ : short_; }
  // Waits for the work that has begun; what has not is dropped.
  void Stop() {
    const auto pools = {&short_, &long_, &steps_, &large_steps_, &answers_, &metrics_};
    for (boost::asio::thread_pool* pool : pools) pool->stop();
    for (boost::asio::thread_pool* pool : pools) pool->join();
  }

 private:
  static void Lower(boost::asio::thread_pool& pool, int threads, int nice, const char* what) {
    const auto all = std::make_shared<std::latch>(threads + 1);  // so that each takes one
    for (int i = 0; i < threads; ++i) {
      boost::asio::post(pool, [=] {
        LowerThisThread(nice, what);
        all->arrive_and_wait();
      });
    }
    all->arrive_and_wait();  // one that is stopped would keep the other waiting
  }

  static constexpr size_t kLongBytes = size_t{64} << 10, kLargeStepBytes = size_t{1} << 20;
  static constexpr int kThreads = 2;    // of each
  static constexpr int kLongNice = 19;  // the least that there is: other threads hardly wait
  static constexpr int kNice = 10;      // who asks on and on has a tenth of a core that is busy
  boost::asio::thread_pool short_{kThreads}, long_{kThreads}, steps_{kThreads},
      large_steps_{kThreads}, answers_{kThreads}, metrics_{1};
};

// What all connections of a server share.
struct ConnectionContext {
  const ServerOptions& options;
  Access& access;
  Workers& workers;
  MemoryBudget memory{options.max_request_memory_bytes, options.max_client_memory_bytes};
  MemoryTrim trim{workers.For(std::numeric_limits<size_t>::max())};
  HttpMetrics metrics;
  SteadyClock clock;
  RareWarning failed_handshakes{clock};
  std::atomic<Api*> api{nullptr};  // not while the model is loading
  std::atomic<ServerState> state{ServerState::kLoading};
  std::atomic<bool> stopping{false};  // nobody waits for any work
};

// THREAD: all but Start, EndIfIdle, Drop and Abort run on the connection's strand.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // REQUIRES: the socket's executor is a strand.
  // `tls`: its certificate; null: in the clear. `refusal`: of all but requests for how the
  // server is, as there is no room for it; nullopt: there is.
  Connection(ClientSocket::Socket socket, std::shared_ptr<Tls::Context> tls,
             ConnectionContext& context, std::optional<ApiError> refusal);

  // Serves until the connection ends, then calls `done` once.
  void Start(std::function<void()> done);
  // THREAD: any. Ends the connection if it is between requests, else after the present one.
  void EndIfIdle();
  // THREAD: any. Ends it at once.
  void Drop();
  // THREAD: any. When it last became idle (steady clock); kBusy while it is not.
  int64_t idle_since_ms() const { return idle_since_ms_; }
  static constexpr int64_t kBusy = std::numeric_limits<int64_t>::max();
  // THREAD: any. Ends the present request with an error.
  void Abort();

 private:
  template <class T>
  using awaitable = boost::asio::awaitable<T>;

  awaitable<void> Serve();
  awaitable<bool> ServeOne();  // whether another request may follow
  awaitable<bool> ServeExchange(Exchange& exchange);
  awaitable<bool> Handshake();
  void OnFailedHandshake();
  awaitable<bool> WaitForRequest();
  awaitable<void> TurnAway();
  void BeginIdle();
  void EndIdle();
  std::optional<HttpResponse> CheckHead(Exchange& exchange);
  awaitable<bool> Refuse(Exchange& exchange, const ApiError& error);
  awaitable<bool> Handle(Exchange& exchange);
  awaitable<HttpResponse> Metrics(Exchange& exchange);
  std::string ExtraHeaders(const HttpRequest& request) const;
  using Work = std::function<void(const Interrupt&)>;
  // What it failed of. `work` outlives the wait.
  // `unanswered`: of which nothing is sent, so that who is done sending may be probed.
  awaitable<std::optional<ApiError>> OnWorker(boost::asio::thread_pool& workers, const Work& work,
                                              Exchange* unanswered = nullptr);
  awaitable<std::optional<ApiError>> DoWork(boost::asio::thread_pool& workers, size_t bytes,
                                            const Work& work, Exchange* unanswered = nullptr);
  bool Left(Exchange& exchange);
  void CountRefusal();
  // connection_generation.cc
  void StartLimit(const Exchange& exchange, boost::asio::steady_timer& limit) const;
  // `generation`: has `kept` bytes of its request; freed before an answer that refuses.
  awaitable<bool> Generate(Exchange& exchange, std::unique_ptr<Generation>& generation,
                           size_t kept);
  awaitable<std::optional<ApiError>> Submit(const Exchange& exchange, Generation& generation,
                                            RequestStream& stream, size_t asked);
  void SendStreamHead(const Exchange& exchange);
  awaitable<std::optional<ApiError>> AwaitGrammar(Exchange& exchange, Generation& generation);
  awaitable<bool> Pump(Exchange& exchange, Generation& generation, RequestStream& stream);
  struct Step {
    std::string events;
    bool more = false;  // has come, and is left for the next one
  };
  awaitable<Step> TakeStep(Exchange& exchange, Generation& generation, RequestStream& stream,
                           size_t kept);
  awaitable<bool> SendAnswer(Exchange& exchange, std::unique_ptr<Generation>& generation);
  void SendEvents(const Exchange& exchange, std::string events);
  awaitable<bool> Respond(Exchange& exchange, HttpResponse wanted);
  awaitable<void> HoldBack(Exchange& exchange, int64_t ms);
  void Log(const Exchange& exchange, int status);

  ConnectionContext& context_;
  const std::optional<ApiError> refusal_;
  const std::shared_ptr<ClientSocket> client_;
  std::atomic<int64_t> idle_since_ms_{kBusy};
  bool idle_ = false;  // between requests
  bool fresh_ = true;  // before the first one
  bool aborting_ = false;
  size_t held_bytes_ = 0;  // the most of the last exchange, which is gone
  bool ending_ = false;    // told to give way: serves no further request
};

}  // namespace fathom
