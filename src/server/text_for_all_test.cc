#include "server/text_for_all.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>

namespace fathom {
namespace {

TEST(TextForAll, OneServesAllWhoAskedBeforeItWasBegun) {
  TextForAll text;
  int made = 0;
  const auto make = [&] { return std::to_string(++made); };
  const auto early = std::chrono::steady_clock::now();
  const auto first = text.Get(early, make);
  EXPECT_EQ(*first, "1");
  EXPECT_EQ(text.Get(early, make), first);
  // Who asks now may have seen what has happened since.
  EXPECT_EQ(*text.Get(std::chrono::steady_clock::now(), make), "2");
  EXPECT_EQ(*text.Get(early, make), "2");
  EXPECT_EQ(*first, "1");
}

TEST(TextForAll, AFailureIsNobodyElses) {
  TextForAll text;
  const auto early = std::chrono::steady_clock::now();
  EXPECT_THROW(text.Get(early, []() -> std::string { throw std::runtime_error("no room"); }),
               std::runtime_error);
  EXPECT_EQ(*text.Get(early, [] { return std::string("whole"); }), "whole");
}

}  // namespace
}  // namespace fathom
