#include "server/response_store.h"

#include <fmt/format.h>

#include <random>
#include <utility>

namespace fathom {
namespace {

size_t BytesOf(const ResponseStore::Stored& stored) {
  constexpr size_t kBookkeeping = 256;
  return kBookkeeping + stored.id.size() + stored.response.size() + stored.messages.size();
}

}  // namespace

std::string ResponseStore::NewId() {
  std::random_device device;
  return fmt::format("resp_{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

void ResponseStore::EraseLocked(const std::string& id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  bytes_ -= BytesOf(*found->second);
  entries_.erase(found->second);
  by_id_.erase(found);
}

void ResponseStore::Put(Stored stored) {
  std::lock_guard lock(mutex_);
  EraseLocked(stored.id);
  if (BytesOf(stored) > max_bytes_) return;
  bytes_ += BytesOf(stored);
  entries_.push_front(std::move(stored));
  by_id_[entries_.front().id] = entries_.begin();
  while (entries_.size() > max_entries_ || bytes_ > max_bytes_) {
    EraseLocked(std::string(entries_.back().id));
  }
}

std::optional<ResponseStore::Stored> ResponseStore::Get(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return *found->second;
}

bool ResponseStore::Erase(const std::string& id) {
  std::lock_guard lock(mutex_);
  const bool known = by_id_.count(id) > 0;
  EraseLocked(id);
  return known;
}

}  // namespace fathom
