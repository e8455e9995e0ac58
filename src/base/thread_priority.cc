#include "base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace fathom {

void LowerThisThread(int steps, std::string_view which) {
  const auto thread = static_cast<id_t>(gettid());  // on Linux, of this thread alone
  if (setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + steps) == 0) return;
  LOG_WARNING("the system keeps threads that {} at full priority: {}", which, strerror(errno));
}

}  // namespace fathom
