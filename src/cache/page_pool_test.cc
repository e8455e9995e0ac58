#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fathom {
namespace {

TEST(PagePool, AllocatesAllOrNothing) {
  PagePool pool(3);
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.Allocate(2, pages));
  EXPECT_FALSE(pool.Allocate(2, pages));
  EXPECT_EQ(pages.size(), 2u);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_TRUE(pool.Allocate(0, pages));
  EXPECT_TRUE(pool.Allocate(1, pages));
  EXPECT_FALSE(pool.Allocate(1, pages));
  pool.CheckIntegrity();
}

TEST(PagePool, LastFreedIsFirstUsed) {
  PagePool pool(4);
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.Allocate(3, pages));
  EXPECT_EQ(pages[0].id(), PageId{0});
  EXPECT_EQ(pages[2].id(), PageId{2});
  pages.erase(pages.begin() + 1);
  ASSERT_TRUE(pool.Allocate(1, pages));
  EXPECT_EQ(pages.back().id(), PageId{1});
}

TEST(PagePool, SharedPageStaysUntilTheLastReferenceIsGone) {
  PagePool pool(1);
  std::vector<PageRef> first, second;
  ASSERT_TRUE(pool.Allocate(1, first));
  second.push_back(first[0].Share());
  EXPECT_EQ(pool.references(first[0].id()), 2);
  first.clear();
  EXPECT_EQ(pool.free_pages(), 0);
  pool.CheckIntegrity();
  second.clear();
  EXPECT_EQ(pool.free_pages(), 1);
  pool.CheckIntegrity();
}

TEST(PagePool, MovingKeepsOneReference) {
  PagePool pool(2);
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.Allocate(2, pages));
  pages[0] = std::move(pages[1]);
  pages.pop_back();
  EXPECT_EQ(pages[0].id(), PageId{1});
  EXPECT_EQ(pool.free_pages(), 1);
  pool.CheckIntegrity();
}

TEST(PagePool, KeptPagesAreIdleUntilTheyAreNeeded) {
  PagePool pool(3);
  std::vector<PageId> evicted;
  pool.OnEvict([&](PageId page) { evicted.push_back(page); });
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.Allocate(2, pages));
  for (const PageRef& page : pages) pool.Keep(page.id());
  EXPECT_EQ(pool.references(PageId{0}), 2);
  EXPECT_EQ(pool.holders(PageId{0}), 1);
  pages.clear();
  pool.CheckIntegrity();
  EXPECT_EQ(pool.idle_pages(), 2);
  EXPECT_EQ(pool.free_pages(), 3);
  pages.push_back(pool.Hold(PageId{0}));
  EXPECT_EQ(pool.idle_pages(), 1);
  ASSERT_TRUE(pool.Allocate(2, pages));  // the free one, then the idle one
  EXPECT_EQ(evicted, std::vector<PageId>{PageId{1}});
  EXPECT_FALSE(pool.Allocate(1, pages));
  pool.Forget(PageId{0});
  EXPECT_EQ(pool.references(PageId{0}), 1);
  pool.CheckIntegrity();
}

TEST(PagePool, RandomUseLosesNothing) {
  PagePool pool(17);
  Rng rng(1);
  std::vector<PageRef> held;
  for (int i = 0; i < 10000; ++i) {
    const uint32_t what = rng.Below(3);
    if (what == 0) {
      const int32_t n = static_cast<int32_t>(rng.Below(5));
      const bool enough = n <= pool.free_pages();
      EXPECT_EQ(pool.Allocate(n, held), enough);
    } else if (!held.empty()) {
      const size_t at = rng.Below(static_cast<uint32_t>(held.size()));
      if (what == 1 && held.size() < 50) {
        held.push_back(held[at].Share());
      } else {
        held.erase(held.begin() + at);
      }
    }
    pool.CheckIntegrity();
  }
  held.clear();
  EXPECT_EQ(pool.free_pages(), 17);
}

TEST(PagePoolDeathTest, LeakIsCaught) {
  EXPECT_DEATH(
      {
        std::vector<PageRef> leaked;
        PagePool pool(2);
        (void)pool.Allocate(1, leaked);
      },
      "1 of 2 pages are still held");
}

}  // namespace
}  // namespace fathom
