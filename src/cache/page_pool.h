// The pages of the latent KV pool, as host bookkeeping: which are free, and who holds the others.
#pragma once

#include <cstdint>
#include <functional>
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

// A page can be kept: the pool has a reference of its own to it then. Once that is the only one,
// the page is idle: still what it was, and free if Allocate() needs it. THREAD: one.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);
  ~PagePool();  // REQUIRES: every PageRef is gone
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Appends `n` pages with one reference each; false, and nothing appended, when fewer are free.
  // The page freed last is handed out first; then those that are idle, the longest idle first.
  [[nodiscard]] bool Allocate(int32_t n, std::vector<PageRef>& pages);
  // Hears of each kept page that Allocate() takes. It must not change the pool.
  void OnEvict(std::function<void(PageId)> callback) { on_evict_ = std::move(callback); }

  void Keep(PageId page);     // REQUIRES: somebody holds it, and it is not kept
  void Forget(PageId page);   // REQUIRES: it is kept. An idle page is free now
  PageRef Hold(PageId page);  // one more reference. REQUIRES: it is kept
  bool kept(PageId page) const { return pages_[Checked(page)].kept; }

  int32_t num_pages() const { return static_cast<int32_t>(pages_.size()); }
  // That Allocate() could hand out, idle ones included.
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()) + idle_pages_; }
  int32_t idle_pages() const { return idle_pages_; }
  // To the page, the pool's own included.
  int32_t references(PageId page) const { return pages_[Checked(page)].references; }
  // PageRefs alone.
  int32_t holders(PageId page) const { return references(page) - kept(page); }

  // CHECKs that a page is in the free list exactly when nobody refers to it, among the idle ones
  // exactly when only the pool does, and there once.
  void CheckIntegrity() const;

 private:
  friend class PageRef;
  friend struct PagePoolSaboteur;  // breaks it on purpose: the simulation must notice
  struct Page {
    int32_t references = 0;
    bool kept = false;
    int32_t longer = kNone, shorter = kNone;  // of an idle one: its neighbours by time
  };
  static constexpr int32_t kNone = -1;

  size_t Checked(PageId page) const;
  bool is_idle(const Page& page) const { return page.kept && page.references == 1; }
  void AddReference(PageId page);
  void DropReference(PageId page);
  void Link(int32_t page);
  void Unlink(int32_t page);
  void EvictLongestIdle();

  std::vector<Page> pages_;
  std::vector<PageId> free_;  // a stack
  int32_t longest_idle_ = kNone, shortest_idle_ = kNone;
  int32_t idle_pages_ = 0;
  std::function<void(PageId)> on_evict_;
};

// Pages that `tokens` positions need.
constexpr int32_t PagesFor(int64_t tokens) {
  return static_cast<int32_t>((tokens + kPageTokens - 1) / kPageTokens);
}

}  // namespace fathom
