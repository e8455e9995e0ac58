#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/activity.h"

namespace fathom {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s%s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str(), DescribeActivity().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace fathom
