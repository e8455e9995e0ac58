#include "grammar/grammar_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/thread_bytes.h"

namespace fathom {

class GrammarCache::ClientsState final : public GrammarState {
 public:
  ClientsState(std::shared_ptr<GrammarCache> cache, std::shared_ptr<Bytes> own, uint64_t client)
      : cache_(std::move(cache)), own_(std::move(own)), client_(client) {}
  ~ClientsState() override { LetGo(); }

  Status Start(const Grammar& grammar) {
    const int64_t before = ThreadBytes();
    state_ = TRY(grammar.Start());
    Count(before);
    return GoOn();
  }
  Result<bool> Accept(TokenId token) override {
    const int64_t before = ThreadBytes();
    const bool accepted = TRY(state_->Accept(token));
    Count(before);
    if (!state_->terminated()) TRY(GoOn());
    return accepted;
  }
  Status FillMask(std::span<uint32_t> words) override {
    const int64_t before = ThreadBytes();
    TRY(state_->FillMask(words));
    Count(before);
    return GoOn();
  }
  bool terminated() const override { return state_ != nullptr && state_->terminated(); }
  Status Rollback(int32_t tokens) override {
    const int64_t before = ThreadBytes();
    TRY(state_->Rollback(tokens));
    Count(before);
    return {};
  }

 private:
  // What the thread has taken for the state since then, or given back of it.
  void Count(int64_t before) {
    const auto more = static_cast<size_t>(ThreadBytes() - before);  // may wrap: less
    held_ += more;
    *own_ += more;
    *cache_->bytes_ += more;
  }
  // Whoever finds no room lets go at once of what it has, so that others do.
  Status GoOn() {
    const GrammarCacheLimits& limits = cache_->limits_;
    const bool room_for_all = *own_ <= limits.client && *cache_->bytes_ <= limits.all;
    if (held_ <= limits.answer && room_for_all) return {};
    Status room = cache_->RoomToGoOn(client_, held_);
    if (!room.ok()) LetGo();
    return room;
  }
  void LetGo() {
    state_.reset();
    *own_ -= held_;
    *cache_->bytes_ -= held_;
    held_ = 0;
  }

  const std::shared_ptr<GrammarCache> cache_;
  const std::shared_ptr<Bytes> own_;
  const uint64_t client_;
  std::unique_ptr<GrammarState> state_;
  size_t held_ = 0;
};

class GrammarCache::ClientsGrammar final : public Grammar {
 public:
  ClientsGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<GrammarCache> cache,
                 std::shared_ptr<Bytes> own, uint64_t client)
      : grammar_(std::move(grammar)),
        cache_(std::move(cache)),
        own_(std::move(own)),
        client_(client) {}

  Result<std::unique_ptr<GrammarState>> Start() const override {
    auto state = std::make_unique<ClientsState>(cache_, own_, client_);
    TRY(state->Start(*grammar_));
    return std::unique_ptr<GrammarState>(std::move(state));
  }
  size_t bytes() const override { return grammar_->bytes(); }

 private:
  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<GrammarCache> cache_;
  const std::shared_ptr<Bytes> own_;
  const uint64_t client_;
};

std::shared_ptr<const Grammar> GrammarCache::For(std::shared_ptr<const Grammar> grammar,
                                                 uint64_t client) {
  std::lock_guard lock(mutex_);
  return std::make_shared<ClientsGrammar>(std::move(grammar), shared_from_this(), BytesOf(client),
                                          client);
}

size_t GrammarCache::clients() {
  std::lock_guard lock(mutex_);
  return clients_.size();
}

std::shared_ptr<const Grammar> GrammarCache::Find(const std::string& key) {
  std::lock_guard lock(mutex_);
  return FindKept(key);
}

std::shared_ptr<const Grammar> GrammarCache::FindKept(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().grammar;
}

Status GrammarCache::MakeRoom(uint64_t client) {
  std::lock_guard lock(mutex_);
  return MakeRoomFor(client, 0);
}

Status GrammarCache::MakeRoomFor(uint64_t client, size_t more) {
  const auto own = [client](const Entry& entry) { return entry.client == client; };
  const auto any = [](const Entry&) { return true; };
  const auto known = clients_.find(client);
  const std::shared_ptr<Bytes> held = known == clients_.end() ? nullptr : known->second.lock();
  if (held && !Shrink(*held, limits_.client, more, own)) return TooMuchOfAClient();
  return Shrink(*bytes_, limits_.all, more, any) ? Status() : TooMuchOfAll();
}

Status GrammarCache::RoomToGoOn(uint64_t client, size_t held) {
  std::lock_guard lock(mutex_);
  if (held > limits_.answer) {
    return InvalidArgument(
        "The answer takes more than {} MiB under its grammar: ask for a shorter one, or for a "
        "simpler form.",
        limits_.answer >> 20);
  }
  Status room = MakeRoomFor(client, 0);
  if (room.ok()) return room;
  // Beyond all only those end who have more than an equal part of it.
  ForgetClients();
  const auto known = clients_.find(client);
  const std::shared_ptr<Bytes> own = known == clients_.end() ? nullptr : known->second.lock();
  const bool modest = own && *own <= std::min(limits_.client, limits_.all / clients_.size());
  return modest ? Status() : room;
}

Status GrammarCache::TooMuchOfAClient() const {
  return Unavailable(
      "The grammars of your requests in flight, and their answers, take more than {} MiB, all that "
      "one client may have: end some of your requests, or wait for their end.",
      limits_.client >> 20);
}
Status GrammarCache::TooMuchOfAll() const {
  return Unavailable(
      "The grammars of all clients' requests in flight, and their answers, take more than {} MiB, "
      "all that there is: try again later.",
      limits_.all >> 20);
}

Result<std::shared_ptr<const Grammar>> GrammarCache::Keep(const std::string& key,
                                                          std::shared_ptr<const Grammar> grammar,
                                                          uint64_t client) {
  std::lock_guard lock(mutex_);
  if (std::shared_ptr<const Grammar> kept = FindKept(key)) return kept;
  const Grammar* const raw = grammar.get();
  const size_t bytes = raw->bytes();
  const std::shared_ptr<Bytes> own = BytesOf(client);
  TRY(MakeRoomFor(client, bytes));
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

// Of those that have nothing.
void GrammarCache::ForgetClients() {
  std::erase_if(clients_, [](const auto& known) { return known.second.expired(); });
}

std::shared_ptr<GrammarCache::Bytes> GrammarCache::BytesOf(uint64_t client) {
  ForgetClients();
  std::weak_ptr<Bytes>& known = clients_[client];
  std::shared_ptr<Bytes> bytes = known.lock();
  if (!bytes) known = bytes = std::make_shared<Bytes>(0);
  return bytes;
}

// Lets go of what nobody but the cache holds; whether `bytes` and `more` are within the limit then.
template <class MayGo>
bool GrammarCache::Shrink(const Bytes& bytes, size_t limit, size_t more, MayGo may_go) {
  for (Place place = entries_.end(); bytes + more > limit && place != entries_.begin();) {
    --place;
    if (place->grammar.use_count() == 1 && may_go(*place)) place = Drop(place);
  }
  return bytes + more <= limit;
}

GrammarCache::Place GrammarCache::Drop(Place place) {
  kept_bytes_ -= place->size();
  by_key_.erase(place->key);
  return entries_.erase(place);
}

}  // namespace fathom
