// Which full pages hold which tokens: how a request finds what others have computed before it.
// Published pages are found by a chain of keys, each a hash of the key before it and of all that
// the page's latents depend on.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "cache/page_pool.h"

namespace fathom {

using PrefixKey = std::array<uint8_t, 32>;

PrefixKey Sha256(std::span<const uint8_t> bytes);

// Any eight bytes of a key are as good as random.
struct PrefixKeyHash {
  size_t operator()(const PrefixKey& key) const;
};

// Requests share pages only within one scope.
struct PrefixScope {
  std::string model;      // weights, and what computes with them
  std::string kv_format;  // how the pool stores latents
  std::string adapter;    // of the request; "": none
  std::string salt;       // of the request: who does not know it cannot find its pages

  PrefixKey Key() const;
};

// A full page of a prompt: what its latents depend on, beside the pages before it.
struct PrefixPage {
  std::span<const TokenId> tokens;  // kPageTokens of them
  uint64_t expanded = 0;            // bit i: token i takes the expanded form of attention
  PrefixKey key{};
};

using PrefixHash = std::function<PrefixKey(std::span<const uint8_t>)>;

// The leading full pages of a prompt, whose tokens outlive this.
struct PrefixChain {
  PrefixKey scope{};
  std::vector<PrefixPage> pages;

  int32_t size() const { return static_cast<int32_t>(pages.size()); }
  void MakeKeys(const PrefixHash& hash = Sha256);  // once the rest is set
  void MakeKey(int32_t at,
               const PrefixHash& hash);  // of one page, once those before it have theirs
};

// The published pages of a pool, which keeps them. A key finds a page; that this is the right one
// is then compared, so that no collision of keys ever shares a wrong page. Whoever holds a page
// holds those before it in its chain, and gives them back last to first: so the longest idle page
// is never the parent of another. THREAD: one.
class PrefixIndex {
 public:
  explicit PrefixIndex(PagePool* pool);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // How many leading pages of `chain` are here, of the first `most`.
  int32_t Find(const PrefixChain& chain, int32_t most) const;
  // Of the first `count`, which Find() has found, those that nobody holds.
  int32_t Idle(const PrefixChain& chain, int32_t count) const;
  // Appends a reference to each of the first `count`. REQUIRES: Find() has found them.
  void Hold(const PrefixChain& chain, int32_t count, std::vector<PageRef>& pages);

  // Page `at` of `chain` is written, in pages[at], and will never be written again. False, and it
  // stays as it is, if its parent, which must be pages[at - 1], is not here (any more), or if
  // something else has its key.
  bool Publish(const PrefixChain& chain, int32_t at, std::span<const PageRef> pages);
  // Forgets every page. Who holds one keeps it, unpublished.
  void Clear();

  int32_t size() const { return static_cast<int32_t>(by_key_.size()); }
  bool Contains(PageId page) const { return entries_[static_cast<size_t>(Raw(page))].has_value(); }

  // CHECKs that keys, entries and what the pool keeps are the same pages, and counts children.
  void CheckIntegrity() const;

 private:
  friend struct PrefixIndexSaboteur;  // breaks it on purpose: the simulation must notice
  static constexpr PageId kNoPage{-1};

  // What a page holds.
  struct Entry {
    PrefixKey key{};
    PrefixKey scope{};
    PageId parent = kNoPage;
    int32_t children = 0;
    std::array<TokenId, kPageTokens> tokens{};
    uint64_t expanded = 0;
  };

  PageId PageOf(const PrefixChain& chain, int32_t at, PageId parent) const;
  void Erase(PageId page);

  PagePool* const pool_;
  std::unordered_map<PrefixKey, PageId, PrefixKeyHash> by_key_;
  std::vector<std::optional<Entry>> entries_;  // [page]
};

}  // namespace fathom
