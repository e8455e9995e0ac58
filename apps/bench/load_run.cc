#include "load_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <utility>

#include "base/rng.h"

namespace fathom {

namespace asio = boost::asio;
namespace json = boost::json;
using boost::system::error_code;

class LoadRun::Sender {
 public:
  Sender(const LoadOptions& options, const Target& target, const RequestSource& source)
      : options_(options), client_(target), source_(source), room_(io_) {}

  std::vector<RequestRecord> Run(int64_t first, int64_t count, double rate, int64_t turns) {
    records_.assign(static_cast<size_t>(count), {});
    completed_ = 0;
    turns_ = static_cast<size_t>(turns);
    asio::co_spawn(io_, Send(first, rate), asio::detached);
    io_.restart();
    io_.run();
    return std::move(records_);
  }

 private:
  asio::awaitable<void> Send(int64_t first, double rate) {
    Rng rng(options_.source.seed, ~uint64_t{0});
    asio::steady_timer timer(io_);
    auto due = std::chrono::steady_clock::now();
    for (size_t i = 0; i < records_.size(); i += turns_) {
      error_code error;
      timer.expires_at(due);
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
      while (options_.max_concurrency > 0 && active_ >= options_.max_concurrency) {
        room_.expires_at(std::chrono::steady_clock::time_point::max());
        co_await room_.async_wait(asio::redirect_error(asio::use_awaitable, error));
      }
      ++active_;
      if (turns_ > 1) {
        asio::co_spawn(io_, Talk(first, i), asio::detached);
      } else {
        asio::co_spawn(io_, One(first, i), asio::detached);
      }
      if (!std::isinf(rate)) due += Gap(rng, 1 / rate);
    }
  }

  // Of a Poisson process: independent, exponentially distributed.
  static std::chrono::nanoseconds Gap(Rng& rng, double mean_s) {
    const double gap_s = -std::log(1 - double{rng.Uniform()}) * mean_s;
    return std::chrono::nanoseconds(static_cast<int64_t>(1e9 * gap_s));
  }

  asio::awaitable<void> One(int64_t first, size_t index) {
    const RequestSource::Prepared request = source_.At(first + static_cast<int64_t>(index));
    records_[index] = co_await client_.Generate(options_.endpoint, request);
    ++completed_;
    Leave();
  }

  // Records from `index` on: each turn has all questions and answers before it, and comes after a
  // time to think. Turns behind one that failed fail.
  asio::awaitable<void> Talk(int64_t first, size_t index) {
    Rng rng(options_.source.seed, ~static_cast<uint64_t>(index + 1));
    asio::steady_timer timer(io_);
    json::array messages;
    for (size_t turn = 0; turn < turns_; ++turn) {
      RequestRecord& record = records_[index + turn];
      if (turn > 0 && !records_[index + turn - 1].ok()) {
        record = records_[index + turn - 1];
      } else {
        error_code error;
        if (turn > 0) timer.expires_after(Gap(rng, options_.think_time_s));
        co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
        const auto number = first + static_cast<int64_t>(index + turn);
        const RequestSource::Prepared request = source_.Turn(number, messages);
        record = co_await client_.Generate(options_.endpoint, request);
        messages.push_back(json::object{{"role", "assistant"}, {"content", record.content}});
      }
      ++completed_;
      ShowProgress();
    }
    Leave();
  }

  void Leave() {
    --active_;
    room_.cancel();
    ShowProgress();
  }

  void ShowProgress() const {
    if (isatty(STDERR_FILENO) == 0) return;
    fmt::print(stderr, "\r{} of {} requests{}", completed_, records_.size(),
               completed_ == records_.size() ? "\n" : "");
    std::fflush(stderr);
  }

  const LoadOptions& options_;
  BenchClient client_;
  const RequestSource& source_;
  asio::io_context io_{1};
  asio::steady_timer room_;  // cancelled when a request ends
  int32_t active_ = 0;       // requests, or talks
  size_t turns_ = 1;
  size_t completed_ = 0;
  std::vector<RequestRecord> records_;
};

LoadRun::LoadRun(const LoadOptions& options, const Target& target, const RequestSource& source)
    : sender_(std::make_unique<Sender>(options, target, source)) {}

LoadRun::~LoadRun() = default;

std::vector<RequestRecord> LoadRun::Run(int64_t first, int64_t count, double rate, int64_t turns) {
  return sender_->Run(first, count, rate, turns);
}

}  // namespace fathom
