// A client's bytes, in the clear or by TLS: what Asio and Beast call a stream.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "server/tls.h"

namespace fathom {

// THREAD: the socket's strand.
class ClientStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;  // TCP, or Unix
  using executor_type = Socket::executor_type;                   // NOLINT: Asio's name

  // Without a context in the clear.
  ClientStream(Socket socket, std::shared_ptr<Tls::Context> context)
      : socket_(std::move(socket)), context_(std::move(context)) {
    if (context_) tls_.emplace(socket_, *context_);
  }
  ClientStream(const ClientStream&) = delete;

  Socket& socket() { return socket_; }
  std::optional<boost::asio::ssl::stream<Socket&>>& tls() { return tls_; }

  // NOLINTBEGIN: Asio's names
  executor_type get_executor() { return socket_.get_executor(); }

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const Buffers& where) {
          if (tls_) {
            tls_->async_read_some(where, std::move(handler));
          } else {
            socket_.async_read_some(where, std::move(handler));
          }
        },
        token, buffers);
  }

  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const Buffers& what) {
          if (tls_) {
            tls_->async_write_some(what, std::move(handler));
          } else {
            socket_.async_write_some(what, std::move(handler));
          }
        },
        token, buffers);
  }
  // NOLINTEND

 private:
  Socket socket_;
  const std::shared_ptr<Tls::Context> context_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace fathom
