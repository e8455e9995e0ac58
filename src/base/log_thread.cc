#include "base/log_thread.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/bounded_write.h"
#include "base/check.h"
#include "base/log_event.h"

namespace fathom {
namespace {

constexpr std::chrono::milliseconds kPatience{100};  // after which the end is looked for again

std::mutex current_mutex;
LogThread* current = nullptr;  // guarded by current_mutex
std::atomic<int64_t> all_dropped{0};

}  // namespace

bool QueueLogLine(std::string line) {
  std::lock_guard lock(current_mutex);
  return current != nullptr && current->Push(std::move(line));
}

int64_t DroppedLogLines() {
  return all_dropped;
}

LogThread::LogThread(size_t max_bytes) : max_bytes_(max_bytes), thread_([this] { Loop(); }) {
  std::lock_guard lock(current_mutex);
  CHECK(current == nullptr, "a LogThread is there already");
  current = this;
}

LogThread::~LogThread() {
  {
    std::lock_guard lock(current_mutex);
    current = nullptr;
  }
  {
    std::lock_guard lock(mutex_);
    end_ = std::chrono::steady_clock::now() + kEndMs;
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

bool LogThread::Push(std::string line) {
  {
    std::lock_guard lock(mutex_);
    if (bytes_ + line.size() > max_bytes_) {
      ++dropped_;
      ++all_dropped;
      return true;
    }
    bytes_ += line.size();
    lines_.push_back(std::move(line));
  }
  changed_.notify_one();
  return true;
}

std::string LogThread::TakeDropNotice() {
  std::lock_guard lock(mutex_);
  const int64_t dropped = std::exchange(dropped_, 0);
  if (dropped == 0) return {};
  return WholeLogLine(
      LogLevel::kWarning,
      fmt::format("({} log lines were dropped: whoever reads them was too slow)", dropped));
}

void LogThread::Loop() {
  for (;;) {
    std::string line;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !lines_.empty(); });
      if (lines_.empty()) break;
      line = std::move(lines_.front());
      lines_.pop_front();
      bytes_ -= line.size();
    }
    if (!Write(line)) {
      std::lock_guard lock(mutex_);
      ++dropped_;
      ++all_dropped;
      continue;
    }
    // Where the gap is: what is queued came before it.
    bool caught_up;
    {
      std::lock_guard lock(mutex_);
      caught_up = lines_.empty();
    }
    if (const std::string notice = caught_up ? TakeDropNotice() : ""; !notice.empty()) {
      Write(notice);
    }
  }
}

// False if nobody reads, or not before the end.
bool LogThread::Write(const std::string& line) {
  using Clock = std::chrono::steady_clock;
  size_t done = 0;
  while (done < line.size()) {
    const Clock::time_point until = ending_ ? end_ : Clock::now() + kPatience;
    const std::string_view rest = std::string_view(line).substr(done, 512);
    if (WriteUntil(STDERR_FILENO, rest, until)) {
      done += rest.size();
    } else if (ending_ && Clock::now() >= end_) {
      return false;
    } else if (Clock::now() < until) {  // an error, rather than patience that is over
      return false;
    }
  }
  return true;
}

}  // namespace fathom
