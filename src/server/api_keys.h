// The API's keys: who they belong to, and what their holders may ask.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

// 0: as many as anybody.
struct KeyLimits {
  int64_t requests_per_minute = 0, tokens_per_minute = 0;
  int64_t in_flight = 0;  // choices that are generated, or wait to be

  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

struct ApiKey {
  std::string name;                    // what log and metrics say of it
  std::array<unsigned char, 32> hash;  // SHA-256 of the key
  KeyLimits limits;
};

// Keeps no key itself. Immutable once made. THREAD: any.
class ApiKeys {
 public:
  // A line per key: NAME KEY, then what its holder may ask, as requests-per-minute=60,
  // tokens-per-minute=100000 and in-flight=8. "#" begins a comment. kInvalidArgument names the line
  // that cannot be taken, and never a key.
  static Result<ApiKeys> Read(const std::string& path);
  static Result<ApiKeys> Parse(std::string_view text);

  // kInvalidArgument for a name, or a key, that is there already or cannot be one.
  Status Add(std::string_view name, std::string_view key, const KeyLimits& limits);
  // A key without a holder, under a name that begins with a "-": no line of a file has such a name.
  Status AddShared(std::string_view name, std::string_view key);
  // Null if it is none of these. Takes the same time for every key of a length.
  const ApiKey* Find(std::string_view key) const;
  bool HasName(std::string_view name) const;
  // kInvalidArgument for a key that may have more in flight than `most`, of all clients.
  Status CheckInFlight(int64_t most) const;
  bool empty() const { return keys_.empty(); }

 private:
  Status AddLine(std::string_view line);
  Status AddKnown(std::string_view name, std::string_view key, const KeyLimits& limits);
  std::vector<ApiKey> keys_;
};

}  // namespace fathom
