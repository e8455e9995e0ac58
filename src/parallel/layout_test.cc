#include "parallel/layout.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(LayoutTest, SharesFollowEachOtherAndLeaveNothing) {
  for (const int64_t n : {1, 2, 64, 96, 128, 448, 1408, 10944, 18432, 129280}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const int64_t unit = ShareUnit(n, ranks);
      if (n < ranks) {
        EXPECT_EQ(unit, 0);
        continue;
      }
      int64_t end = 0, least = n, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Share share = ShareOf(n, unit, ranks, rank);
        EXPECT_EQ(share.begin, end);
        EXPECT_EQ(share.begin % unit, 0);
        EXPECT_GT(share.size(), 0) << n << " over " << ranks;
        end = share.end;
        least = std::min(least, share.size());
        most = std::max(most, share.size());
      }
      EXPECT_EQ(end, n);
      EXPECT_LT(most - least, 2 * unit) << n << " over " << ranks;
    }
  }
}

TEST(LayoutTest, CutsAtScaleTilesWhereThereAreEnough) {
  // V2-Lite's experts: 11 tiles.
  EXPECT_EQ(ShareUnit(1408, 2), 128);
  EXPECT_EQ(ShareOf(1408, 128, 2, 0), (Share{0, 768}));
  EXPECT_EQ(ShareOf(1408, 128, 2, 1), (Share{768, 1408}));
  // Its dense layer: 85 tiles and a half.
  EXPECT_EQ(ShareOf(10944, 128, 2, 1), (Share{43 * 128, 10944}));
  EXPECT_EQ(ShareUnit(128, 2), 64);
  EXPECT_EQ(ShareUnit(96, 2), 64);
  EXPECT_EQ(ShareUnit(96, 4), 16);
}

}  // namespace
}  // namespace fathom
