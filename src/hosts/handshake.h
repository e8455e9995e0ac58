// How hosts that meet make sure of each other: that both know the secret, and run the same.
#pragma once

#include <map>
#include <string>

#include "base/status.h"
#include "hosts/socket.h"

namespace fathom {

// What all hosts of an engine must have alike, by names that a message can say: the build, the
// model, flags.
using HostFacts = std::map<std::string, std::string>;

// The bytes of a file that only the engine's user may read, without the end of its last line.
// kInvalidArgument, saying how to make one, if they are fewer than 16 or more than 4096.
Result<std::string> ReadHostSecret(const std::string& file);

// Both sides send a random number, and prove with HMAC-SHA256 over both that they know the secret,
// which never travels. kInvalidArgument if the other side does not know it.
enum class HostSide : char { kConnects = 'C', kListens = 'L' };
Status ProveSecret(Socket& socket, std::string_view secret, HostSide side);

// OK if they are the same; else what differs, in a sentence. `other`: whose `theirs` are.
Status CompareFacts(const HostFacts& mine, const HostFacts& theirs, std::string_view other);

}  // namespace fathom
