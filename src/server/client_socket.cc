#include "server/client_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace fathom {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kWriteSliceBytes = size_t{64} << 10;
constexpr size_t kWatchBytes = 4096, kDiscardBytes = 16384;  // of one read
constexpr size_t kNetworkBytes = 8;                          // of an IPv6 address
constexpr int kKernelUnsentBytes = 16 << 10;
constexpr int kKeepAliveS = 15;
constexpr size_t kLeastBytesPerMs = 64;  // of a client that takes a large answer

// A wait for an error also ends without one: after floods of connections one in some hundred, and
// at urgent data, which nobody reads and which would end each wait that follows.
bool HasHungUp(int descriptor) {
  char urgent = 0;
  (void)recv(descriptor, &urgent, 1, MSG_OOB | MSG_DONTWAIT);
  pollfd of{.fd = descriptor, .events = 0, .revents = 0};
  return poll(&of, 1, 0) > 0 && (of.revents & (POLLERR | POLLHUP)) != 0;
}

// "" of a client that has sent nothing, as one that only looks whether the port is open.
std::string WhyNoTls(asio::ssl::stream<ClientStream::Socket&>& stream, bool timed_out,
                     error_code error) {
  const SSL* tls = stream.native_handle();
  if (BIO_number_read(SSL_get_rbio(tls)) == 0) return "";
  if (timed_out) return "it took too long";
  const auto verified = SSL_get_verify_result(tls);
  if (verified == X509_V_OK) return error.message();
  return fmt::format("{}: {}", error.message(), X509_verify_cert_error_string(verified));
}

}  // namespace

std::string ClientAt(const in6_addr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof text);
    return text;
  }
  in6_addr network{};
  std::copy_n(address.s6_addr, kNetworkBytes, network.s6_addr);
  inet_ntop(AF_INET6, &network, text, sizeof text);
  return fmt::format("{}/{}", text, 8 * kNetworkBytes);
}

