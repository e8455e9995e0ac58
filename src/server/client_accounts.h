// What each client has in flight, and has lately asked.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/memory_budget.h"
#include "server/api_error.h"
#include "server/api_keys.h"

namespace fathom {

// A share that is spent and comes back over a minute.
class MinuteShare {
 public:
  // 0: no limit. What was spent stays spent.
  void SetLimit(int64_t per_minute, int64_t now_ns);
  void Spend(int64_t amount, int64_t now_ns);  // may leave a debt
  int64_t limit() const { return limit_; }
  int64_t Left(int64_t now_ns) const;  // 0 for a debt
  // Until `amount` are left.
  int64_t MsUntil(int64_t amount, int64_t now_ns) const;

 private:
  double LeftAt(int64_t now_ns) const;
  int64_t limit_ = 0;
  double left_ = 0;
  int64_t at_ns_ = 0;  // when left_ was left
};

// Who asks: the holder of a named key, or an address. THREAD: any.
class ClientAccount {
 public:
  ClientAccount(uint64_t id, std::string key_name, const Clock& clock)
      : id_(id), key_name_(std::move(key_name)), clock_(clock) {}

  uint64_t id() const { return id_; }
  const std::string& key_name() const { return key_name_; }  // "": an address
  void SetLimits(const KeyLimits& limits);

  // One request more; refused when the minute's requests or tokens are spent.
  std::optional<ApiError> BeginRequest();
  // What a request came to: its answer's tokens are known at its end, so that those of the last one
  // may exceed the share; the next waits the longer.
  void SpendTokens(int64_t tokens);
  // x-ratelimit-*, of the limits that there are.
  std::vector<std::pair<std::string, std::string>> Headers() const;

  // How long the answer that tells it to wait (429) is held back, so that asking on without a wait
  // is slow: `gap_ms` after the one before, and `most_ms` at most.
  int64_t HoldRefusalMs(int64_t gap_ms, int64_t most_ms);

  // Choices in flight; refused beyond the limit.
  std::optional<ApiError> Take(int64_t choices);
  void GiveBack(int64_t choices);
  int64_t in_flight() const;

  ClientMemory& memory() { return memory_; }

 private:
  const uint64_t id_;
  const std::string key_name_;
  const Clock& clock_;
  ClientMemory memory_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  MinuteShare requests_, tokens_;
  int64_t max_in_flight_ = 0, in_flight_ = 0;
  int64_t refused_ns_ = std::numeric_limits<int64_t>::min() / 2;  // when the last 429 is due
};

// Choices of a request that are in flight while this lives.
class PlacesInFlight {
 public:
  PlacesInFlight() = default;
  // REQUIRES: account.Take(choices) refused nothing.
  PlacesInFlight(std::shared_ptr<ClientAccount> account, int64_t choices)
      : account_(std::move(account)), choices_(choices) {}
  PlacesInFlight(PlacesInFlight&& other) noexcept
      : account_(std::move(other.account_)), choices_(std::exchange(other.choices_, 0)) {}
  PlacesInFlight& operator=(PlacesInFlight&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(choices_, other.choices_);
    return *this;
  }
  ~PlacesInFlight() {
    if (account_) account_->GiveBack(choices_);
  }
  uint64_t client() const { return account_ ? account_->id() : 0; }

 private:
  std::shared_ptr<ClientAccount> account_;
  int64_t choices_ = 0;
};

// THREAD: any.
class ClientAccounts {
 public:
  // `max_in_flight`: of each client that has no limit of its own.
  ClientAccounts(int64_t max_in_flight, const Clock& clock)
      : max_in_flight_(max_in_flight), clock_(clock) {}

  // The same one for a name, whatever limits it has now.
  std::shared_ptr<ClientAccount> OfKey(const ApiKey& key);
  // Forgotten when nobody holds it.
  std::shared_ptr<ClientAccount> OfAddress(const std::string& address);
  // Keeps those of `keys` alone.
  void ForgetKeysBut(const ApiKeys& keys);

 private:
  std::shared_ptr<ClientAccount> New(std::string key_name);

  const int64_t max_in_flight_;
  const Clock& clock_;
  std::mutex mutex_;
  // Guarded by mutex_:
  uint64_t next_id_ = 1;
  std::unordered_map<std::string, std::shared_ptr<ClientAccount>> by_key_;
  std::unordered_map<std::string, std::weak_ptr<ClientAccount>> by_address_;
  size_t swept_ = 0;  // addresses left when the forgotten ones were last swept out
};

}  // namespace fathom
