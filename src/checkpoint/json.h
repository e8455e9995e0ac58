// JSON files, bounded. For the .cc files of this folder: it brings Boost.JSON with it.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "checkpoint/problems.h"

namespace fathom {

// An object, nested at most 16 deep. Of a key given twice the last counts. Errors begin with
// `name`.
Result<boost::json::object> ParseJsonObject(std::string_view name, std::string_view text,
                                            boost::json::storage_ptr storage = {});

// The fields of a JSON object, read with bounds. A field that is missing or null takes `fallback`;
// what does not fit is added to `problems`, by name, and reads as the fallback.
class Fields {
 public:
  // `prefix` stands before names in problems: "rope_scaling.". All three are borrowed.
  Fields(const boost::json::object& object, std::string_view prefix, Problems& problems)
      : object_(object), prefix_(prefix), problems_(problems) {}

  bool Has(std::string_view key) const { return Find(key) != nullptr; }  // and is not null
  // Null if missing or null.
  const boost::json::value* Find(std::string_view key) const;

  // An integer in [low, high]; the first form requires the field.
  int32_t Int(std::string_view key, int32_t low, int32_t high);
  int32_t Int(std::string_view key, int32_t low, int32_t high, int32_t fallback);
  // A finite number in [low, high].
  float Float(std::string_view key, float low, float high);
  float Float(std::string_view key, float low, float high, float fallback);
  std::optional<float> OptionalFloat(std::string_view key, float low, float high);
  bool Bool(std::string_view key, bool fallback);
  std::string_view String(std::string_view key, std::string_view fallback);
  const boost::json::object* Object(std::string_view key);
  // A token id or a list of at most 64. `vocab_size` bounds them.
  std::vector<TokenId> Tokens(std::string_view key, int32_t vocab_size);

 private:
  const boost::json::value* Require(std::string_view key);

  const boost::json::object& object_;
  std::string_view prefix_;
  Problems& problems_;
};

}  // namespace fathom
