// Gives the system back what the C library keeps of memory that requests have freed.
#pragma once

#include <malloc.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>

namespace fathom {

// Once in so many freed bytes, on a worker: it takes the locks that all who allocate wait for.
class MemoryTrim {
 public:
  explicit MemoryTrim(boost::asio::thread_pool& workers) : workers_(workers) {
    // malloc_trim passes over the end of other threads' heaps, of which the C library keeps up to
    // 64 MiB each unless told.
    mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  }

  // THREAD: any. After `bytes` were freed.
  void OnFreed(size_t bytes) {
    if (freed_.fetch_add(bytes) + bytes < kBytes || asked_.exchange(true)) return;
    boost::asio::post(workers_, [this] {
      freed_ = 0;
      asked_ = false;  // before it begins, so that what is freed meanwhile has its own
      malloc_trim(0);
    });
  }

 private:
  static constexpr size_t kBytes = size_t{32} << 20;
  static constexpr int kKeptBytes = 1 << 20;
  boost::asio::thread_pool& workers_;
  std::atomic<size_t> freed_{0};  // since the last time
  std::atomic<bool> asked_{false};
};

}  // namespace fathom
