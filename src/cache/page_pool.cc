#include "cache/page_pool.h"

#include "base/check.h"

namespace fathom {

PageRef::~PageRef() {
  if (pool_ != nullptr) pool_->DropReference(id_);
}

PageRef PageRef::Share() const {
  CHECK(pool_ != nullptr, "Share() of a moved-from page reference");
  pool_->AddReference(id_);
  return PageRef(pool_, id_);
}

PagePool::PagePool(int32_t num_pages) {
  CHECK(num_pages >= 1, "a pool of {} pages", num_pages);
  pages_.resize(static_cast<size_t>(num_pages));
  free_.reserve(pages_.size());
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(PageId{page});
}

PagePool::~PagePool() {
  CHECK(free_pages() == num_pages(), "{} of {} pages are still held", num_pages() - free_pages(),
        num_pages());
}

bool PagePool::Allocate(int32_t n, std::vector<PageRef>& pages) {
  CHECK(n >= 0, "{} pages", n);
  if (n > free_pages()) return false;
  for (int32_t i = 0; i < n; ++i) {
    if (free_.empty()) EvictLongestIdle();
    const PageId page = free_.back();
    free_.pop_back();
    pages_[Checked(page)].references = 1;
    pages.push_back(PageRef(this, page));
  }
  return true;
}

void PagePool::EvictLongestIdle() {
  const PageId page{longest_idle_};
  if (on_evict_) on_evict_(page);
  Forget(page);
}

void PagePool::Keep(PageId page) {
  Page& kept = pages_[Checked(page)];
  CHECK(kept.references > 0 && !kept.kept, "page {} is free, or kept already", Raw(page));
  kept.kept = true;
  ++kept.references;
}

void PagePool::Forget(PageId page) {
  Page& kept = pages_[Checked(page)];
  CHECK(kept.kept, "page {} is not kept", Raw(page));
  if (is_idle(kept)) Unlink(Raw(page));
  kept.kept = false;
  if (--kept.references == 0) free_.push_back(page);
}

PageRef PagePool::Hold(PageId page) {
  CHECK(kept(page), "page {} is not kept", Raw(page));
  AddReference(page);
  return PageRef(this, page);
}

size_t PagePool::Checked(PageId page) const {
  CHECK(Raw(page) >= 0 && Raw(page) < num_pages(), "page {} of {}", Raw(page), num_pages());
  return static_cast<size_t>(Raw(page));
}

void PagePool::AddReference(PageId page) {
  Page& shared = pages_[Checked(page)];
  CHECK(shared.references > 0, "page {} is free", Raw(page));
  if (is_idle(shared)) Unlink(Raw(page));
  ++shared.references;
}

void PagePool::DropReference(PageId page) {
  Page& dropped = pages_[Checked(page)];
  CHECK(dropped.references > 0, "page {} is freed twice", Raw(page));
  if (--dropped.references == 0) free_.push_back(page);
  if (is_idle(dropped)) Link(Raw(page));
}

void PagePool::Link(int32_t page) {
  Page& idle = pages_[static_cast<size_t>(page)];
  idle.longer = shortest_idle_;
  idle.shorter = kNone;
  (shortest_idle_ == kNone ? longest_idle_ : pages_[static_cast<size_t>(shortest_idle_)].shorter) =
      page;
  shortest_idle_ = page;
  ++idle_pages_;
}

void PagePool::Unlink(int32_t page) {
  const Page& idle = pages_[static_cast<size_t>(page)];
  (idle.longer == kNone ? longest_idle_ : pages_[static_cast<size_t>(idle.longer)].shorter) =
      idle.shorter;
  (idle.shorter == kNone ? shortest_idle_ : pages_[static_cast<size_t>(idle.shorter)].longer) =
      idle.longer;
  --idle_pages_;
}

void PagePool::CheckIntegrity() const {
  std::vector<bool> listed(pages_.size(), false);
  for (PageId page : free_) {
    CHECK(references(page) == 0, "page {} is free and has {} references", Raw(page),
          references(page));
    CHECK(!listed[Checked(page)], "page {} is free twice", Raw(page));
    listed[Checked(page)] = true;
  }
  int32_t idle = 0, before = kNone;
  for (int32_t page = longest_idle_; page != kNone; ++idle) {
    const Page& at = pages_[Checked(PageId{page})];
    CHECK(is_idle(at) && at.longer == before && !listed[static_cast<size_t>(page)],
          "page {} stands among the idle ones, with {} references", page, at.references);
    listed[static_cast<size_t>(page)] = true;
    before = page;
    page = at.shorter;
  }
  CHECK(idle == idle_pages_ && before == shortest_idle_);
  for (int32_t page = 0; page < num_pages(); ++page) {
    const Page& at = pages_[static_cast<size_t>(page)];
    const bool in_use = at.references > (at.kept ? 1 : 0);
    CHECK(in_use != listed[static_cast<size_t>(page)],
          "page {} is lost: {} references, not in the free list", page, at.references);
  }
}

}  // namespace fathom
