// Grammars that live: those that are kept for who asks again, and what all of them take, with those
// that requests in flight hold, and how far their answers have come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

struct GrammarCacheLimits {
  size_t bytes = 0, entries = 0;  // of those that are kept
  size_t all = 0;     // bytes of all that live, before one more is compiled or an answer goes on
  size_t client = 0;  // the same, of those that were compiled for one client, and of its answers
  // Of one answer, within the client's: what it has is copied as it grows, in one token's time.
  size_t answer = client;
};

// THREAD: any.
class GrammarCache final : public std::enable_shared_from_this<GrammarCache> {
 public:
  explicit GrammarCache(const GrammarCacheLimits& limits)
      : limits_(limits), bytes_(std::make_shared<Bytes>(0)) {}

  // nullptr: it is not kept.
  std::shared_ptr<const Grammar> Find(const std::string& key);

  // For more of this client. Beyond a limit those go that are only kept, the latest used last: of
  // the client's share its own. kUnavailable if requests hold more than that all the same.
  Status MakeRoom(uint64_t client);

  // What to hand out, which counts for the client until nobody has it: this one, or what another
  // compiler made meanwhile. One that alone is larger than the cache is not kept. kUnavailable if
  // there is no room for it, as from MakeRoom().
  Result<std::shared_ptr<const Grammar>> Keep(const std::string& key,
                                              std::shared_ptr<const Grammar> grammar,
                                              uint64_t client);

  // The same grammar, of which what an answer takes as it grows (some 100 bytes a character) counts
  // for the client as well. One that finds no room ends with kUnavailable, one that has too much by
  // itself with kInvalidArgument. REQUIRES: a shared_ptr has this.
  std::shared_ptr<const Grammar> For(std::shared_ptr<const Grammar> grammar, uint64_t client);

  size_t bytes() const { return *bytes_; }  // of all that live
  size_t clients();                         // that have some, or had as the last one came

 private:
  using Bytes = std::atomic<size_t>;
  class ClientsGrammar;
  class ClientsState;
  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
    uint64_t client = 0;

    size_t size() const { return key.size() + grammar->bytes(); }
  };
  using Place = std::list<Entry>::iterator;

  std::shared_ptr<const Grammar> FindKept(const std::string& key);
  std::shared_ptr<Bytes> BytesOf(uint64_t client);
  template <class MayGo>
  bool Shrink(const Bytes& bytes, size_t limit, size_t more, MayGo may_go);
  Status MakeRoomFor(uint64_t client, size_t more);
  Status RoomToGoOn(uint64_t client, size_t held);
  Status TooMuchOfAClient() const;
  Status TooMuchOfAll() const;
  void ForgetClients();
  Place Drop(Place place);

  const GrammarCacheLimits limits_;
  const std::shared_ptr<Bytes> bytes_;  // grammars may outlive this

  std::mutex mutex_;
  // Guarded by it:
  std::unordered_map<uint64_t, std::weak_ptr<Bytes>> clients_;
  std::list<Entry> entries_;  // the latest used first
  std::unordered_map<std::string, Place> by_key_;
  size_t kept_bytes_ = 0;
};

}  // namespace fathom
