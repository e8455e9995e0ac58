// JSON to a template's values, within a request's memory and time.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <map>
#include <string_view>

#include "base/status.h"
#include "base/work_limits.h"
#include "chat/jinja/value.h"

namespace fathom::jinja {

// What it claims is given back with it. The JSON is freed as it is read: a large request's memory
// has no room for both.
class FromJson {
 public:
  // `trusted`: whether special tokens may come from its strings.
  FromJson(const WorkLimits& limits, bool trusted) : limits_(limits), trusted_(trusted) {}
  ~FromJson();
  FromJson(const FromJson&) = delete;

  // The value of a variable of the outermost scope. Errors: kInvalidArgument for what nests too
  // deep, and those of the limits.
  Result<Value> Variable(std::string_view name, boost::json::value& value);

 private:
  Result<Value> Convert(boost::json::value& value, int depth);
  Result<Value> Object(boost::json::object& object, int depth);
  Result<Value> Array(boost::json::array& array, int depth);
  Result<Value> String(std::string_view text);
  Status Take(size_t bytes);

  const WorkLimits limits_;
  const bool trusted_;
  size_t pending_ = 0, taken_ = 0;                // bytes: to be claimed, and claimed
  std::map<std::string_view, Value> short_ones_;  // strings that are met again and again
};

}  // namespace fathom::jinja
