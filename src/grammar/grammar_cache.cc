#include "grammar/grammar_cache.h"

#include <iterator>
#include <utility>

namespace fathom {

std::shared_ptr<const Grammar> GrammarCache::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().grammar;
}

Status GrammarCache::MakeRoom(uint64_t client) {
  const auto own = [client](const Entry& entry) { return entry.client == client; };
  const auto any = [](const Entry&) { return true; };
  const auto known = clients_.find(client);
  const std::shared_ptr<Bytes> held = known == clients_.end() ? nullptr : known->second.lock();
  if (held && !Shrink(*held, limits_.client, own)) {
    return Unavailable(
        "The grammars of your requests in flight take more than {} MiB, which is all that one "
        "client may have: end some of your requests, or wait for their end.",
        limits_.client >> 20);
  }
  if (Shrink(*bytes_, limits_.all, any)) return {};
  return Unavailable(
      "The grammars of all clients' requests in flight take more than {} MiB, which is all that "
      "there is: try again later.",
      limits_.all >> 20);
}

std::shared_ptr<const Grammar> GrammarCache::Keep(const std::string& key,
                                                  std::shared_ptr<const Grammar> grammar,
                                                  uint64_t client) {
  if (std::shared_ptr<const Grammar> kept = Find(key)) return kept;
  const Grammar* const raw = grammar.get();
  const size_t bytes = raw->bytes();
  const std::shared_ptr<Bytes> own = BytesOf(client);
  *bytes_ += bytes;
  *own += bytes;
  const std::shared_ptr<const Grammar> counted(
      raw, [grammar = std::move(grammar), all = bytes_, own, bytes](const Grammar*) mutable {
        grammar.reset();
        *all -= bytes;
        *own -= bytes;
      });
  std::list<Entry> one;
  one.push_back({key, counted, client});
  by_key_.emplace(key, one.begin());
  entries_.splice(entries_.begin(), one);
  kept_bytes_ += entries_.front().size();
  while (kept_bytes_ > limits_.bytes || entries_.size() > limits_.entries) {
    Drop(std::prev(entries_.end()));
  }
  return counted;
}

// Those of clients that have nothing are forgotten.
std::shared_ptr<GrammarCache::Bytes> GrammarCache::BytesOf(uint64_t client) {
  std::erase_if(clients_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<Bytes>& known = clients_[client];
  std::shared_ptr<Bytes> bytes = known.lock();
  if (!bytes) known = bytes = std::make_shared<Bytes>(0);
  return bytes;
}

// Lets go of what nobody but the cache holds; whether `bytes` are within the limit then.
template <class MayGo>
bool GrammarCache::Shrink(const Bytes& bytes, size_t limit, MayGo may_go) {
  for (Place place = entries_.end(); bytes > limit && place != entries_.begin();) {
    --place;
    if (place->grammar.use_count() == 1 && may_go(*place)) place = Drop(place);
  }
  return bytes <= limit;
}

GrammarCache::Place GrammarCache::Drop(Place place) {
  kept_bytes_ -= place->size();
  by_key_.erase(place->key);
  return entries_.erase(place);
}

}  // namespace fathom
