// Quotes hid the pattern of a macro in EBNF from every limit of patterns: parentheses in it, nested
// 12,000 deep, ended the server.
#include <gtest/gtest.h>

#include <string>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

std::string Said(const std::string& text) {
  static const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const GrammarSpec spec{.kind = GrammarKind::kEbnf, .text = text};
  EXPECT_TRUE(CheckGrammar(spec).ok()) << text;
  const auto made = compile(spec);
  return made.ok() ? "taken" : std::string(made.status().message());
}

void ExpectSays(const std::string& text, const std::string& part) {
  const std::string said = Said(text);
  EXPECT_NE(said.find(part), std::string::npos) << text.substr(0, 100) << ": " << said;
}

std::string Nested(int deep, const std::string& open, const std::string& close) {
  std::string text = "a";
  for (int i = 0; i < deep; ++i) text = open + text + close;
  return text;
}

TEST(APatternInQuotes, HasTheLimitsOfPatterns) {
  ExpectSays("root ::= Regex(\"" + Nested(12'000, "(", ")?") + "\")", "8192 are possible");
  ExpectSays("root ::= Regex (\"" + Nested(40, "(", ")") + "\")",
             "line 1, column 16: the pattern of Regex nests parentheses more than 32 deep");
  ExpectSays("root ::= Regex # (\n(json_string=true, \"" + Nested(40, "\\x28", "\\x29") + "\")",
             "more than 32 deep");
  ExpectSays("root ::= \"(\" root \")\" | Regex(\"((a{0,100}b){0,100}c){0,100}\")", "too large");
  ExpectSays("root ::= Regex(\"a(?=b)b\")", "looks around");
  EXPECT_EQ(Said("root ::= \"(\" root \")\" | Regex(\"[0-9]{1,3}(\\\\.[0-9]+)?\")"), "taken");
}

// They name tokens, which are the server's own, or hide as much.
TEST(APatternInQuotes, IsTheOneMacro) {
  for (const char* macro : {"Token(1)", "ExcludeToken(1)", "TokenTagDispatch((1, root))",
                            "TagDispatch((\"<\", root))", "Substring(\"a\", \"b\")"}) {
    ExpectSays(std::string("root ::= \"(\" ") + macro, "Of macros there is Regex alone");
  }
}

}  // namespace
}  // namespace fathom
