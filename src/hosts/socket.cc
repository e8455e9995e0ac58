#include "hosts/socket.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

namespace fathom {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> Resolve(const std::string& address, uint16_t port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int failed = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) return InvalidArgument("{}: {}", address, gai_strerror(failed));
  return Addresses(found, &freeaddrinfo);
}

Socket OpenFor(const addrinfo& address) {
  return Socket(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol));
}

std::string Numbers(const sockaddr_storage& address, socklen_t size, bool with_port) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port,
                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return with_port ? fmt::format("{} port {}", host, port) : host;
}

std::string PeerOf(int descriptor, bool with_port) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return "the other host";
  }
  return Numbers(address, size, with_port);
}

void SendSmallOnesAtOnce(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(deadline_, other.deadline_);
  return *this;
}

Socket::~Socket() {
  if (open()) close(descriptor_);
}

Result<Socket> Socket::Connect(const std::string& address, uint16_t port,
                               std::chrono::seconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const Addresses found = TRY(Resolve(address, port, 0));
    int error = 0;
    for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
      Socket socket = OpenFor(*at);
      if (socket.open() && connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0) {
        SendSmallOnesAtOnce(socket.descriptor());
        return socket;
      }
      error = errno;
    }
    if (std::chrono::steady_clock::now() >= until) {
      return Unavailable("{} port {} does not answer: {}", address, port, std::strerror(error));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void Socket::SetTimeout(std::chrono::milliseconds timeout) {
  deadline_.reset();
  LimitWait(timeout);
}

void Socket::SetDeadline(std::chrono::milliseconds from_now) {
  deadline_ = Clock::now() + from_now;
}

Status Socket::AwaitDeadline() {
  if (!deadline_) return {};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
  if (left.count() <= 0) return Unavailable("{} takes too long", peer());
  LimitWait(left);
  return {};
}

void Socket::LimitWait(std::chrono::milliseconds most) {
  const auto ms = most.count();
  const timeval value{.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value);
  setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value);
}

Status Socket::Send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    TRY(AwaitDeadline());
    const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return Unavailable("{} takes nothing", peer());
    if (sent < 0) return Unavailable("{}: {}", peer(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return {};
}

Status Socket::Receive(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    TRY(AwaitDeadline());
    const ssize_t got = recv(descriptor_, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Unavailable("{} says nothing", peer());
    if (got < 0) return Unavailable("{}: {}", peer(), std::strerror(errno));
    if (got == 0) return Unavailable("{} has closed the connection", peer());
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

void Socket::Shutdown() {
  if (open()) shutdown(descriptor_, SHUT_RDWR);
}

bool Socket::Ended() const {
  char byte = 0;
  const ssize_t seen = recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return seen >= 0 || errno != EAGAIN;
}

std::string Socket::local_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
  return Numbers(address, size, /*with_port=*/false);
}

std::string Socket::peer_address() const {
  return PeerOf(descriptor_, /*with_port=*/false);
}

std::string Socket::peer() const {
  return PeerOf(descriptor_, /*with_port=*/true);
}

Result<Listener> Listener::On(const std::string& address, uint16_t port) {
  const Addresses found = TRY(Resolve(address, port, AI_PASSIVE));
  Listener listener;
  listener.socket_ = OpenFor(*found);
  const int descriptor = listener.socket_.descriptor(), on = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener.socket_.open() || bind(descriptor, found->ai_addr, found->ai_addrlen) != 0 ||
      listen(descriptor, SOMAXCONN) != 0) {
    if (errno == EADDRNOTAVAIL) return InvalidArgument("this host has no address {}", address);
    return Unavailable("{} port {}: {}", address, port, std::strerror(errno));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &size);
  // Of both families the port stands in the same place.
  listener.port_ = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return listener;
}

std::string Listener::interface() const {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(all, freeifaddrs);
  const std::string mine = socket_.local_address();
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const bool four = at->ifa_addr->sa_family == AF_INET;
    if (!four && at->ifa_addr->sa_family != AF_INET6) continue;
    sockaddr_storage address{};
    const socklen_t size = four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address, at->ifa_addr, size);
    if (Numbers(address, size, /*with_port=*/false) == mine) return at->ifa_name;
  }
  return "";
}

Result<Socket> Listener::Accept() {
  for (;;) {
    const int descriptor = accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor >= 0) {
      SendSmallOnesAtOnce(descriptor);
      return Socket(descriptor);
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EINVAL || errno == EBADF) return Unavailable("no host is waited for any more");
    return ResourceExhausted("{}", std::strerror(errno));
  }
}

namespace {

struct FrameHead {
  uint32_t kind = 0, zero = 0;
  uint64_t bytes = 0;
};

}  // namespace

Status SendFrame(Socket& socket, uint32_t kind, std::string_view bytes) {
  const FrameHead head{.kind = kind, .bytes = bytes.size()};
  TRY(socket.Send(std::as_bytes(std::span(&head, 1))));
  return socket.Send(std::as_bytes(std::span(bytes)));
}

Result<Frame> ReceiveFrame(Socket& socket, uint64_t most) {
  FrameHead head;
  TRY(socket.Receive(std::as_writable_bytes(std::span(&head, 1))));
  if (head.zero != 0 || head.bytes > most) {
    return DataLoss("{} sends a message of {} bytes, at most {} are taken", socket.peer(),
                    head.bytes, most);
  }
  Frame frame{.kind = head.kind, .bytes = std::string(head.bytes, '\0')};
  TRY(socket.Receive(std::as_writable_bytes(std::span(frame.bytes))));
  return frame;
}

}  // namespace fathom
