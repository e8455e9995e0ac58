// Answers to a schema had quotes, backslashes and line ends within a string: where its pattern
// counts beyond 128, or has a control character of its own, and as a JSON pointer.
#include <gtest/gtest.h>

#include <string>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

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
      EXPECT_FALSE(TakesBytes(**grammar, '"' + other + '"')) << spec.text << " at " << at;
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

TEST(QuotesWithinAString, ComeFromNoFormat) {
  ExpectTakesJsonAlone(R"("format":"json-pointer")", "/a/b");
  ExpectTakesJsonAlone(R"("format":"relative-json-pointer")", "12/a");
}

}  // namespace
}  // namespace fathom
