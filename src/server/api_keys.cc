#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/printable.h"

namespace fathom {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr size_t kMaxKeys = 1024;  // each is looked at for every request
constexpr size_t kMaxNameBytes = 64, kMaxKeyBytes = 512;
constexpr int64_t kMaxLimit = 1'000'000'000'000;

std::array<unsigned char, 32> HashOf(std::string_view key) {
  std::array<unsigned char, 32> hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

std::string_view NextWord(std::string_view& line) {
  constexpr char kSpace[] = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kSpace));
  line.remove_prefix(word.size());
  return word;
}

Status AddLimit(std::string_view word, KeyLimits& limits) {
  const size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  int64_t* limit = name == "requests-per-minute" ? &limits.requests_per_minute
                   : name == "tokens-per-minute" ? &limits.tokens_per_minute
                   : name == "in-flight"         ? &limits.in_flight
                                                 : nullptr;
  // The word itself may be a part of the key.
  if (limit == nullptr || equals == word.npos) {
    return InvalidArgument(
        "after NAME KEY only requests-per-minute=N, tokens-per-minute=N and in-flight=N may stand");
  }
  if (*limit != 0) return InvalidArgument("{} is there more than once", name);
  const std::string_view digits = word.substr(equals + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *limit);
  if (error != std::errc() || end != digits.data() + digits.size() || *limit < 1 ||
      *limit > kMaxLimit) {
    return InvalidArgument("{} must be between 1 and {}: leave it out for {}", name, kMaxLimit,
                           name == "in-flight" ? "that of --max-requests-per-client" : "no limit");
  }
  return {};
}

}  // namespace

Status ApiKeys::Add(std::string_view name, std::string_view key, const KeyLimits& limits) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '-' ||
      !std::all_of(name.begin(), name.end(), plain)) {
    return InvalidArgument(
        "a name has 1 to {} letters, digits and -_., and no - in front, as log and metrics show it",
        kMaxNameBytes);
  }
  return AddKnown(name, key, limits);
}

Status ApiKeys::AddShared(std::string_view name, std::string_view key) {
  return AddKnown(name, key, {});
}

Status ApiKeys::CheckInFlight(int64_t most) const {
  for (const ApiKey& key : keys_) {
    if (key.limits.in_flight <= most) continue;
    return InvalidArgument(
        "{}: in-flight={} is more than --max-queue allows beside those that run (--max-num-seqs): "
        "say {} at most, or raise these",
        key.name, key.limits.in_flight, most);
  }
  return {};
}

Status ApiKeys::AddKnown(std::string_view name, std::string_view key, const KeyLimits& limits) {
  const auto visible = [](unsigned char c) { return c > ' ' && c < 0x7f; };
  if (key.empty() || key.size() > kMaxKeyBytes || !std::all_of(key.begin(), key.end(), visible)) {
    return InvalidArgument("{}: a key has 1 to {} visible ASCII signs", name, kMaxKeyBytes);
  }
  if (HasName(name)) return InvalidArgument("{}: the name is there already", name);
  const auto hash = HashOf(key);
  for (const ApiKey& other : keys_) {
    if (other.hash == hash) return InvalidArgument("{}: {} has the same key", name, other.name);
  }
  if (keys_.size() == kMaxKeys) return InvalidArgument("there may be {} keys at most", kMaxKeys);
  keys_.push_back({std::string(name), hash, limits});
  return {};
}

bool ApiKeys::HasName(std::string_view name) const {
  return std::any_of(keys_.begin(), keys_.end(),
                     [&](const ApiKey& key) { return key.name == name; });
}

Status ApiKeys::AddLine(std::string_view line) {
  const std::string_view name = NextWord(line);
  if (name.empty() || name.starts_with('#')) return {};
  const std::string_view key = NextWord(line);
  KeyLimits limits;
  for (std::string_view word = NextWord(line); !word.empty() && !word.starts_with('#');
       word = NextWord(line)) {
    TRY(AddLimit(word, limits));
  }
  return Add(name, key, limits);
}

Result<ApiKeys> ApiKeys::Parse(std::string_view text) {
  ApiKeys keys;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // that some editors begin with
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (const Status added = keys.AddLine(text.substr(0, end)); !added.ok()) {
      return InvalidArgument("line {}: {}", number, added.message());
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  // Or everybody could use the server.
  if (keys.empty()) return InvalidArgument("there is no key in it: a line is NAME KEY");
  return keys;
}

Result<ApiKeys> ApiKeys::Read(const std::string& path) {
  const auto refuse = [&](std::string_view why) {
    return InvalidArgument("--api-key-file {}: {}", Printable(path, 256), why);
  };
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return refuse("there is no such file");
  if (!S_ISREG(about.st_mode)) return refuse("it is no plain file");
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || (!file && !file.eof())) return refuse("it cannot be read");
  if (text.size() > kMaxFileBytes) return refuse("it is larger than 1 MiB");
  Result<ApiKeys> keys = Parse(text);
  if (!keys.ok()) return refuse(keys.status().message());
  return keys;
}

const ApiKey* ApiKeys::Find(std::string_view key) const {
  const auto hash = HashOf(key);
  const ApiKey* found = nullptr;
  for (const ApiKey& known : keys_) {
    if (CRYPTO_memcmp(hash.data(), known.hash.data(), hash.size()) == 0) found = &known;
  }
  return found;
}

}  // namespace fathom
