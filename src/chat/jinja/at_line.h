// Errors that say where in the template they are.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "base/status.h"

namespace fathom::jinja {

inline Status AtLine(int line, Status status) {
  if (status.ok()) return status;
  return status.WithContext(fmt::format("chat template, line {}", line));
}

template <class T>
Result<T> AtLine(int line, Result<T> result) {
  if (result.ok()) return result;
  return AtLine(line, result.status());
}

}  // namespace fathom::jinja
