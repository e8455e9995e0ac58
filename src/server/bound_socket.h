// A TCP port, or a socket in the file system, that is ours before anything listens on it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace fathom {

class BoundSocket {
 public:
  // `host`: a name or an address; `port` 0: any free one. Errors: kUnavailable if it is taken or
  // may not be used, kInvalidArgument for a host that is not of this machine.
  static Result<BoundSocket> Port(const std::string& host, uint16_t port);
  // Takes the place of a socket that nobody listens on; who may connect is as the umask says. The
  // file goes with this. Errors: kUnavailable if it is in use, kInvalidArgument if it cannot be
  // one.
  static Result<BoundSocket> File(const std::string& path);
  BoundSocket(BoundSocket&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        family_(other.family_),
        port_(other.port_),
        loopback_(other.loopback_),
        file_(std::exchange(other.file_, {})) {}
  ~BoundSocket();

  int family() const { return family_; }                // AF_INET, AF_INET6 or AF_UNIX
  uint16_t port() const { return port_; }               // of TCP
  bool loopback() const { return loopback_; }           // TCP that this machine alone reaches
  int Release() { return std::exchange(socket_, -1); }  // the socket, to be closed by the caller

 private:
  BoundSocket() = default;
  int socket_ = -1, family_ = 0;
  uint16_t port_ = 0;
  bool loopback_ = false;
  std::string file_;  // that was made
};

}  // namespace fathom
