#include "base/thread_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/log.h"

namespace fathom {

// How long such a thread may hold up one that wakes beside it: Linux from 6.12 on asks for no more
// than this slice at a time, the least that there is; those before know no slices of a thread's
// own.
static constexpr uint64_t kSliceNs = 100'000;

// Of sched_setattr(2), for which this C library has no name.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes), policy = 0;
  uint64_t flags = 0;
  int32_t niceness = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};
static constexpr uint64_t kKeepPolicy = 8;  // SCHED_FLAG_KEEP_POLICY

void LowerThisThread(int steps, std::string_view which) {
  const auto thread = static_cast<id_t>(gettid());  // on Linux, of this thread alone
  const int niceness = std::min(getpriority(PRIO_PROCESS, thread) + steps, 19);
  if (setpriority(PRIO_PROCESS, thread, niceness) != 0) {
    LOG_WARNING("the system keeps threads that {} at full priority: {}", which, strerror(errno));
  }
  // Without the slice it gives way all the same, only later.
  const SchedulingAttributes slice{.flags = kKeepPolicy, .niceness = niceness, .runtime = kSliceNs};
  (void)syscall(SYS_sched_setattr, thread, &slice, 0);
}

}  // namespace fathom
