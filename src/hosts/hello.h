// What hosts say when they connect, and are answered: JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hosts/handshake.h"

namespace fathom {

inline constexpr uint64_t kMaxHelloBytes = 1 << 16;

// What a host that connects is there for.
struct Hello {
  bool lane = false;
  int index = 0;      // a host
  uint16_t port = 0;  // on which it listens
  HostFacts facts;
  int group = 0, from = 0, to = 0;  // a lane
};
std::string Text(const Hello& hello);
Result<Hello> ParseHello(const std::string& text, std::string_view whose);

// Where hosts listen, by their numbers.
struct HostAddress {
  std::string host;
  uint16_t port = 0;
};
using HostAddresses = std::map<int, HostAddress>;

// What a host is answered once all have come, or that it is not taken.
std::string WelcomeText(const HostAddresses& others);
std::string RefusalText(std::string_view why);
// kInvalidArgument, with why, of a refusal.
Result<HostAddresses> ParseAnswer(const std::string& text);

}  // namespace fathom
