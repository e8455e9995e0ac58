// Who is connected, and who may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/api_error.h"
#include "server/connection.h"
#include "server/options.h"

namespace fathom {

// Whoever is idle the longest gives way to whoever comes; where nobody is, routes that say how the
// server is have a reserve. There whoever has had a second gives way too, done or not, an address
// has a quarter of it at most, and whoever has most gives way to whoever has less. THREAD: one at a
// time.
class ConnectionPlaces {
 public:
  explicit ConnectionPlaces(const ServerOptions& options) : options_(options) {}

  struct Place {
    bool found = false;
    // What the client is answered: always, or, if a place was found, where it asks for anything but
    // how the server is. nullopt: the place is not of the reserve.
    std::optional<ApiError> refusal;
  };
  // For one more of `address`. Tells others to end, if it must.
  Place Find(const std::string& address);
  // REQUIRES: Find found a place; `reserved`: of the reserve.
  void Add(std::shared_ptr<Connection> connection, const std::string& address, bool reserved);
  void Remove(const std::shared_ptr<Connection>& connection);

  // From now on those that come are guests: nobody waits for them.
  void AdmitGuests() { guests_only_ = true; }
  void EndIdle();
  void AbortAll();
  void DropAll();
  size_t size() const { return connections_.size(); }
  size_t but_guests() const { return connections_.size() - guests_; }

 private:
  struct Held {
    std::string address;
    bool reserved = false, guest = false;
    int64_t came_ms = 0;  // steady clock
    bool ending = false;  // it gives way
  };
  struct Count {  // of connections that do not end
    size_t plain = 0, reserved = 0;
    size_t& of(bool is_reserved) { return is_reserved ? reserved : plain; }
  };
  bool ReserveHasRoom(const std::string& address);
  bool EndOne(const std::string& address, bool reserved);
  bool EndOneOfMost(size_t held);
  void Free(const Held& held);

  const ServerOptions& options_;
  std::unordered_map<std::shared_ptr<Connection>, Held> connections_;
  std::unordered_map<std::string, Count> by_address_;
  Count taken_;
  size_t guests_ = 0;
  bool guests_only_ = false;
};

}  // namespace fathom
