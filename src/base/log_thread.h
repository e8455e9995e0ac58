// Log lines that never make anybody wait.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace fathom {

// While one lives, log lines are written by its thread, and whoever logs only queues them. If
// stderr's reader is so slow that the queue is full, new lines are dropped and counted; a warning
// says how many as soon as there is room again. If nobody reads any more, all are dropped. Without
// one, whoever logs writes. THREAD: made and ended by one; there is one at a time.
class LogThread {
 public:
  explicit LogThread(size_t max_bytes = size_t{1} << 20);
  ~LogThread();  // what is queued may still be written for kEndMs
  LogThread(const LogThread&) = delete;

 private:
  friend bool QueueLogLine(std::string line);
  static constexpr std::chrono::milliseconds kEndMs{500};

  bool Push(std::string line);
  void Loop();
  bool Write(const std::string& line);
  std::string TakeDropNotice();

  const size_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;  // guarded by mutex_
  size_t bytes_ = 0;               // of lines_; guarded by mutex_
  int64_t dropped_ = 0;            // not told of yet; guarded by mutex_
  std::atomic<bool> ending_{false};
  std::chrono::steady_clock::time_point end_;  // written before ending_ is set
  std::thread thread_;
};

// True if a LogThread has taken charge of the line, which includes dropping it. THREAD: any.
bool QueueLogLine(std::string line);
// Of the process, so far.
int64_t DroppedLogLines();

}  // namespace fathom
