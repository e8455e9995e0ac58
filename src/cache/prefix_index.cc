#include "cache/prefix_index.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace fathom {
namespace {

template <class T>
void Append(const T& value, std::vector<uint8_t>& bytes) {
  const auto* from = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}

// With its length, so that two texts never run into each other.
void AppendText(std::string_view text, std::vector<uint8_t>& bytes) {
  Append(uint64_t{text.size()}, bytes);
  bytes.insert(bytes.end(), text.begin(), text.end());
}

}  // namespace

PrefixKey Sha256(std::span<const uint8_t> bytes) {
  PrefixKey key;
  static_assert(sizeof key == SHA256_DIGEST_LENGTH);
  CHECK(SHA256(bytes.data(), bytes.size(), key.data()) != nullptr, "OpenSSL has no SHA-256");
  return key;
}

size_t PrefixKeyHash::operator()(const PrefixKey& key) const {
  size_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof hash);
  return hash;
}

PrefixKey PrefixScope::Key() const {
  std::vector<uint8_t> bytes;
  for (const std::string* text : {&model, &kv_format, &adapter, &salt}) AppendText(*text, bytes);
  return Sha256(bytes);
}

void PrefixChain::MakeKeys(const PrefixHash& hash) {
  for (int32_t at = 0; at < size(); ++at) MakeKey(at, hash);
}

void PrefixChain::MakeKey(int32_t at, const PrefixHash& hash) {
  PrefixPage& page = pages[static_cast<size_t>(at)];
  CHECK(page.tokens.size() == kPageTokens, "a page of {} tokens", page.tokens.size());
  std::vector<uint8_t> bytes;
  Append(at == 0 ? scope : pages[static_cast<size_t>(at) - 1].key, bytes);
  for (const TokenId token : page.tokens) Append(token, bytes);
  Append(page.expanded, bytes);
  page.key = hash(bytes);
}

PrefixIndex::PrefixIndex(PagePool* pool)
    : pool_(pool), entries_(static_cast<size_t>(pool->num_pages())) {
  pool_->OnEvict([this](PageId page) { Erase(page); });
}

// The page that holds what page `at` of the chain must, behind `parent`.
PageId PrefixIndex::PageOf(const PrefixChain& chain, int32_t at, PageId parent) const {
  const PrefixPage& wanted = chain.pages[static_cast<size_t>(at)];
  const auto found = by_key_.find(wanted.key);
  if (found == by_key_.end()) return kNoPage;
  const Entry& entry = *entries_[static_cast<size_t>(Raw(found->second))];
  const bool same = entry.parent == parent && entry.scope == chain.scope &&
                    entry.expanded == wanted.expanded &&
                    std::ranges::equal(entry.tokens, wanted.tokens);
  return same ? found->second : kNoPage;
}

int32_t PrefixIndex::Find(const PrefixChain& chain, int32_t most) const {
  PageId page = kNoPage;
  for (int32_t at = 0; at < std::min(most, chain.size()); ++at) {
    page = PageOf(chain, at, page);
    if (page == kNoPage) return at;
  }
  return std::min(most, chain.size());
}

int32_t PrefixIndex::Idle(const PrefixChain& chain, int32_t count) const {
  int32_t idle = 0;
  for (int32_t at = 0; at < count; ++at) {
    idle += pool_->holders(by_key_.at(chain.pages[static_cast<size_t>(at)].key)) == 0;
  }
  return idle;
}

void PrefixIndex::Hold(const PrefixChain& chain, int32_t count, std::vector<PageRef>& pages) {
  for (int32_t at = 0; at < count; ++at) {
    pages.push_back(pool_->Hold(by_key_.at(chain.pages[static_cast<size_t>(at)].key)));
  }
}

bool PrefixIndex::Publish(const PrefixChain& chain, int32_t at, std::span<const PageRef> pages) {
  const PrefixPage& content = chain.pages[static_cast<size_t>(at)];
  const PageId page = pages[static_cast<size_t>(at)].id();
  const PageId parent = at == 0 ? kNoPage : pages[static_cast<size_t>(at - 1)].id();
  if (parent != kNoPage && !Contains(parent)) return false;
  if (!by_key_.emplace(content.key, page).second) return false;
  Entry& entry = entries_[static_cast<size_t>(Raw(page))].emplace();
  entry = {
      .key = content.key, .scope = chain.scope, .parent = parent, .expanded = content.expanded};
  std::ranges::copy(content.tokens, entry.tokens.begin());
  if (parent != kNoPage) ++entries_[static_cast<size_t>(Raw(parent))]->children;
  pool_->Keep(page);
  return true;
}

void PrefixIndex::Erase(PageId page) {
  std::optional<Entry>& entry = entries_[static_cast<size_t>(Raw(page))];
  CHECK(entry && entry->children == 0, "page {} is evicted before those behind it", Raw(page));
  by_key_.erase(entry->key);
  if (entry->parent != kNoPage) --entries_[static_cast<size_t>(Raw(entry->parent))]->children;
  entry.reset();
}

void PrefixIndex::Clear() {
  for (const auto& [key, page] : by_key_) {
    entries_[static_cast<size_t>(Raw(page))].reset();
    pool_->Forget(page);
  }
  by_key_.clear();
}

void PrefixIndex::CheckIntegrity() const {
  std::vector<int32_t> children(entries_.size());
  size_t count = 0;
  for (size_t page = 0; page < entries_.size(); ++page) {
    const std::optional<Entry>& entry = entries_[page];
    const PageId id{static_cast<int32_t>(page)};
    CHECK(entry.has_value() == pool_->kept(id),
          "page {} is kept and not here, or here and not kept", page);
    if (!entry) continue;
    ++count;
    const auto found = by_key_.find(entry->key);
    CHECK(found != by_key_.end() && found->second == id, "the key of page {} finds another", page);
    if (entry->parent == kNoPage) continue;
    CHECK(Contains(entry->parent), "page {} is behind one that is not here", page);
    CHECK(pool_->holders(id) == 0 || pool_->holders(entry->parent) > 0,
          "page {} is held, and the one before it is not", page);
    ++children[static_cast<size_t>(Raw(entry->parent))];
  }
  CHECK(count == by_key_.size(), "{} keys of {} pages", by_key_.size(), count);
  for (size_t page = 0; page < entries_.size(); ++page) {
    CHECK(!entries_[page] || entries_[page]->children == children[page],
          "page {} counts {} children of {}", page, entries_[page]->children, children[page]);
  }
}

}  // namespace fathom
