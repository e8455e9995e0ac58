#include "server/bound_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/printable.h"

namespace fathom {

Result<BoundSocket> BoundSocket::Port(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    return InvalidArgument("--host {}: {}; 127.0.0.1 is this machine only, 0.0.0.0 every network",
                           host, gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  BoundSocket bound;
  bound.family_ = found->ai_family;
  bound.socket_ = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  const int on = 1;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (bound.socket_ < 0 ||
      setsockopt(bound.socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(bound.socket_, found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(bound.socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return Unavailable(
          "port {} of {} is taken by another program: stop it, or choose another port with --port "
          "{} (make serve PORT={})",
          port, host, port < 65535 ? port + 1 : 8000, port < 65535 ? port + 1 : 8000);
    }
    if (error == EADDRNOTAVAIL) {
      return InvalidArgument("--host {}: this machine has no such address", host);
    }
    return Unavailable("cannot use port {} of {}: {}", port, host, std::strerror(error));
  }
  if (bound.family_ == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
    bound.port_ = ntohs(ipv6.sin6_port);
    bound.loopback_ = IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr);
  } else {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    bound.port_ = ntohs(ipv4.sin_port);
    bound.loopback_ = ntohl(ipv4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return bound;
}

Result<BoundSocket> BoundSocket::File(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path || path.find('\0') != path.npos) {
    return InvalidArgument("--uds {}: the path of a socket has 1 to {} bytes", Printable(path, 256),
                           sizeof address.sun_path - 1);
  }
  path.copy(address.sun_path, path.size());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  BoundSocket bound;
  bound.family_ = AF_UNIX;
  bound.socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = bind(bound.socket_, generic, sizeof address) == 0 ? 0 : errno;
  if (failed == EADDRINUSE) {
    struct stat about {};
    if (lstat(path.c_str(), &about) == 0 && !S_ISSOCK(about.st_mode)) {
      return InvalidArgument("--uds {}: it is there already, and no socket", path);
    }
    const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool left = connect(other, generic, sizeof address) != 0 && errno == ECONNREFUSED;
    close(other);
    if (!left) {
      return Unavailable("--uds {}: another program serves there: stop it, or choose another file",
                         path);
    }
    unlink(path.c_str());  // of a server that was killed
    failed = bind(bound.socket_, generic, sizeof address) == 0 ? 0 : errno;
  }
  if (failed != 0) return Unavailable("cannot use --uds {}: {}", path, std::strerror(failed));
  bound.file_ = path;
  return bound;
}

BoundSocket::~BoundSocket() {
  if (!file_.empty()) unlink(file_.c_str());
  if (socket_ >= 0) close(socket_);
}

}  // namespace fathom
