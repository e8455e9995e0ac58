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
  references_.assign(num_pages, 0);
  free_.reserve(num_pages);
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
    const PageId page = free_.back();
    free_.pop_back();
    references_[Raw(page)] = 1;
    pages.push_back(PageRef(this, page));
  }
  return true;
}

int32_t PagePool::references(PageId page) const {
  CHECK(Raw(page) >= 0 && Raw(page) < num_pages(), "page {} of {}", Raw(page), num_pages());
  return references_[Raw(page)];
}

void PagePool::AddReference(PageId page) {
  CHECK(references_[Raw(page)] > 0, "page {} is free", Raw(page));
  ++references_[Raw(page)];
}

void PagePool::DropReference(PageId page) {
  CHECK(references_[Raw(page)] > 0, "page {} is freed twice", Raw(page));
  if (--references_[Raw(page)] == 0) free_.push_back(page);
}

void PagePool::CheckIntegrity() const {
  std::vector<bool> listed(references_.size(), false);
  for (PageId page : free_) {
    CHECK(references(page) == 0, "page {} is free and has {} references", Raw(page),
          references(page));
    CHECK(!listed[Raw(page)], "page {} is free twice", Raw(page));
    listed[Raw(page)] = true;
  }
  for (int32_t page = 0; page < num_pages(); ++page) {
    CHECK(references_[page] >= 0 && (references_[page] > 0 || listed[page]),
          "page {} is lost: {} references, not in the free list", page, references_[page]);
  }
}

}  // namespace fathom
