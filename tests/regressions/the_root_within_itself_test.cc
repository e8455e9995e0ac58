// Where rules named the root, its masks forbade tokens that go on behind it, though the grammar
// takes them: "a)" behind "(".
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/token_mask.h"
#include "grammar/byte_vocabulary.h"

namespace fathom {
namespace {

bool MayFollow(GrammarKind kind, const std::string& text, const std::string& before,
               const std::string& token) {
  GrammarVocabulary vocabulary = ByteVocabulary();
  vocabulary.tokens.push_back(token);
  vocabulary.size = 258;
  const auto grammar = MakeXgrammarCompile(vocabulary)({.kind = kind, .text = text});
  EXPECT_TRUE(grammar.ok()) << text << ": " << grammar.status().message();
  const auto state = (*grammar)->Start().value();
  for (const char c : before) {
    EXPECT_TRUE(state->Accept(TokenId{static_cast<unsigned char>(c)}).value());
  }
  std::vector<uint32_t> words(MaskWords(vocabulary.size));
  EXPECT_TRUE(state->FillMask(words).ok());
  const bool allowed = (words[8] >> 1 & 1) != 0;
  EXPECT_EQ(state->Accept(TokenId{257}).value(), allowed) << text << " and " << token;
  return allowed;
}

TEST(TheRootWithinItself, GoesOnBehindItsEnd) {
  constexpr GrammarKind kEbnf = GrammarKind::kEbnf, kSchema = GrammarKind::kJsonSchema;
  EXPECT_TRUE(MayFollow(kEbnf, "root ::= \"(\" root \")\" | \"a\"", "(", "a)"));
  EXPECT_FALSE(MayFollow(kEbnf, "root ::= \"(\" root \")\" | \"a\"", "", "a)"));
  EXPECT_TRUE(MayFollow(kEbnf, "root ::= \"(\" root{1,200} \")\" | \"a\"", "(", "a)"));
  EXPECT_TRUE(MayFollow(kEbnf, "root ::= root \"+\" root | \"a\"", "", "a+a+a"));
  const std::string lists = R"({"type": "array", "items": {"$ref": "#"}})";
  EXPECT_TRUE(MayFollow(kSchema, lists, "[[", "]]"));
  EXPECT_TRUE(MayFollow(kSchema, lists, "[[", "], []"));
  EXPECT_FALSE(MayFollow(kSchema, lists, "[[", "]]]"));
}

}  // namespace
}  // namespace fathom
