// Grammars that live: those that are kept for who asks again, and what all of them take, those that
// requests in flight hold among them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

struct GrammarCacheLimits {
  size_t bytes = 0, entries = 0;  // of those that are kept
  size_t all = 0;                 // bytes of all that live, before one more is compiled
  size_t client = 0;              // the same, of those that were compiled for one client
};

// THREAD: one at a time, but for bytes(); grammars may be let go on any.
class GrammarCache {
 public:
  explicit GrammarCache(const GrammarCacheLimits& limits)
      : limits_(limits), bytes_(std::make_shared<Bytes>(0)) {}

  // nullptr: it is not kept.
  std::shared_ptr<const Grammar> Find(const std::string& key);

  // For one more of this client. Beyond a limit those go that are only kept, the latest used last:
  // of the client's share its own. kUnavailable if requests hold more than that all the same.
  Status MakeRoom(uint64_t client);

  // What to hand out, which counts for the client until nobody has it: this one, or what another
  // compiler made meanwhile. One that alone is larger than the cache is not kept.
  std::shared_ptr<const Grammar> Keep(const std::string& key,
                                      std::shared_ptr<const Grammar> grammar, uint64_t client);

  size_t bytes() const { return *bytes_; }            // of all that live
  size_t clients() const { return clients_.size(); }  // that have some, or had as the last was kept

 private:
  using Bytes = std::atomic<size_t>;
  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
    uint64_t client = 0;

    size_t size() const { return key.size() + grammar->bytes(); }
  };
  using Place = std::list<Entry>::iterator;

  std::shared_ptr<Bytes> BytesOf(uint64_t client);
  template <class MayGo>
  bool Shrink(const Bytes& bytes, size_t limit, MayGo may_go);
  Place Drop(Place place);

  const GrammarCacheLimits limits_;
  const std::shared_ptr<Bytes> bytes_;  // grammars may outlive this
  std::unordered_map<uint64_t, std::weak_ptr<Bytes>> clients_;
  std::list<Entry> entries_;  // the latest used first
  std::unordered_map<std::string, Place> by_key_;
  size_t kept_bytes_ = 0;
};

}  // namespace fathom
