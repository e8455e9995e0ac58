#include "hosts/handshake.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>

#include "base/mmap.h"

namespace fathom {
namespace {

constexpr size_t kLeastSecret = 16, kMostSecret = 4096;
constexpr std::string_view kGreeting = "fathom hosts 1\n";

using Bytes32 = std::array<std::byte, 32>;

struct Challenge {
  std::array<char, kGreeting.size()> greeting;
  Bytes32 random;
};

// Of the side that proves: so that nobody can send back what it was sent.
Bytes32 ProofOf(std::string_view secret, HostSide side, const Challenge& own,
                const Challenge& other) {
  std::string text(1, static_cast<char>(side));
  for (const Challenge* challenge : {&own, &other}) {
    text.append(reinterpret_cast<const char*>(challenge->random.data()), challenge->random.size());
  }
  Bytes32 proof;
  unsigned int size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &size);
  CHECK(made != nullptr && size == proof.size());
  return proof;
}

}  // namespace

Result<std::string> ReadHostSecret(const std::string& file) {
  Result<std::string> text = ReadFile(file, kMostSecret);
  if (!text.ok()) return text.status().WithContext("--hosts-secret-file");
  std::string secret = *std::move(text);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() >= kLeastSecret) return secret;
  return InvalidArgument(
      "--hosts-secret-file {}: a secret of {} bytes, at least {} are needed; openssl rand -hex 32 "
      "makes one",
      file, secret.size(), kLeastSecret);
}

Status ProveSecret(Socket& socket, std::string_view secret, HostSide side) {
  Challenge own, other;
  kGreeting.copy(own.greeting.data(), kGreeting.size());
  CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(own.random.data()),
                   static_cast<int>(own.random.size())) == 1);
  TRY(socket.Send(std::as_bytes(std::span(&own, 1))));
  TRY(socket.Receive(std::as_writable_bytes(std::span(&other, 1))));
  if (other.greeting != own.greeting) {
    return InvalidArgument("{} is no host of a fathom that this one understands", socket.peer());
  }
  const HostSide across = side == HostSide::kConnects ? HostSide::kListens : HostSide::kConnects;
  const Bytes32 proof = ProofOf(secret, side, own, other);
  Bytes32 theirs;
  TRY(socket.Send(proof));
  TRY(socket.Receive(theirs));
  const Bytes32 expected = ProofOf(secret, across, other, own);
  if (CRYPTO_memcmp(theirs.data(), expected.data(), expected.size()) == 0) return {};
  return InvalidArgument(
      "{} has another secret: --hosts-secret-file must hold the same on every host", socket.peer());
}

Status CompareFacts(const HostFacts& mine, const HostFacts& theirs, std::string_view other) {
  for (const auto& [name, value] : mine) {
    const auto found = theirs.find(name);
    if (found == theirs.end()) return InvalidArgument("{} says nothing of its {}", other, name);
    if (found->second == value) continue;
    return InvalidArgument("{} differs: {} has {}, this host {}", name, other, found->second,
                           value);
  }
  if (mine.size() == theirs.size()) return {};
  return InvalidArgument("{} says {} things of itself, this host {}", other, theirs.size(),
                         mine.size());
}

}  // namespace fathom
