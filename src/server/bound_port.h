// A TCP port that is ours, before anything listens on it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace fathom {

class BoundPort {
 public:
  // `host`: a name or an address; `port` 0: any free one. Errors: kUnavailable if it is taken or
  // may not be used, kInvalidArgument for a host that is not of this machine.
  static Result<BoundPort> Bind(const std::string& host, uint16_t port);
  BoundPort(BoundPort&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        port_(other.port_),
        ipv6_(other.ipv6_),
        loopback_(other.loopback_) {}
  ~BoundPort();

  uint16_t port() const { return port_; }
  bool ipv6() const { return ipv6_; }
  bool loopback() const { return loopback_; }           // reached from this machine only
  int Release() { return std::exchange(socket_, -1); }  // the socket, to be closed by the caller

 private:
  BoundPort() = default;
  int socket_ = -1;
  uint16_t port_ = 0;
  bool ipv6_ = false, loopback_ = false;
};

}  // namespace fathom
