// Answers to a schema had quotes, backslashes and line ends within a string: where its pattern
// counts beyond 128, or has a control character of its own, and as a JSON pointer.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

bool IsJson(const std::string& text) {
  boost::system::error_code error;
  (void)boost::json::parse(text, error);
  return !error;
}

void ExpectTakesJsonAlone(const std::string& keyword, const std::string& text) {
  const GrammarSpec spec{.kind = GrammarKind::kJsonSchema,
                         .text = R"({"type":"string",)" + keyword + "}"};
  ASSERT_TRUE(CheckGrammar(spec).ok()) << spec.text;
  const auto grammar = MakeXgrammarCompile(ByteVocabulary())(spec);
  ASSERT_TRUE(grammar.ok()) << spec.text << ": " << grammar.status().message();
  EXPECT_TRUE(TakesBytes(**grammar, '"' + text + '"')) << spec.text;
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char c : {'"', '\\', '\n', '\x01'}) {
      std::string other = text;
      other[at] = c;
      const std::string quoted = '"' + other + '"';
      EXPECT_TRUE(!TakesBytes(**grammar, quoted) || IsJson(quoted)) << spec.text << ": " << quoted;
    }
  }
}

TEST(QuotesWithinAString, ComeFromNoCount) {
  const std::string many(150, 'b');
  ExpectTakesJsonAlone(R"("pattern":"^.{0,129}$")", "bb");
  ExpectTakesJsonAlone(R"("pattern":"^.{150}$")", many);
  ExpectTakesJsonAlone(R"("pattern":"^.{129,}$")", many);
  ExpectTakesJsonAlone(R"("pattern":"^([^<]{150}|c)d?$")", many + "d");
  ExpectTakesJsonAlone(R"("pattern":"^x(.|yz){129,200}$")", "x" + many);
}

TEST(QuotesWithinAString, ComeFromNoControlCharacter) {
  ExpectTakesJsonAlone(R"("pattern":"^[^a]{3}\t?$")", "bbb");
  ExpectTakesJsonAlone(R"("pattern":"^[^a](\\\n|b)?$")", "bb");
  ExpectTakesJsonAlone("\"pattern\":\"^[^a]\x7f?$\"", "b");
}

// What JSON cannot write left ways on which no end came.
TEST(QuotesWithinAString, LeaveNoWayWithoutAnEnd) {
  const auto begins = [](const std::string& pattern) {
    const GrammarSpec spec{.kind = GrammarKind::kJsonSchema,
                           .text = R"({"type":"string","pattern":")" + pattern + "\"}"};
    EXPECT_TRUE(CheckGrammar(spec).ok()) << spec.text;
    const auto grammar = MakeXgrammarCompile(ByteVocabulary())(spec);
    EXPECT_TRUE(grammar.ok()) << spec.text << ": " << grammar.status().message();
    std::string taken;
    if (!grammar.ok()) return taken;
    const auto state = (*grammar)->Start().value();
    EXPECT_TRUE(*state->Accept(TokenId{'"'}));
    std::vector<uint32_t> words(static_cast<size_t>(MaskWords(257)));
    EXPECT_TRUE(state->FillMask(words).ok());
    for (uint32_t c = 0; c < 256; ++c) {
      if ((words[c / 32] >> (c % 32) & 1) != 0) taken += static_cast<char>(c);
    }
    return taken;
  };
  EXPECT_EQ(begins(R"(^(say \"[a-z]+\"|quiet)$)"), "q");
  EXPECT_EQ(begins(R"(^(C:\\\\[a-z]+|\/[a-z]+)$)"), "/");
  EXPECT_EQ(begins(R"(^(b+\n)*$)"), "\"");
  EXPECT_EQ(begins(R"(^(x\"|y){150}$)"), "y");
}

TEST(QuotesWithinAString, ComeFromNoFormat) {
  ExpectTakesJsonAlone(R"("format":"email")", R"(\"a\\!b\\\"\\\\\"@c.co)");
  ExpectTakesJsonAlone(R"("format":"json-pointer")", "/a/b");
  ExpectTakesJsonAlone(R"("format":"relative-json-pointer")", "12/a");
}

}  // namespace
}  // namespace fathom
