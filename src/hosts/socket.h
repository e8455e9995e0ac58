// TCP between the hosts of an engine. Errors name what was asked of whom.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace fathom {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), deadline_(other.deadline_) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  // Tries again until somebody listens there, or `patience` is over: then kUnavailable.
  static Result<Socket> Connect(const std::string& address, uint16_t port,
                                std::chrono::seconds patience);

  // Send() and Receive() fail once no byte has moved for so long; without it they wait for ever.
  // Lifts a deadline.
  void SetTimeout(std::chrono::milliseconds timeout);
  // They fail once so long has passed from now, however many bytes have moved.
  void SetDeadline(std::chrono::milliseconds from_now);
  // All of it, or kUnavailable. One thread may send while another receives.
  Status Send(std::span<const std::byte> bytes);
  Status Receive(std::span<std::byte> bytes);
  // THREAD: any. Who waits for this socket is told that it has ended, on the other side too.
  void Shutdown();

  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  // Whether the other side has gone, or said what nobody asked for.
  bool Ended() const;
  std::string local_address() const;  // as numbers, like peer_address()
  std::string peer_address() const;
  std::string peer() const;  // address and port, for messages

 private:
  using Clock = std::chrono::steady_clock;
  void LimitWait(std::chrono::milliseconds most);
  Status AwaitDeadline();  // no wait that follows outlasts it

  int descriptor_ = -1;
  std::optional<Clock::time_point> deadline_;
};

class Listener {
 public:
  // Port 0: one that is free. kUnavailable if the port is taken, kInvalidArgument for an address
  // that this host does not have.
  static Result<Listener> On(const std::string& address, uint16_t port);

  // Waits; kUnavailable once shut down, kResourceExhausted for what may pass, as a lack of
  // descriptors.
  Result<Socket> Accept();
  void Shutdown() { socket_.Shutdown(); }  // THREAD: any
  uint16_t port() const { return port_; }
  std::string interface() const;  // that has its address, "eth0"; "" if none has

 private:
  Socket socket_;
  uint16_t port_ = 0;
};

// A message: `kind` and bytes. Receiving refuses one of more than `most` bytes before it has room
// for it.
Status SendFrame(Socket& socket, uint32_t kind, std::string_view bytes);
struct Frame {
  uint32_t kind = 0;
  std::string bytes;
};
Result<Frame> ReceiveFrame(Socket& socket, uint64_t most);

}  // namespace fathom
