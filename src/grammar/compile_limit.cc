#include "grammar/compile_limit.h"

#include <ctime>
#include <utility>

#include "base/check.h"
#include "base/thread_bytes.h"

namespace fathom {
namespace {

thread_local const CompileLimit* limit = nullptr;

}  // namespace

int64_t ThreadNs() {
  timespec now{};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

CompileLimit::CompileLimit(std::chrono::milliseconds time, size_t bytes,
                           std::function<bool()> nobody_waits)
    : time_(time),
      end_ns_(ThreadNs() + int64_t{time.count()} * 1'000'000),
      bytes_(bytes),
      end_bytes_(ThreadBytes() + static_cast<int64_t>(bytes)),
      nobody_waits_(std::move(nobody_waits)) {
  CHECK(limit == nullptr, "a limit within another");
  limit = this;
}

CompileLimit::~CompileLimit() {
  limit = nullptr;
}

Status CompileLimit::Check() {
  if (limit == nullptr) return {};
  if (limit->nobody_waits_()) return Cancelled("nobody waits for the grammar");
  if (ThreadBytes() > limit->end_bytes_) {
    return InvalidArgument("the grammar takes more than {} MiB to compile: simplify it",
                           limit->bytes_ >> 20);
  }
  if (ThreadNs() <= limit->end_ns_) return {};
  return InvalidArgument("the grammar takes more than {} s to compile: simplify it",
                         static_cast<double>(limit->time_.count()) / 1000);
}

}  // namespace fathom
