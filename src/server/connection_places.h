// Who is connected, and who may be.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>

#include "server/connection.h"
#include "server/options.h"

namespace fathom {

// Whoever is idle the longest gives way to whoever comes; where nobody is, routes that say how the
// server is have a reserve. THREAD: one at a time.
class ConnectionPlaces {
 public:
  explicit ConnectionPlaces(const ServerOptions& options) : options_(options) {}

  enum class Place { kPlain, kReserved, kNoneOfClient, kNone };
  // For one more of `address`. Tells others to end, if it must.
  Place Find(const std::string& address);
  // REQUIRES: Find gave kReserved, or kPlain.
  void Add(std::shared_ptr<Connection> connection, const std::string& address, bool reserved);
  void Remove(const std::shared_ptr<Connection>& connection);

  // From now on those that come are guests: nobody waits for them.
  void AdmitGuests() { guests_only_ = true; }
  void EndIdle();
  void AbortAll();
  size_t size() const { return connections_.size(); }
  size_t but_guests() const { return connections_.size() - guests_; }

 private:
  struct Held {
    std::string address;
    bool reserved = false, guest = false;
    bool ending = false;  // it was idle, and gives way
  };
  bool EndLongestIdle(const std::string& address, bool reserved);
  void Free(const Held& held);

  const ServerOptions& options_;
  std::unordered_map<std::shared_ptr<Connection>, Held> connections_;
  std::unordered_map<std::string, size_t> by_address_;  // those of connections_ that do not end
  size_t taken_ = 0, reserved_ = 0;                     // the same, of no reserve and of it
  size_t guests_ = 0;
  bool guests_only_ = false;
};

}  // namespace fathom
