// Masks judge tokens that reach beyond a rule by what follows the rule. Of a class there they knew
// the last byte of its bounds: answers failed with a token that their mask had allowed, and right
// ones were forbidden.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

GrammarVocabulary BytesAnd(const std::vector<std::string>& tokens) {
  GrammarVocabulary vocabulary = ByteVocabulary();
  vocabulary.tokens.insert(vocabulary.tokens.end(), tokens.begin(), tokens.end());
  vocabulary.size = static_cast<int32_t>(vocabulary.tokens.size());
  return vocabulary;
}

// Behind `begin` the mask has the tokens that fit, and no other.
void ExpectMask(const GrammarSpec& spec, const std::string& begin,
                const std::vector<std::string>& fit, const std::vector<std::string>& others) {
  std::vector<std::string> tokens = fit;
  tokens.insert(tokens.end(), others.begin(), others.end());
  const GrammarVocabulary vocabulary = BytesAnd(tokens);
  ASSERT_TRUE(CheckGrammar(spec).ok()) << spec.text;
  const auto grammar = MakeXgrammarCompile(vocabulary)(spec);
  ASSERT_TRUE(grammar.ok()) << spec.text << ": " << grammar.status().message();
  const auto state = (*grammar)->Start().value();
  for (const char c : begin) ASSERT_TRUE(*state->Accept(TokenId{static_cast<unsigned char>(c)}));
  std::vector<uint32_t> words(static_cast<size_t>(MaskWords(vocabulary.size)));
  ASSERT_TRUE(state->FillMask(words).ok());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t id = 257 + i;
    EXPECT_EQ(words[id / 32] >> (id % 32) & 1, i < fit.size()) << spec.text << ": " << tokens[i];
  }
}

GrammarSpec Behind(const std::string& what) {
  return {GrammarKind::kEbnf,
          "root ::= \"<\" r " + what + " \"z\" | \"(\" root \")\"\nr ::= \"x\" [a-c]"};
}

TEST(AMaskBehindARule, KnowsAClassByItsBounds) {
  ExpectMask(Behind("[一-鿿] \"q\""), "<", {"xa一"}, {"xax", "xa\x01", "xaé"});
  ExpectMask(Behind("[^a-一]"), "<", {"xa鿿", "xa0"}, {"xax", "xab", "xaé"});
  ExpectMask(Behind("[a-一]"), "<", {"xax", "xa一", "xaé"}, {"xa0", "xa鿿"});
  ExpectMask(
      {GrammarKind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"regex","pattern":"<(a|c)[一-鿿]{2}"}})"},
      "<", {"a一"}, {"ab"});
}

TEST(AMaskBehindARule, KnowsWhatAClassLeavesOutByItsFirstByte) {
  ExpectMask(Behind("[à-ÿ]"), "<", {"xa\xc3"}, {"xa\xe0", "xa\xf0"});
  ExpectMask(Behind("[^\\u0800-\\u0fff]"), "<", {"xa\xe1"}, {"xa\xe0"});
  ExpectMask(Behind("[^\\U00100000-\\U0010ffff]"), "<", {"xa\xf0"}, {"xa\xf4"});
  ExpectMask(Behind("[^\\u4e00-\\u9fff]"), "<", {"xa\xe3\x80"}, {"xa\xe5\x80", "xa\xe5"});
}

}  // namespace
}  // namespace fathom
