// A request's body as JSON, in memory that is counted and bounded.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/memory_budget.h"
#include "base/work_limits.h"
#include "server/api_error.h"

namespace fathom {

inline constexpr size_t kMaxJsonDepth = 64;

// Of a request whose body has `body_bytes`: the body, its JSON, and a template's values made of it.
// Ordinary bodies take up to 8 times their size, beyond what any small request may have; large ones
// are mostly texts, which are held three times.
constexpr size_t MaxRequestMemory(size_t body_bytes) {
  return MemoryBudget::kSmallBytes + 4 * body_bytes + std::min(4 * body_bytes, size_t{24} << 20);
}

// Of all requests, at least, so that one with such a body finds room: the last quarter is for small
// ones (base/memory_budget.h).
constexpr size_t LeastRequestMemory(size_t body_bytes) {
  const size_t one = MaxRequestMemory(body_bytes);
  return one + (one - 1) / 3;
}

// Of a client's requests, unless told otherwise: a quarter of everybody's, or one request.
constexpr size_t MaxClientMemory(size_t of_all, size_t body_bytes) {
  return std::max(of_all / 4, MaxRequestMemory(body_bytes));
}

// What answers a std::bad_alloc, of what lives in a body's storage or of the system.
ApiError MemoryError(const WorkLimits& limits);

// REQUIRES: JSON that was checked before, or written by this server. What it takes meanwhile stands
// in `storage` too.
boost::json::value ParseAgain(std::string_view text, const boost::json::storage_ptr& storage);

// Appends JSON's text of `value`. An error once the limits' time is over.
std::optional<ApiError> AppendJson(const boost::json::value& value, const WorkLimits& limits,
                                   std::string* text);

// A parsed body and the memory it lives in.
class JsonBody {
 public:
  // An error if `text` is no JSON object, is nested too deeply, names a key twice, holds U+0000, or
  // needs more than `limits` leave. `limits.memory` outlives `body`; `text` counts in it until it
  // is read.
  static std::optional<ApiError> Parse(std::string text, const WorkLimits& limits, JsonBody* body);
  const boost::json::object& object() const { return *object_; }
  // For who frees what is read as it goes. It ends before this does, and so do values moved from
  // it.
  boost::json::object Take() { return std::move(*object_); }
  // What is made of the body can live there too; beyond the limits it throws std::bad_alloc.
  const boost::json::storage_ptr& storage() const { return storage_; }

 private:
  boost::json::storage_ptr storage_;
  std::optional<boost::json::object> object_;
};

}  // namespace fathom
