#include "server/connection_places.h"

#include <cstdint>
#include <utility>

namespace fathom {

ConnectionPlaces::Place ConnectionPlaces::Find(const std::string& address) {
  const auto of_client = by_address_.find(address);
  if (of_client != by_address_.end() && of_client->second >= options_.max_connections_per_client &&
      !EndLongestIdle(address, /*reserved=*/false)) {
    return Place::kNoneOfClient;
  }
  if (taken_ < options_.max_connections || EndLongestIdle("", /*reserved=*/false)) {
    return Place::kPlain;
  }
  if (reserved_ < options_.reserved_connections || EndLongestIdle("", /*reserved=*/true)) {
    return Place::kReserved;
  }
  return Place::kNone;
}

// Of those of `address`, or of all if it is empty. False if none is idle.
bool ConnectionPlaces::EndLongestIdle(const std::string& address, bool reserved) {
  auto longest = connections_.end();
  int64_t since_ms = Connection::kBusy;
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    const Held& held = it->second;
    const bool meant =
        !held.ending && held.reserved == reserved && (address.empty() || held.address == address);
    if (!meant || it->first->idle_since_ms() >= since_ms) continue;
    longest = it;
    since_ms = it->first->idle_since_ms();
  }
  if (longest == connections_.end()) return false;
  longest->first->EndIfIdle();
  longest->second.ending = true;
  Free(longest->second);
  return true;
}

void ConnectionPlaces::Free(const Held& held) {
  --(held.reserved ? reserved_ : taken_);
  if (--by_address_[held.address] == 0) by_address_.erase(held.address);
}

void ConnectionPlaces::Add(std::shared_ptr<Connection> connection, const std::string& address,
                           bool reserved) {
  connections_[std::move(connection)] = {
      .address = address, .reserved = reserved, .guest = guests_only_};
  ++(reserved ? reserved_ : taken_);
  ++by_address_[address];
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

}  // namespace fathom
