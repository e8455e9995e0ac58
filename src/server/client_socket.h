// A client's socket as a server needs it: deadlines, output that is queued and counted, and an eye
// on the client while it waits.
#pragma once

#include <netinet/in.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <string>

#include "server/client_stream.h"

namespace fathom {

// Who the other end counts as: an IPv4 address, the 64 bits of an IPv6 address that a network's
// owner is given, or the user of a Unix socket. "" if it is gone.
std::string ClientAt(ClientStream::Socket& socket);
// The same of an IPv6 address; of one that stands for IPv4, that.
std::string ClientAt(const in6_addr& address);

// THREAD: the socket's strand.
class ClientSocket : public std::enable_shared_from_this<ClientSocket> {
 public:
  using Socket = ClientStream::Socket;
  template <class T>
  using awaitable = boost::asio::awaitable<T>;

  struct Limits {
    size_t max_ahead = 0;  // bytes that may be read beyond a request, and of the head of one
    int send_timeout_ms = 0;
  };
  // REQUIRES: the socket's executor is a strand. Without `tls` it is in the clear.
  ClientSocket(Socket socket, Limits limits, std::shared_ptr<Tls::Context> tls = nullptr);

  ClientStream& stream() { return stream_; }
  Socket& socket() { return stream_.socket(); }
  boost::beast::flat_buffer& buffer() { return buffer_; }  // read and not yet used
  const std::string& peer() const { return peer_; }        // for the log
  const std::string& client() const { return client_; }    // ClientAt
  // Agrees with the client on keys, where there is TLS. False if that fails, or takes longer.
  awaitable<bool> Handshake(int ms);
  // Why not; "" also of a client that has sent nothing.
  const std::string& handshake_failure() const { return handshake_failure_; }
  // Waits until there is something to read. False if the client is gone, or the read deadline over.
  awaitable<bool> Readable();

  // The client went away, or was dropped.
  bool gone() const { return gone_; }
  // The client sends no more, or more than is read ahead. It may be waiting for its answer, or have
  // gone: what it is sent next tells, as the kernel of one that has gone refuses it.
  bool half_closed() const { return half_closed_; }

  // The connection is dropped when the deadline passes. There is one; writing sets its own.
  void SetDeadline(int ms);
  // The same, but reads end, with an error, and timed_out() is true.
  void SetReadDeadline(int ms);
  bool timed_out() const { return timed_out_; }
  void ClearDeadline();

  // Waits until something has changed since the last call: a write has ended, the client is gone,
  // or Notify was called.
  awaitable<void> Changed();
  void Notify();

  // Sends in order, without waiting. Nothing once the client is gone.
  void Send(std::string bytes);
  // The same, without a copy. REQUIRES: nothing more is sent until Flushed.
  void SendShared(std::shared_ptr<const std::string> bytes);
  size_t unsent() const {
    return outbox_.size() + (shared_outbox_ ? shared_outbox_->size() : 0) + sending().size() -
           sent_;
  }
  awaitable<void> Flushed();  // everything sent, or the client gone
  // The same; the client is dropped if it takes longer over all of it than a slow line would.
  awaitable<void> FlushedInTime();

  // Reads on, so that a client that leaves or half-closes is noticed, until StopWatch returns.
  void StartWatch();
  awaitable<void> StopWatch();

  // Closes after everything sent has arrived, or `ms` have passed: closing while the client still
  // sends would make its kernel throw the answer away.
  awaitable<void> Linger(int ms);
  awaitable<void> End(int ms);  // the same, but does not wait for what the client still sends
  void Close();
  void Drop();  // at once, without sending what is left

 private:
  void SetUpTcp();
  awaitable<void> EndTls(int ms);
  void StartWrite();
  const std::string& sending() const { return shared_sending_ ? *shared_sending_ : sending_; }
  void StartDeadline(int ms, bool of_read);

  ClientStream stream_;
  const int send_timeout_ms_;
  std::string peer_, client_, handshake_failure_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer deadline_, flush_deadline_, changed_timer_;
  bool changed_ = false;
  bool timed_out_ = false;
  bool gone_ = false, half_closed_ = false;
  bool watching_ = false, watch_wanted_ = false;
  bool writing_ = false;
  std::string sending_, outbox_;  // being written; to be written after it
  // The same: instead of sending_; after outbox_.
  std::shared_ptr<const std::string> shared_sending_, shared_outbox_;
  size_t sent_ = 0;  // of sending()
};

}  // namespace fathom
