#include "tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tokenizer/test_tokenizer.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

class DetokenizerTest : public testing::Test {
 protected:
  // The ids of single bytes are the bytes; 261 is special.
  TokenizerFolder folder_{TokenizerFields()};
  std::unique_ptr<Tokenizer> tokenizer_ = std::move(Tokenizer::Load(folder_.path())).value();
};

TEST_F(DetokenizerTest, WaitsForTheWholeCharacter) {
  Detokenizer detokenizer(*tokenizer_, true);
  EXPECT_EQ(detokenizer.Push(TokenId{257}), "abc");
  EXPECT_EQ(detokenizer.Push(TokenId{0xF0}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{0x9F}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{261}), "");  // skipped, and in nobody's way
  EXPECT_EQ(detokenizer.Push(TokenId{0x91}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{0x8D}), "👍");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST_F(DetokenizerTest, BrokenCharactersAreReplaced) {
  Detokenizer detokenizer(*tokenizer_, false);
  EXPECT_EQ(detokenizer.Push(TokenId{0xE4}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{'x'}), "\uFFFDx");
  EXPECT_EQ(detokenizer.Push(TokenId{0xE4}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{261}), "\uFFFD<s>");
  EXPECT_EQ(detokenizer.Push(TokenId{0xE4}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{0xB8}), "");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.Finish(), "");
  EXPECT_EQ(detokenizer.Push(TokenId{777}), "");  // no such token
}

TEST_F(DetokenizerTest, PiecesConcatenateToTheDecodedText) {
  Rng rng(3);
  const std::string lively = "\xE4\xB8\xAD\xF0\x9F\x91\x8D\xC3\xA9z\xFF";  // half-made characters
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids;
    for (uint32_t size = rng.Below(12); ids.size() < size;) {
      ids.push_back(rng.Below(3) ? TokenId{static_cast<uint8_t>(lively[rng.Below(lively.size())])}
                                 : TokenId{static_cast<int32_t>(rng.Below(264))});
    }
    for (const bool skip : {false, true}) {
      Detokenizer detokenizer(*tokenizer_, skip);
      std::string text;
      for (const TokenId id : ids) {
        const std::string piece = detokenizer.Push(id);
        ASSERT_EQ(ValidUtf8Prefix(piece), piece.size());
        text += piece;
      }
      text += detokenizer.Finish();
      ASSERT_EQ(text, tokenizer_->Decode(ids, skip));
    }
  }
}

}  // namespace
}  // namespace fathom
