// The pages of the latent KV pool, as host bookkeeping: which are free, and who holds the others.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace fathom {

class PagePool;

// One reference to a page, given back when it dies. The pool outlives its references.
class PageRef {
 public:
  PageRef(PageRef&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  PageRef& operator=(PageRef&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~PageRef();

  PageId id() const { return id_; }
  PageRef Share() const;  // one more reference to the same page

 private:
  friend class PagePool;
  PageRef(PagePool* pool, PageId id) : pool_(pool), id_(id) {}

  PagePool* pool_;  // null once moved from
  PageId id_;
};

// THREAD: one.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);
  ~PagePool();  // REQUIRES: every reference is gone
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Appends `n` pages with one reference each; false, and nothing appended, when fewer are free.
  // The page freed last is handed out first.
  [[nodiscard]] bool Allocate(int32_t n, std::vector<PageRef>& pages);

  int32_t num_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()); }
  int32_t references(PageId page) const;

  // CHECKs that a page is in the free list exactly when nobody refers to it, and there once.
  void CheckIntegrity() const;

 private:
  friend class PageRef;
  void AddReference(PageId page);
  void DropReference(PageId page);

  std::vector<int32_t> references_;  // [page]
  std::vector<PageId> free_;         // a stack
};

// Pages that `tokens` positions need.
constexpr int32_t PagesFor(int64_t tokens) {
  return static_cast<int32_t>((tokens + kPageTokens - 1) / kPageTokens);
}

}  // namespace fathom
