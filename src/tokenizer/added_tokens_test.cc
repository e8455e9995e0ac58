#include "tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

// Pieces as text: a token's in brackets with its id.
std::string Show(const AddedTokens& tokens, const SpannedText& text, bool everything_counts) {
  std::string shown;
  const auto show = [&](const AddedTokens::Piece& piece) -> Status {
    shown +=
        piece.id ? fmt::format("[{}:{}]", piece.text, Raw(*piece.id)) : std::string(piece.text);
    return {};
  };
  EXPECT_TRUE(tokens.Split(text.text(), everything_counts ? nullptr : &text.spans(), show).ok());
  return shown;
}

std::string Show(const AddedTokens& tokens, std::string_view text) {
  return Show(tokens, SpannedText(text, false), true);
}

AddedToken Token(int id, std::string content) {
  AddedToken token;
  token.id = TokenId{id};
  token.content = std::move(content);
  return token;
}

TEST(AddedTokens, LeftmostThenLongest) {
  const AddedTokens tokens({Token(1, "<a>"), Token(2, "<a><b>"), Token(3, "<b>"), Token(4, "b><")});
  EXPECT_EQ(Show(tokens, "x<a><b><a>y"), "x[<a><b>:2][<a>:1]y");
  EXPECT_EQ(Show(tokens, "<a><b"), "[<a>:1]<b");
  EXPECT_EQ(Show(tokens, "<<b><"), "<[<b>:3]<");
  EXPECT_EQ(Show(tokens, ""), "");
}

TEST(AddedTokens, SingleWord) {
  AddedToken token = Token(1, "on");
  token.single_word = true;
  const AddedTokens tokens({token});
  EXPECT_EQ(Show(tokens, "on, won once (on) on"), "[on:1], won once ([on:1]) [on:1]");
  EXPECT_EQ(Show(tokens, "oné éon on\u0301 on_ on9"), "oné éon on\u0301 on_ on9");
}

TEST(AddedTokens, StripsWhiteSpace) {
  AddedToken left = Token(1, "<l>"), right = Token(2, "<r>");
  left.lstrip = true;
  right.rstrip = true;
  const AddedTokens tokens({left, right});
  EXPECT_EQ(Show(tokens, "a \u3000<l> b"), "a[ \u3000<l>:1] b");
  EXPECT_EQ(Show(tokens, "a <r> \nb"), "a [<r> \n:2]b");
  EXPECT_EQ(Show(tokens, "<r>  <l>"), "[<r>  :2][<l>:1]");
}

TEST(AddedTokens, NormalizedOnesComeSecond) {
  AddedToken later = Token(1, "a<b");
  later.normalized = true;
  const AddedTokens tokens({later, Token(2, "<b>")});
  EXPECT_EQ(Show(tokens, "a<b> a<b"), "a[<b>:2] [a<b:1]");
}

TEST(AddedTokens, OnlyTrustedTextMatches) {
  const AddedTokens tokens({Token(1, "<a>"), Token(2, "<a><b>")});
  SpannedText text;
  text.Append("<a>x", true);
  text.Append("<a>", false);
  text.Append("<a>", true);
  text.Append("<b>", false);
  text.Append("<a", true);
  text.Append(">", false);
  EXPECT_EQ(Show(tokens, text, false), "[<a>:1]x<a>[<a>:1]<b><a>");
  EXPECT_EQ(Show(tokens, text, true), "[<a>:1]x[<a>:1][<a><b>:2][<a>:1]");
}

TEST(AddedTokens, PiecesKnowWhetherTheyAreTrusted) {
  const AddedTokens tokens({Token(1, "|")});
  SpannedText text;
  text.Append("a|b", true);
  text.Append("c", false);
  text.Append("|d", true);
  std::vector<AddedTokens::Piece> pieces;
  const auto take = [&](const AddedTokens::Piece& piece) -> Status {
    pieces.push_back(piece);
    return {};
  };
  ASSERT_TRUE(tokens.Split(text.text(), &text.spans(), take).ok());
  ASSERT_EQ(pieces.size(), 5u);
  EXPECT_TRUE(pieces[0].trusted);
  EXPECT_FALSE(pieces[2].trusted);  // "bc"
  EXPECT_TRUE(pieces[4].trusted);
}

}  // namespace
}  // namespace fathom
