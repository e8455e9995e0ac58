#include "server/connection_places.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace fathom {

namespace {

constexpr int64_t kReservedMs = 1'000;  // that a connection of the reserve has for itself

int64_t NowMs() {
  return SteadyClock().NowNs() / 1'000'000;
}

ApiError TooManyOfClient() {
  return {429, "Too many connections from one address: try again later.", "rate_limit_error", "",
          "too_many_connections"};
}

ApiError ServerFull() {
  return EngineError(Unavailable("Too many connections: try again later."));
}

}  // namespace

ConnectionPlaces::Place ConnectionPlaces::Find(const std::string& address) {
  const auto of_client = by_address_.find(address);
  const bool too_many = of_client != by_address_.end() &&
                        of_client->second.plain >= options_.max_connections_per_client &&
                        !EndOne(address, /*reserved=*/false);
  if (!too_many && (taken_.plain < options_.max_connections || EndOne("", /*reserved=*/false))) {
    return {.found = true};
  }
  return {.found = ReserveHasRoom(address), .refusal = too_many ? TooManyOfClient() : ServerFull()};
}

bool ConnectionPlaces::ReserveHasRoom(const std::string& address) {
  const size_t share = std::max<size_t>(options_.reserved_connections / 4, 1);
  const auto of_client = by_address_.find(address);
  if (of_client != by_address_.end() && of_client->second.reserved >= share) {
    return EndOne(address, /*reserved=*/true);
  }
  if (taken_.reserved < options_.reserved_connections || EndOne("", /*reserved=*/true)) return true;
  const size_t held = of_client == by_address_.end() ? 0 : of_client->second.reserved;
  return EndOneOfMost(held);
}

// Of the address that has most of the reserve, done or not, if whoever has `held` gets no more.
bool ConnectionPlaces::EndOneOfMost(size_t held) {
  const auto most = std::ranges::max_element(
      by_address_, {}, [](const auto& entry) { return entry.second.reserved; });
  if (most == by_address_.end() || most->second.reserved <= held + 1) return false;
  const auto meant = [&](const auto& entry) {
    return entry.second.reserved && !entry.second.ending && entry.second.address == most->first;
  };
  const auto one = std::ranges::find_if(connections_, meant);
  one->first->Drop();
  one->second.ending = true;
  Free(one->second);
  return true;
}

// Of those of `address`, or of all if it is empty. False if none gives way.
bool ConnectionPlaces::EndOne(const std::string& address, bool reserved) {
  const int64_t had_time_ms = NowMs() - kReservedMs;
  auto longest = connections_.end();
  int64_t since_ms = Connection::kBusy;
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    const Held& held = it->second;
    const bool meant =
        !held.ending && held.reserved == reserved && (address.empty() || held.address == address);
    if (!meant) continue;
    int64_t gives_way_ms = it->first->idle_since_ms();
    if (reserved && held.came_ms <= had_time_ms) gives_way_ms = held.came_ms;
    if (gives_way_ms >= since_ms) continue;
    longest = it;
    since_ms = gives_way_ms;
  }
  if (longest == connections_.end()) return false;
  if (reserved && longest->second.came_ms <= had_time_ms) {
    longest->first->Drop();
  } else {
    longest->first->EndIfIdle();
  }
  longest->second.ending = true;
  Free(longest->second);
  return true;
}

void ConnectionPlaces::Free(const Held& held) {
  --taken_.of(held.reserved);
  Count& of_client = by_address_[held.address];
  --of_client.of(held.reserved);
  if (of_client.plain + of_client.reserved == 0) by_address_.erase(held.address);
}

void ConnectionPlaces::Add(std::shared_ptr<Connection> connection, const std::string& address,
                           bool reserved) {
  connections_[std::move(connection)] = {
      .address = address, .reserved = reserved, .guest = guests_only_, .came_ms = NowMs()};
  ++taken_.of(reserved);
  ++by_address_[address].of(reserved);
  guests_ += guests_only_;
}

void ConnectionPlaces::Remove(const std::shared_ptr<Connection>& connection) {
  const auto found = connections_.find(connection);
  if (!found->second.ending) Free(found->second);
  guests_ -= found->second.guest;
  connections_.erase(found);
}

void ConnectionPlaces::EndIdle() {
  for (const auto& [connection, held] : connections_) connection->EndIfIdle();
}

void ConnectionPlaces::AbortAll() {
  for (const auto& [connection, held] : connections_) connection->Abort();
}

void ConnectionPlaces::DropAll() {
  for (const auto& [connection, held] : connections_) connection->Drop();
}

}  // namespace fathom
