#include "server/response_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

namespace fathom {
namespace {

size_t BytesOf(const ResponseStore::Stored& stored) {
  constexpr size_t kBookkeeping = 256;
  return kBookkeeping + stored.owner.size() + stored.id.size() + stored.response.size() +
         stored.messages.size();
}

}  // namespace

std::string ResponseStore::NewId() {
  std::random_device device;
  return fmt::format("resp_{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

const ResponseStore::Entry* ResponseStore::FindLocked(const std::string& owner,
                                                      const std::string& id) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->stored->owner != owner) return nullptr;
  return &found->second;
}

void ResponseStore::EraseLocked(Entry entry) {
  const Stored& stored = *entry->stored;
  const auto held = by_owner_.find(stored.owner);
  held->second.bytes -= BytesOf(stored);
  bytes_ -= BytesOf(stored);
  by_id_.erase(stored.id);
  held->second.entries.erase(entry);
  if (held->second.entries.empty()) by_owner_.erase(held);
}

void ResponseStore::MakeRoomLocked() {
  while (by_id_.size() > max_entries_ || bytes_ > max_bytes_) {
    const bool by_bytes = bytes_ > max_bytes_;
    // Of those with as much: who has used theirs the longest ago.
    const auto weight = [by_bytes](const Held& held) {
      return std::pair(by_bytes ? held.bytes : held.entries.size(), ~held.entries.back().used);
    };
    const auto most = std::max_element(
        by_owner_.begin(), by_owner_.end(),
        [&](const auto& a, const auto& b) { return weight(a.second) < weight(b.second); });
    EraseLocked(std::prev(most->second.entries.end()));
  }
}

void ResponseStore::Put(Stored stored) {
  std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(stored.id); old != by_id_.end()) EraseLocked(old->second);
  if (BytesOf(stored) > max_bytes_) return;
  bytes_ += BytesOf(stored);
  Held& held = by_owner_[stored.owner];
  held.bytes += BytesOf(stored);
  held.entries.push_front({std::make_shared<const Stored>(std::move(stored)), ++uses_});
  by_id_[held.entries.front().stored->id] = held.entries.begin();
  MakeRoomLocked();
}

std::shared_ptr<const ResponseStore::Stored> ResponseStore::Get(const std::string& owner,
                                                                const std::string& id) {
  std::lock_guard lock(mutex_);
  const Entry* found = FindLocked(owner, id);
  if (found == nullptr) return nullptr;
  std::list<Kept>& entries = by_owner_[owner].entries;
  entries.splice(entries.begin(), entries, *found);
  entries.front().used = ++uses_;
  return entries.front().stored;
}

bool ResponseStore::Erase(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  const Entry* found = FindLocked(owner, id);
  if (found == nullptr) return false;
  EraseLocked(*found);
  return true;
}

}  // namespace fathom
