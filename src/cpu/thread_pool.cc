#include "cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cpu/cpu_count.h"

namespace fathom {
namespace {

// How long a thread looks at a changing word before it sleeps. Waking a thread costs tens of
// microseconds, more on a virtual machine: the gaps between the ops of a step are to be bridged.
constexpr std::chrono::microseconds kPatience{200};
constexpr int kSpins = 64;  // between looks at the clock

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `word` differs from `old`. Looks on while `free` of the cores are, if they are
// shared.
uint32_t WaitWhile(const std::atomic<uint32_t>& word, uint32_t old, const SharedCores* cores,
                   int64_t free) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while ((cores == nullptr || cores->free() >= free) && std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < kSpins; ++i) {
      if (const uint32_t now = word.load(std::memory_order_acquire); now != old) return now;
      Pause();
    }
  }
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

thread_local bool inside_body = false;

}  // namespace

// A job is open while its caller claims ranges, and has room for as many workers as it got cores
// for, whether they slept or looked on. They enter through `gate`, so a job waits for those who
// entered, never for a worker that still sleeps.
struct ThreadPool::State {
  static constexpr uint32_t kRoom = 1 << 16;  // for one; below it the gate counts who is inside

  explicit State(std::shared_ptr<SharedCores> shared) : cores(std::move(shared)) {}
  const std::shared_ptr<SharedCores> cores;  // null: they are this pool's own

  // The job: written by the caller while the gate is shut and nobody is inside.
  int64_t n = 0, grain = 1;
  const void* body = nullptr;
  RangeFunction call = nullptr;

  alignas(64) std::atomic<int64_t> next{0};   // first index not claimed yet
  alignas(64) std::atomic<uint32_t> gate{0};  // room, and how many workers are inside
  alignas(64) std::atomic<uint32_t> news{0};  // counts jobs, to wake workers; and the end
  std::atomic<bool> stop{false};
  std::atomic<bool> busy{false};  // guards against two callers
  std::vector<std::thread> workers;

  // Of the next range, where `left` items are not claimed: a part of a thread's share, so that
  // ranges are long at first, and so short at last that threads end together.
  int64_t Length(int64_t left) const {
    const int64_t threads = static_cast<int64_t>(workers.size()) + 1;
    return std::max(grain, left / (2 * threads) / grain * grain);
  }

  void RunRanges(int thread) {
    inside_body = true;
    int64_t begin = next.load(std::memory_order_relaxed);
    while (begin < n) {
      const int64_t end = begin + Length(n - begin);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      call(body, begin, std::min(end, n), thread);
      begin = next.load(std::memory_order_relaxed);
    }
    inside_body = false;
  }

  bool Enter() {
    uint32_t seen = gate.load(std::memory_order_relaxed);
    while (seen >= kRoom) {
      if (gate.compare_exchange_weak(seen, seen - kRoom + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void Leave() {
    if (gate.fetch_sub(1, std::memory_order_release) == 1) gate.notify_one();  // shut, and the last
  }

  void Work(int thread) {
    uint32_t seen = 0;
    while (true) {
      seen = WaitWhile(news, seen, cores.get(), /*free=*/1);
      if (stop.load(std::memory_order_acquire)) return;
      if (!Enter()) continue;
      RunRanges(thread);
      Leave();
    }
  }
};

int64_t SharedCores::Take(int64_t wanted) {
  int64_t free = --free_, taken = 0;
  do {
    taken = std::clamp<int64_t>(free, 0, wanted);
  } while (taken > 0 && !free_.compare_exchange_weak(free, free - taken));
  return taken;
}

ThreadPool::ThreadPool(int threads, std::shared_ptr<SharedCores> cores)
    : state_(std::make_unique<State>(std::move(cores))) {
  CHECK(threads >= 0 && threads <= int{State::kRoom}, "a pool of {} threads", threads);
  if (threads == 0) threads = UsableCpus();
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([state = state_.get(), i] { state->Work(i); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->news.fetch_add(1, std::memory_order_release);
  state_->news.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const {
  return static_cast<int>(state_->workers.size()) + 1;
}

void ThreadPool::Run(int64_t n, int64_t grain, const void* body, RangeFunction call) {
  CHECK(n >= 0 && grain > 0, "{} items in grains of {}", n, grain);
  CHECK(!inside_body, "ParallelFor within a body of ParallelFor");
  State& s = *state_;
  CHECK(!s.busy.exchange(true, std::memory_order_acquire), "two callers at a time");
  const auto workers = static_cast<int64_t>(s.workers.size());
  // Ranges that others could take.
  const int64_t wanted = std::clamp<int64_t>((n + grain - 1) / grain - 1, 0, workers);
  const int64_t helpers = s.cores == nullptr ? wanted : s.cores->Take(wanted);
  s.n = n;
  s.grain = grain;
  s.body = body;
  s.call = call;
  s.next.store(0, std::memory_order_relaxed);
  if (helpers == 0) {
    s.RunRanges(0);
  } else {
    s.gate.store(static_cast<uint32_t>(helpers) * State::kRoom, std::memory_order_release);
    s.news.fetch_add(1, std::memory_order_release);
    if (helpers == workers) {
      s.news.notify_all();
    } else {
      for (int64_t i = 0; i < helpers; ++i) s.news.notify_one();
    }
    s.RunRanges(0);
    uint32_t inside = s.gate.fetch_and(State::kRoom - 1, std::memory_order_acquire) % State::kRoom;
    // The caller has a core, unless there are fewer than callers.
    while (inside != 0) inside = WaitWhile(s.gate, inside, s.cores.get(), /*free=*/0);
  }
  if (s.cores != nullptr) s.cores->GiveBack(helpers);
  s.busy.store(false, std::memory_order_release);
}

}  // namespace fathom
