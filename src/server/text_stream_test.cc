#include "server/text_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace fathom {
namespace {

const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
  return *tokenizer;
}

std::vector<TokenId> Tokens(const std::string& text) {
  return TinyTokenizer().Encode(text, /*add_special_tokens=*/false).value();
}

TEST(TextStream, StopStringsBeginAfterTheMinimum) {
  const std::vector<TokenId> tokens = Tokens("a b a b");
  ASSERT_EQ(tokens.size(), 4u);
  const auto stops = std::make_shared<const StopStrings>(std::vector<std::string>{"b"});
  const TextStreamOptions options{.min_tokens = 2, .stop = stops};  // outlives the stream
  TextStream stream(TinyTokenizer(), options);
  std::string text;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(stream.stopped()) << i;
    text += stream.Push(tokens[i]);
  }
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(text, "a b a ");
}

TEST(TextStream, WhatMightHaveBecomeAStopStringIsShownAtTheEnd) {
  const auto stops = std::make_shared<const StopStrings>(std::vector<std::string>{"b c"});
  const TextStreamOptions options{.stop = stops};
  TextStream stream(TinyTokenizer(), options);
  std::string text;
  for (const TokenId id : Tokens("a b")) text += stream.Push(id);
  EXPECT_EQ(text, "a ");
  EXPECT_EQ(stream.Finish(), "b");
}

}  // namespace
}  // namespace fathom
