// Bugs stop the process, in release builds too.
#pragma once

#include <fmt/format.h>

#include <string>

namespace fathom {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

// CHECK(condition) or CHECK(condition, "format {}", args...).
#define CHECK(condition, ...)                                               \
  do {                                                                      \
    if (__builtin_expect(!(condition), 0)) {                                \
      ::fathom::CheckFailed(__FILE__, __LINE__, #condition,                 \
                            ::fathom::check_internal::Format(__VA_ARGS__)); \
    }                                                                       \
  } while (false)

namespace check_internal {
inline std::string Format() {
  return {};
}
template <class... Args>
std::string Format(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace check_internal

}  // namespace fathom
