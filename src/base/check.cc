#include "base/check.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/activity.h"
#include "base/bounded_write.h"

namespace fathom {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  const std::string text = fmt::format("{}:{}: CHECK failed: {}{}{}{}\n", file, line, condition,
                                       message.empty() ? "" : ": ", message, DescribeActivity());
  std::fflush(stderr);
  // Whoever has stopped reading does not keep the process from its end.
  WriteUntil(STDERR_FILENO, text, std::chrono::steady_clock::now() + std::chrono::seconds(1));
  std::abort();
}

}  // namespace fathom
