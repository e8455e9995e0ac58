#include "grammar/utf8_tokens.h"

#include <gtest/gtest.h>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

TEST(Utf8TokensTest, ATokenMayBeWrongWithinAndBehindAnother) {
  const Utf8Tokens tokens({"a", "\xed", "\x9f\xbf", "\xa0\x80", "x\xed\xa0\x80", "", "\xe0"});
  const auto may = [&](uint8_t last, int32_t id) { return tokens.MayFollow(last, TokenId{id}); };
  EXPECT_TRUE(may(0xed, 2) && may(0xe0, 3) && may(0xe1, 2) && may('a', 6));
  EXPECT_FALSE(may(0xed, 3) || may(0xe0, 2) || may('a', 4));
  EXPECT_EQ(tokens.Last(TokenId{2}), 0xbf);
  EXPECT_EQ(tokens.Last(TokenId{5}), 0);
  std::vector<uint32_t> words = {0x7f};
  tokens.Mask(0xed, words);
  EXPECT_EQ(words[0], 0x67U);
}

// Halves of characters, letters longer than need be, and what is beyond Unicode; in every kind of
// grammar.
TEST(Utf8TokensTest, NoGrammarTakesWhatIsNoUtf8) {
  const auto compile = MakeXgrammarCompile(ByteVocabulary());
  for (const GrammarSpec& spec :
       {GrammarSpec{GrammarKind::kJsonSchema, R"({"type": "string"})"},
        GrammarSpec{GrammarKind::kJsonSchema, R"({"type": "string", "maxLength": 3})"},
        GrammarSpec{GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "."})"},
        GrammarSpec{GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "[^a]"})"},
        GrammarSpec{GrammarKind::kRegex, "\"\\S\""},
        GrammarSpec{GrammarKind::kEbnf, "root ::= \"\\\"\" [^a] \"\\\"\""}}) {
    const auto grammar = compile(spec);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    for (const char* good : {"b", "é", "\u0800", "\ud7ff", "\ue000", "\U00010000", "\U0010ffff"}) {
      EXPECT_TRUE(TakesBytes(**grammar, "\"" + std::string(good) + "\"")) << spec.text << good;
    }
    for (const char* bad : {"\xed\xa0\x80", "\xed\xbf\xbf", "\xe0\x80\x80", "\xf0\x80\x80\x80",
                            "\xf4\x90\x80\x80", "\xc0\x80", "\x80", "\xff"}) {
      EXPECT_FALSE(TakesBytes(**grammar, "\"" + std::string(bad) + "\"")) << spec.text;
    }
    // The mask and Accept() say the same, and a state that goes back knows its last byte.
    const auto state = *(*grammar)->Start();
    for (const uint8_t byte : {uint8_t{'"'}, uint8_t{0xed}})
      ASSERT_TRUE(*state->Accept(TokenId{byte}));
    for (int i = 0; i < 2; ++i) {
      std::vector<uint32_t> words(MaskWords(257));
      ASSERT_TRUE(state->FillMask(words).ok());
      EXPECT_EQ(words[0x9f / 32] >> (0x9f % 32) & 1, 1U);
      EXPECT_EQ(words[0xa0 / 32] >> (0xa0 % 32) & 1, 0U);
      EXPECT_FALSE(*state->Accept(TokenId{0xa0}));
      ASSERT_TRUE(*state->Accept(TokenId{0x9f}));
      ASSERT_TRUE(state->Rollback(1).ok());
    }
  }
}

}  // namespace
}  // namespace fathom
