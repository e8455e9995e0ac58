#include "parallel/wait_word.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(WaitWord, SaysOpShapeAndNumber) {
  const Meeting meeting = MeetingOf(WaitBits(MeetingOp::kDispatch, 8192, 129280) | 77);
  EXPECT_EQ(meeting.op, "dispatch");
  EXPECT_EQ(meeting.tokens, 8192);
  EXPECT_EQ(meeting.width, 129280);
  EXPECT_EQ(meeting.number, 77u);
  EXPECT_EQ(MeetingOf(0).op, "");
}

// What has no room does not spill over.
TEST(WaitWord, HoldsTheMostThatHasRoom) {
  const uint64_t number = Meeting::kNumbers - 1;
  const Meeting meeting =
      MeetingOf(WaitBits(MeetingOp::kCombine, int64_t{1} << 40, int64_t{1} << 20) | number);
  EXPECT_EQ(meeting.op, "combine");
  EXPECT_EQ(meeting.tokens, (1 << 20) - 1);
  EXPECT_EQ(meeting.width, (1 << 20) - 1);
  EXPECT_EQ(meeting.number, number);
}

}  // namespace
}  // namespace fathom
