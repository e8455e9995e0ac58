#include "server/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace fathom {
namespace {

struct Found {
  std::string text;
  std::optional<std::string> matched;
  friend bool operator==(const Found&, const Found&) = default;
};

// By definition: the match that ends first, of those the longest.
Found Expected(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > best.size()) {
        best = stop;
      }
    }
    if (!best.empty()) return {text.substr(0, end - (include ? 0 : best.size())), best};
  }
  return {text, std::nullopt};
}

TEST(StopStrings, HoldsBackOnlyWhatMayStillMatch) {
  StopMatcher matcher(std::make_shared<StopStrings>(std::vector<std::string>{"END", "\n\n"}));
  EXPECT_EQ(matcher.Push("a E", false), "a ");
  EXPECT_EQ(matcher.Push("N", false), "");
  EXPECT_EQ(matcher.Push("E\n", false), "ENE");
  EXPECT_EQ(matcher.Push("b\nEN", false), "\nb\n");
  EXPECT_EQ(matcher.Push("D tail", false), "");
  EXPECT_EQ(matcher.matched(), "END");
}

TEST(StopStrings, WithoutStringsPassesAllOn) {
  StopMatcher matcher(nullptr);
  EXPECT_EQ(matcher.Push("text", false), "text");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopStrings, EveryCutOfTheTextFindsTheSame) {
  Rng rng(1);
  for (int round = 0; round < 20'000; ++round) {
    const auto random_text = [&](int length) {
      std::string text;
      for (int i = 0; i < length; ++i) text += static_cast<char>('a' + rng.Below(2));
      return text;
    };
    std::vector<std::string> stops;
    for (uint32_t i = 0; i <= rng.Below(3); ++i) stops.push_back(random_text(1 + rng.Below(6)));
    const std::string text = random_text(rng.Below(24));
    const bool include = rng.Below(2) == 0;
    StopMatcher matcher(std::make_shared<StopStrings>(stops));
    std::string got;
    for (size_t at = 0; at < text.size() && !matcher.matched();) {
      const size_t size = std::min<size_t>(rng.Below(4), text.size() - at);
      got += matcher.Push(text.substr(at, size), include);
      at += size;
    }
    if (!matcher.matched()) got += matcher.Flush();
    EXPECT_EQ((Found{got, matcher.matched()}), Expected(text, stops, include)) << text;
  }
}

}  // namespace
}  // namespace fathom
