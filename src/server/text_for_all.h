// A text that is made once for all who ask for it meanwhile.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace fathom {

// THREAD: any. While one makes the text others wait for it.
class TextForAll {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // One that was begun when it had been asked for, or later: nobody is told what is older than the
  // question.
  std::shared_ptr<const std::string> Get(TimePoint asked,
                                         const std::function<std::string()>& make) {
    const std::lock_guard lock(mutex_);
    if (text_ == nullptr || began_ < asked) {
      began_ = std::chrono::steady_clock::now();
      text_ = nullptr;  // should `make` throw
      text_ = std::make_shared<const std::string>(make());
    }
    return text_;
  }

 private:
  std::mutex mutex_;
  // Guarded by mutex_:
  TimePoint began_;
  std::shared_ptr<const std::string> text_;
};

}  // namespace fathom
