// An HTTP client for tests that does as it is told, good or bad.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace fathom {

struct Response {
  int status = 0;  // 0: the connection ended before there was one
  std::map<std::string, std::string> headers;
  std::string body;
  boost::json::value parsed() const { return boost::json::parse(body); }
};

class Client {
 public:
  // `from`: the last byte of its address, 127.0.0.x.
  explicit Client(uint16_t port, int receive_buffer = 0, uint8_t from = 1) {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    timeval timeout{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl((INADDR_LOOPBACK & ~0xffU) | from);
    const bool bound = bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        bound && connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { Close(); }
  void Close() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }
  void EndSending() { shutdown(socket_, SHUT_WR); }
  bool connected() const { return connected_; }

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void Request(const std::string& method, const std::string& path, const std::string& body = "",
               const std::string& headers = "Content-Type: application/json\r\n") {
    Send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         (method == "POST" ? "Content-Length: " + std::to_string(body.size()) + "\r\n" : "") +
         "\r\n" + body);
  }
  Response Ask(const std::string& method, const std::string& path, const std::string& body = "",
               const std::string& headers = "Content-Type: application/json\r\n") {
    Request(method, path, body, headers);
    return Read();
  }

  // Up to and including `end`; what has come so far if the connection ends.
  std::string ReadUntil(const std::string& end) {
    size_t found;
    while ((found = buffer_.find(end)) == std::string::npos) {
      if (!Fill()) return std::exchange(buffer_, {});
    }
    std::string text = buffer_.substr(0, found + end.size());
    buffer_.erase(0, text.size());
    return text;
  }
  Response Read() {
    Response response;
    const std::string head = ReadUntil("\r\n\r\n");
    if (!head.starts_with("HTTP/1.1 ")) return response;
    response.status = std::stoi(head.substr(9, 3));
    for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      const size_t end = head.find("\r\n", at), colon = head.find(": ", at);
      response.headers[head.substr(at, colon - at)] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (response.status == 304) return response;  // has a length, and no body
    if (response.headers.contains("Transfer-Encoding")) {
      while (true) {
        const std::string size_line = ReadUntil("\r\n");
        const size_t size = size_line.empty() ? 0 : std::stoul(size_line, nullptr, 16);
        response.body += ReadBytes(size + 2).substr(0, size);
        if (size == 0) return response;
      }
    }
    if (!response.headers.contains("Content-Length")) {
      response.body = ReadUntil(std::string("\0never\0", 7));
    } else {
      response.body = ReadBytes(std::stoul(response.headers["Content-Length"]));
    }
    return response;
  }
  std::string ReadBytes(size_t size) {
    while (buffer_.size() < size && Fill()) {
    }
    std::string text = buffer_.substr(0, size);
    buffer_.erase(0, text.size());
    return text;
  }
  bool Ended() { return buffer_.empty() && !Fill(); }  // by the server

 private:
  bool Fill() {
    char bytes[4096];
    const ssize_t read = recv(socket_, bytes, sizeof bytes, 0);
    if (read > 0) buffer_.append(bytes, static_cast<size_t>(read));
    return read > 0;
  }

  int socket_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace fathom
