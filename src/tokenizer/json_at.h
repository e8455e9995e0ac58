// Reading JSON that may say anything, with errors that say where it went wrong.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

// The JSON of a file. Bounded in size and depth; kInvalidArgument, with the place, if it is none.
Result<boost::json::value> ReadJsonFile(const std::string& path, size_t max_bytes);

// A place in a JSON document; the document must outlive it. A member that is null counts as absent.
class JsonAt {
 public:
  JsonAt(const boost::json::value* value, std::string path);

  bool present() const { return value_ != nullptr; }
  const std::string& path() const { return path_; }

  // REQUIRES: present().
  const boost::json::value& value() const { return *value_; }

  // A member of the object here; an absent place if there is none.
  JsonAt operator[](std::string_view member) const;

  // kInvalidArgument if it is of another type, or absent where there is no default.
  Result<std::string_view> String() const;
  Result<bool> Bool(bool if_absent) const;
  Result<int64_t> Integer() const;
  Result<std::vector<JsonAt>> Array() const;
  Result<const boost::json::object*> Object() const;

 private:
  Status Expected(std::string_view what) const;

  const boost::json::value* value_;  // null: absent
  std::string path_;                 // "tokenizer.json: model.merges[3]"
};

}  // namespace fathom
