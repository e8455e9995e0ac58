#include "speculation/speculation.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

Speculation Ngram(int32_t tokens, int32_t least, int32_t most) {
  return {.method = Speculation::Method::kNgram,
          .num_tokens = tokens,
          .lookup_min = least,
          .lookup_max = most};
}

TEST(Speculation, Bounds) {
  EXPECT_TRUE(Speculation().Check().ok());
  EXPECT_TRUE(Ngram(1, 1, 1).Check().ok());
  EXPECT_TRUE(Ngram(15, 1, 32).Check().ok());
  for (const int32_t tokens : {-1, 0, 16}) {
    EXPECT_EQ(Ngram(tokens, 2, 5).Check().message(),
              fmt::format("num_speculative_tokens is {}: it must be between 1 and 15", tokens));
  }
  for (const auto& [least, most] : {std::pair(0, 5), {5, 4}, {5, 33}}) {
    const std::string message = Ngram(3, least, most).Check().message();
    EXPECT_TRUE(message.starts_with(
        fmt::format("prompt_lookup_min is {} and prompt_lookup_max {}: ", least, most)))
        << message;
  }
}

TEST(Speculation, Methods) {
  EXPECT_EQ(*ParseSpeculationMethod("ngram"), Speculation::Method::kNgram);
  EXPECT_EQ(ParseSpeculationMethod("eagle").status().message(),
            "method \"eagle\": fathom has \"mtp\" and \"ngram\"");
}

}  // namespace
}  // namespace fathom