std::string ClientAt(ClientStream::Socket& socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  const int handle = socket.native_handle();
  if (getpeername(handle, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "";
  if (peer.ss_family == AF_INET) {
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, text, sizeof text);
    return text;
  }
  if (peer.ss_family == AF_INET6) return ClientAt(reinterpret_cast<sockaddr_in6&>(peer).sin6_addr);
  ucred who{};
  socklen_t bytes = sizeof who;
  getsockopt(handle, SOL_SOCKET, SO_PEERCRED, &who, &bytes);
  return fmt::format("user {}", who.uid);
}

ClientSocket::ClientSocket(Socket socket, Limits limits, std::shared_ptr<Tls::Context> tls)
    : stream_(std::move(socket), std::move(tls)),
      send_timeout_ms_(limits.send_timeout_ms),
      buffer_(limits.max_ahead),
      deadline_(stream_.get_executor()),
      flush_deadline_(stream_.get_executor()),
      changed_timer_(stream_.get_executor()) {
  client_ = ClientAt(this->socket());
  peer_ = client_.empty() ? "?" : client_;
  SetUpTcp();
}

void ClientSocket::SetUpTcp() {
  error_code error;
  const auto peer = socket().remote_endpoint(error);
  if (error || peer.protocol().family() == AF_UNIX) return;
  const auto* address = reinterpret_cast<const sockaddr_in*>(peer.data());
  char text[INET6_ADDRSTRLEN] = "";
  const void* number = &address->sin_addr;
  if (address->sin_family == AF_INET6) {  // the port is in the same place
    number = &reinterpret_cast<const sockaddr_in6*>(peer.data())->sin6_addr;
  }
  inet_ntop(address->sin_family, number, text, sizeof text);
  peer_ = fmt::format("{}:{}", text, ntohs(address->sin_port));
  const auto set = [&](int option, const char* name, int value) {
    if (setsockopt(socket().native_handle(), IPPROTO_TCP, option, &value, sizeof value) != 0) {
      LOG_DEBUG("{} {}: {}", peer_, name, std::strerror(errno));
    }
  };
  set(TCP_NODELAY, "TCP_NODELAY", 1);
  // A client whose machine is gone, or that left after a half-close, is noticed though it is sent
  // nothing.
  socket().set_option(asio::socket_base::keep_alive(true), error);
  set(TCP_KEEPIDLE, "TCP_KEEPIDLE", kKeepAliveS);
  set(TCP_KEEPINTVL, "TCP_KEEPINTVL", kKeepAliveS);
  // What a client does not read stays here, where it is counted, and not in the kernel.
  set(TCP_NOTSENT_LOWAT, "TCP_NOTSENT_LOWAT", kKernelUnsentBytes);
}

asio::awaitable<bool> ClientSocket::Handshake(int ms) {
  if (!stream_.tls()) co_return true;
  SetReadDeadline(ms);
  error_code error;
  co_await stream_.tls()->async_handshake(asio::ssl::stream_base::server,
                                          asio::redirect_error(asio::use_awaitable, error));
  if (error) handshake_failure_ = WhyNoTls(*stream_.tls(), timed_out_, error);
  co_return !error && !gone_;
}

asio::awaitable<bool> ClientSocket::Readable() {
  error_code error;
  if (stream_.tls()) {  // some may have come that is not decrypted yet
    const auto room = buffer_.prepare(std::min(buffer_.max_size() - buffer_.size(), kWatchBytes));
    const size_t read =
        co_await stream_.async_read_some(room, asio::redirect_error(asio::use_awaitable, error));
    buffer_.commit(read);
  } else {
    co_await socket().async_wait(Socket::wait_read,
                                 asio::redirect_error(asio::use_awaitable, error));
  }
  co_return !error && !gone_;
}

asio::awaitable<void> ClientSocket::Changed() {
  while (!changed_) {
    changed_timer_.expires_at(std::chrono::steady_clock::time_point::max());
    error_code cancelled;
    co_await changed_timer_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
  changed_ = false;
}

void ClientSocket::Notify() {
  changed_ = true;
  changed_timer_.cancel();
}

asio::awaitable<void> ClientSocket::Flushed() {
  while (writing_ && !gone_) co_await Changed();
  changed_ = true;  // others may have waited for what was passed over here
}

asio::awaitable<void> ClientSocket::FlushedInTime() {
  flush_deadline_.expires_after(
      std::chrono::milliseconds(send_timeout_ms_ + unsent() / kLeastBytesPerMs));
  flush_deadline_.async_wait([self = weak_from_this()](error_code error) {
    const auto client = self.lock();
    if (error || !client) return;
    if (client->flush_deadline_.expiry() <= std::chrono::steady_clock::now()) client->Drop();
  });
  co_await Flushed();
  flush_deadline_.expires_at(std::chrono::steady_clock::time_point::max());
}

void ClientSocket::Send(std::string bytes) {
  if (gone_) return;
  if (outbox_.empty()) {
    outbox_ = std::move(bytes);
  } else {
    outbox_ += bytes;
  }
  if (!writing_) StartWrite();
}

void ClientSocket::SendShared(std::shared_ptr<const std::string> bytes) {
  if (gone_) return;
  shared_outbox_ = std::move(bytes);
  if (!writing_) StartWrite();
}

void ClientSocket::StartWrite() {
  if (sent_ == sending().size()) {
    const bool shared = outbox_.empty();
    shared_sending_ = shared ? std::exchange(shared_outbox_, nullptr) : nullptr;
    sending_ = std::exchange(outbox_, {});
    sent_ = 0;
  }
  writing_ = true;
  SetDeadline(send_timeout_ms_);
  const size_t slice = std::min(sending().size() - sent_, kWriteSliceBytes);
  asio::async_write(stream_, asio::buffer(sending().data() + sent_, slice),
                    [self = shared_from_this()](error_code error, size_t written) {
                      self->writing_ = false;
                      self->sent_ += written;
                      self->ClearDeadline();
                      if (error) self->gone_ = true;
                      if (!self->gone_ && self->unsent() > 0) self->StartWrite();
                      self->Notify();
                    });
}

void ClientSocket::StartWatch() {
  const size_t room = buffer_.max_size() - buffer_.size();
  watch_wanted_ = true;
  if (room == 0) half_closed_ = true;  // for now it is read no further
  if (watching_ || gone_) return;
  watching_ = true;
  const auto seen = [self = shared_from_this()](error_code error, size_t read) {
    self->watching_ = false;
    self->buffer_.commit(read);
    if (error == asio::error::eof) {
      self->half_closed_ = true;
    } else if (error && error != asio::error::operation_aborted) {
      self->gone_ = true;
    }
    if (self->watch_wanted_) self->StartWatch();
    self->Notify();
  };
  if (half_closed_) {  // there is nothing left to read but a reset
    socket().async_wait(Socket::wait_error, [this, seen](error_code error) {
      if (!error && HasHungUp(socket().native_handle())) error = asio::error::connection_reset;
      seen(error, 0);
    });
  } else {
    stream_.async_read_some(buffer_.prepare(std::min(room, kWatchBytes)), seen);
  }
}

asio::awaitable<void> ClientSocket::StopWatch() {
  error_code ignored;
  watch_wanted_ = false;
  socket().cancel(ignored);
  while (watching_) co_await Changed();
}

void ClientSocket::SetDeadline(int ms) {
  StartDeadline(ms, /*of_read=*/false);
}

void ClientSocket::SetReadDeadline(int ms) {
  timed_out_ = false;
  StartDeadline(ms, /*of_read=*/true);
}

void ClientSocket::StartDeadline(int ms, bool of_read) {
  deadline_.expires_after(std::chrono::milliseconds(ms));
  deadline_.async_wait([self = weak_from_this(), of_read](error_code error) {
    const auto client = self.lock();
    if (error || !client) return;
    if (client->deadline_.expiry() > std::chrono::steady_clock::now()) return;
    if (!of_read) {
      client->Drop();
      return;
    }
    client->timed_out_ = true;
    error_code ignored;
    client->socket().cancel(ignored);
  });
}

void ClientSocket::ClearDeadline() {
  deadline_.expires_at(std::chrono::steady_clock::time_point::max());
}

// So that the client knows the answer to be whole.
asio::awaitable<void> ClientSocket::EndTls(int ms) {
  if (!stream_.tls() || gone_) co_return;
  SetReadDeadline(ms);
  error_code ignored;
  co_await stream_.tls()->async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<void> ClientSocket::Linger(int ms) {
  co_await EndTls(ms);
  error_code error;
  socket().shutdown(Socket::shutdown_send, error);
  SetDeadline(ms);
  std::string discarded(kDiscardBytes, '\0');
  while (!error && !gone_) {
    co_await socket().async_read_some(asio::buffer(discarded),
                                      asio::redirect_error(asio::use_awaitable, error));
  }
  Close();
}

asio::awaitable<void> ClientSocket::End(int ms) {
  co_await EndTls(ms);
  Close();
}

void ClientSocket::Close() {
  ClearDeadline();
  error_code ignored;
  socket().shutdown(Socket::shutdown_both, ignored);
  socket().close(ignored);
  gone_ = true;
}

void ClientSocket::Drop() {
  error_code ignored;
  if (socket().is_open()) {
    // A reset: what the kernel still holds for the client goes too.
    socket().set_option(asio::socket_base::linger(true, 0), ignored);
    socket().close(ignored);
  }
  ClearDeadline();
  gone_ = true;
  Notify();
}

}  // namespace fathom
