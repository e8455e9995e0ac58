// A host's line to another: messages in order, and a sign of life every second.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"
#include "hosts/socket.h"

namespace fathom {

class HostLink {
 public:
  // Of a message; the link is lost if it is not OK. THREAD: the link's.
  using OnMessage = std::function<Status(uint32_t kind, std::string bytes)>;
  // Once, when nothing can come any more; OK: the other side took its leave. THREAD: the link's.
  using OnEnd = std::function<void(Status why)>;

  static constexpr uint32_t kLeave = 0, kSignOfLife = 1, kFirstOfOthers = 16;

  // `name`: of the other host, for messages.
  HostLink(Socket socket, std::string name, OnMessage on_message, OnEnd on_end);
  ~HostLink();  // ends it, and waits for its threads

  // THREAD: any.
  // Does not wait: what cannot be sent ends the link.
  void Send(uint32_t kind, std::string bytes);
  void Leave();  // tells the other side that this one ends as it should
  // The other side hears that the connection is closed.
  void Shutdown();
  const std::string& name() const { return name_; }

 private:
  void SendLoop();
  void ReceiveLoop();
  Status NextMessage();  // not OK: there is no other

  Socket socket_;
  const std::string name_;
  const OnMessage on_message_;
  const OnEnd on_end_;
  bool left_ = false;  // the other side. THREAD: the receiving one's

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<Frame> to_send_;
  size_t bytes_to_send_ = 0;
  bool closing_ = false;

  std::thread sender_, receiver_;
};

}  // namespace fathom
