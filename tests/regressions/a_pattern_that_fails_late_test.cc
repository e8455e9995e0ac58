// A large pattern that automata cannot take, which was found behind a count, ended the server: the
// count had made rules, which moved the name of the rule that the error was to say.
#include <gtest/gtest.h>

#include <string>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

TEST(APatternThatFailsLate, IsTakenAsRules) {
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const auto expect = [&](const std::string& pattern, const std::string& text, bool takes) {
    const GrammarSpec spec{.kind = GrammarKind::kRegex, .text = pattern};
    ASSERT_TRUE(CheckGrammar(spec).ok()) << pattern;
    const auto made = compile(spec);
    ASSERT_TRUE(made.ok()) << pattern << ": " << made.status().message();
    EXPECT_EQ(TakesBytes(**made, text), takes) << pattern << " and " << text;
  };
  const std::string many(129, 'a');
  expect("a{129}]", many + "]", true);
  expect("a{129}]", many, false);
  expect("a{129}b]", many + "b]", true);
  expect("a{129}[[:l]]", many + ":]", true);
  expect("b|(a{129}[[:l]])?", many + "b]", false);
}

}  // namespace
}  // namespace fathom
