#include "base/activity.h"

#include <fmt/format.h>

namespace fathom {

std::string DescribeActivity() {
  const auto& [step, describe, arguments] = current_activity;
  std::string op;
  if (describe != nullptr) {
    op = fmt::format("{}op {}", arguments == nullptr ? "after " : "", describe(arguments));
  }
  if (step < 0) return op.empty() ? "" : fmt::format(" ({})", op);
  return fmt::format(" (in step {}{}{})", step, op.empty() ? "" : ", ", op);
}

}  // namespace fathom
