#include "server/client_accounts.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

constexpr double kMinuteNs = 60e9;
constexpr int64_t kMillisecondNs = 1'000'000;

ApiError TooMany(std::string message, int64_t wait_ms) {
  ApiError error{429, std::move(message), "rate_limit_error", "", "rate_limit_exceeded"};
  error.retry_after_s = static_cast<int>(std::max<int64_t>(1, (wait_ms + 999) / 1000));
  return error;
}

}  // namespace

void MinuteShare::SetLimit(int64_t per_minute, int64_t now_ns) {
  const double spent = limit_ == 0 ? 0 : static_cast<double>(limit_) - LeftAt(now_ns);
  limit_ = per_minute;
  left_ = static_cast<double>(per_minute) - spent;
  at_ns_ = now_ns;
}

double MinuteShare::LeftAt(int64_t now_ns) const {
  const auto limit = static_cast<double>(limit_);
  return std::min(limit, left_ + limit * static_cast<double>(now_ns - at_ns_) / kMinuteNs);
}

void MinuteShare::Spend(int64_t amount, int64_t now_ns) {
  left_ = LeftAt(now_ns) - static_cast<double>(amount);
  at_ns_ = now_ns;
}

int64_t MinuteShare::Left(int64_t now_ns) const {
  return std::max<int64_t>(0, static_cast<int64_t>(std::floor(LeftAt(now_ns))));
}

int64_t MinuteShare::MsUntil(int64_t amount, int64_t now_ns) const {
  const double missing = static_cast<double>(amount) - LeftAt(now_ns);
  if (limit_ == 0 || missing <= 0) return 0;
  return static_cast<int64_t>(
      std::ceil(missing / static_cast<double>(limit_) * kMinuteNs / 1'000'000));
}

void ClientAccount::SetLimits(const KeyLimits& limits) {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.NowNs();
  if (limits.requests_per_minute != requests_.limit()) {
    requests_.SetLimit(limits.requests_per_minute, now_ns);
  }
  if (limits.tokens_per_minute != tokens_.limit()) {
    tokens_.SetLimit(limits.tokens_per_minute, now_ns);
  }
  max_in_flight_ = limits.in_flight;
}

std::optional<ApiError> ClientAccount::BeginRequest() {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.NowNs();
  if (const int64_t wait_ms = requests_.MsUntil(1, now_ns); wait_ms > 0) {
    return TooMany(fmt::format("The key {} may make {} requests a minute: try again later.",
                               key_name_, requests_.limit()),
                   wait_ms);
  }
  if (const int64_t wait_ms = tokens_.MsUntil(1, now_ns); wait_ms > 0) {
    return TooMany(fmt::format("The key {} may use {} tokens a minute: try again later.", key_name_,
                               tokens_.limit()),
                   wait_ms);
  }
  requests_.Spend(1, now_ns);
  return std::nullopt;
}

void ClientAccount::SpendTokens(int64_t tokens) {
  std::lock_guard lock(mutex_);
  if (tokens_.limit() > 0) tokens_.Spend(tokens, clock_.NowNs());
}

std::vector<std::pair<std::string, std::string>> ClientAccount::Headers() const {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.NowNs();
  std::vector<std::pair<std::string, std::string>> headers;
  const auto add = [&](const char* what, const MinuteShare& share) {
    if (share.limit() == 0) return;
    headers.emplace_back(fmt::format("x-ratelimit-limit-{}", what), std::to_string(share.limit()));
    headers.emplace_back(fmt::format("x-ratelimit-remaining-{}", what),
                         std::to_string(share.Left(now_ns)));
    // When all of it is back.
    headers.emplace_back(fmt::format("x-ratelimit-reset-{}", what),
                         fmt::format("{}ms", share.MsUntil(share.limit(), now_ns)));
  };
  add("requests", requests_);
  add("tokens", tokens_);
  return headers;
}

int64_t ClientAccount::HoldRefusalMs(int64_t gap_ms, int64_t most_ms) {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.NowNs();
  refused_ns_ =
      std::clamp(refused_ns_ + gap_ms * kMillisecondNs, now_ns, now_ns + most_ms * kMillisecondNs);
  return (refused_ns_ - now_ns) / kMillisecondNs;
}

std::optional<ApiError> ClientAccount::Take(int64_t choices) {
  std::lock_guard lock(mutex_);
  if (choices > max_in_flight_) {
    return BadParameter(
        "n", fmt::format("The request asks for {} answers, and a client may have {} in flight: "
                         "send it in parts.",
                         choices, max_in_flight_));
  }
  if (in_flight_ + choices > max_in_flight_) {
    return TooMany(
        fmt::format("{} in flight for {}, which may have {}: try again when some have ended.",
                    in_flight_ == 1 ? "1 answer is" : fmt::format("{} answers are", in_flight_),
                    key_name_.empty() ? "this address" : "the key " + key_name_, max_in_flight_),
        0);
  }
  in_flight_ += choices;
  return std::nullopt;
}

void ClientAccount::GiveBack(int64_t choices) {
  std::lock_guard lock(mutex_);
  in_flight_ -= choices;
}

int64_t ClientAccount::in_flight() const {
  std::lock_guard lock(mutex_);
  return in_flight_;
}

std::shared_ptr<ClientAccount> ClientAccounts::New(std::string key_name) {
  auto account = std::make_shared<ClientAccount>(next_id_++, std::move(key_name), clock_);
  account->SetLimits({.in_flight = max_in_flight_});
  return account;
}

std::shared_ptr<ClientAccount> ClientAccounts::OfKey(const ApiKey& key) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<ClientAccount>& account = by_key_[key.name];
  if (!account) account = New(key.name);
  KeyLimits limits = key.limits;
  if (limits.in_flight == 0) limits.in_flight = max_in_flight_;
  account->SetLimits(limits);
  return account;
}

std::shared_ptr<ClientAccount> ClientAccounts::OfAddress(const std::string& address) {
  std::lock_guard lock(mutex_);
  if (by_address_.size() > 2 * swept_ + 64) {
    std::erase_if(by_address_, [](const auto& entry) { return entry.second.expired(); });
    swept_ = by_address_.size();
  }
  std::weak_ptr<ClientAccount>& known = by_address_[address];
  std::shared_ptr<ClientAccount> account = known.lock();
  if (!account) known = account = New("");
  return account;
}

void ClientAccounts::ForgetKeysBut(const ApiKeys& keys) {
  std::lock_guard lock(mutex_);
  std::erase_if(by_key_, [&](const auto& entry) { return !keys.HasName(entry.first); });
}

}  // namespace fathom
