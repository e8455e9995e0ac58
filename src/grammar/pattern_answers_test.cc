// What patterns take, against what they say: by a matcher of our own, over all short texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/byte_vocabulary.h"
#include "grammar/ebnf_pattern.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

using Places = std::set<size_t>;

// A pattern, and where it may end in a text of which it begins at one of some places.
struct Pattern {
  std::string text;
  std::function<Places(const std::string&, const Places&)> ends;
};

Pattern Class(const std::string& text, const std::string& bytes) {
  return {text, [bytes](const std::string& in, const Places& begins) {
            Places ends;
            for (const size_t at : begins) {
              if (at < in.size() && bytes.find(in[at]) != bytes.npos) ends.insert(at + 1);
            }
            return ends;
          }};
}

Pattern Then(const Pattern& first, const Pattern& second) {
  return {first.text + second.text, [first, second](const std::string& in, const Places& begins) {
            return second.ends(in, first.ends(in, begins));
          }};
}

Pattern Either(const Pattern& one, const Pattern& other) {
  return {one.text + "|" + other.text, [one, other](const std::string& in, const Places& begins) {
            Places ends = one.ends(in, begins);
            ends.merge(other.ends(in, begins));
            return ends;
          }};
}

Pattern Repeated(const Pattern& pattern, const char* quantifier, size_t least, size_t most) {
  return {pattern.text + quantifier, [=](const std::string& in, const Places& begins) {
            Places ends, now = begins;
            if (least == 0) ends = begins;
            for (size_t times = 1; times <= std::min(most, in.size() + 3); ++times) {
              now = pattern.ends(in, now);
              if (now.empty()) break;
              if (times >= least) ends.insert(now.begin(), now.end());
            }
            return ends;
          }};
}

class Patterns {
 public:
  // `counts`: whether some of what repeats one character counts beyond 128.
  explicit Patterns(uint64_t seed, bool counts = false) : rng_(seed), counts_(counts) {}

  Pattern Next(int depth = 2) {
    Pattern pattern = Sequence(depth);
    for (uint32_t more = rng_.Below(3); more > 0; --more)
      pattern = Either(pattern, Sequence(depth));
    return pattern;
  }

 private:
  struct Quantifier {
    const char* text;
    size_t least, most;
  };

  Pattern Sequence(int depth) {
    Pattern pattern = Element(depth);
    for (uint32_t more = rng_.Below(3); more > 0; --more) pattern = Then(pattern, Element(depth));
    return pattern;
  }
  Pattern Element(int depth) {
    constexpr size_t kMany = 1000;
    constexpr Quantifier kQuantifiers[] = {{"?", 0, 1},        {"*", 0, kMany}, {"+", 1, kMany},
                                           {"{2}", 2, 2},      {"{0,2}", 0, 2}, {"{1,3}", 1, 3},
                                           {"{2,}", 2, kMany}, {"{0,1}", 0, 1}, {"{0,}", 0, kMany}};
    constexpr Quantifier kCounts[] = {{"{129}", 129, 129},
                                      {"{0,130}", 0, 130},
                                      {"{1,129}", 1, 129},
                                      {"{127,131}", 127, 131},
                                      {"{129,}", 129, kMany}};
    const Pattern atom = Atom(depth);
    if (rng_.Below(2) == 0) return atom;
    if (counts_ && rng_.Below(2) == 0 && atom.text[0] != '(') {
      const Quantifier& chosen = kCounts[rng_.Below(std::size(kCounts))];
      return Repeated(atom, chosen.text, chosen.least, chosen.most);
    }
    const Quantifier& chosen = kQuantifiers[rng_.Below(std::size(kQuantifiers))];
    return Repeated(atom, chosen.text, chosen.least, chosen.most);
  }
  Pattern Atom(int depth) {
    switch (rng_.Below(depth > 0 ? 6 : 4)) {
      case 0: return Class("a", "a");
      case 1: return Class("b", "b");
      case 2: return Class("c", "c");
      case 3: return Class("[ab]", "ab");
      default: {
        const Pattern inner = Next(depth - 1);
        return {"(" + inner.text + ")", inner.ends};
      }
    }
  }

  Rng rng_;
  bool counts_;
};

std::vector<std::string> ShortTexts() {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 5; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

// xgrammar's automata took more: what may be left out, repetitions without an end, and states that
// nothing follows, were joined with what has edges of its own (cmake/xgrammar_mends.cmake).
TEST(PatternAnswers, AreThoseOfThePattern) {
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const std::vector<std::string> texts = ShortTexts();
  for (const GrammarKind kind :
       {GrammarKind::kRegex, GrammarKind::kJsonSchema, GrammarKind::kEbnf}) {
    Patterns patterns(static_cast<uint64_t>(kind));
    int taken = 0;
    for (int i = 0; i < 250; ++i) {
      const Pattern pattern = patterns.Next();
      GrammarSpec spec{.kind = kind, .text = pattern.text};
      if (kind == GrammarKind::kJsonSchema) {
        spec.text = R"({"type":"string","pattern":"^()" + pattern.text + R"()$"})";
      } else if (kind == GrammarKind::kEbnf) {
        spec.text = R"(root ::= "<" root ">" | p "")" + ("\np ::= " + PatternInEbnf(pattern.text));
      }
      const auto grammar = compile(spec);
      ASSERT_TRUE(grammar.ok()) << spec.text << ": " << grammar.status().message();
      for (const std::string& text : texts) {
        const bool whole = pattern.ends(text, {0}).contains(text.size());
        const bool json = kind == GrammarKind::kJsonSchema;
        ASSERT_EQ(TakesBytes(**grammar, json ? '"' + text + '"' : text), whole)
            << pattern.text << " and '" << text << "'";
        taken += static_cast<int>(whole);
      }
    }
    EXPECT_GT(taken, 1000);
  }
}

// A state with a count beyond 128 was joined with others, which took what was counted of it, and
// the other way round.
TEST(PatternAnswers, OfCountsBeyond128) {
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  std::vector<std::string> texts = ShortTexts();
  texts.resize(121);  // of four characters at most
  for (const size_t length : {60, 128, 129, 130}) {
    for (const char* ends : {"", "a", "c", "ab", "ca"}) {
      for (const char c : {'a', 'b'}) texts.push_back(std::string(length, c) + ends);
      texts.push_back(ends + std::string(length, 'a'));
      texts.push_back(std::string(length / 2, 'a') + ends + std::string(length / 2, 'b'));
    }
  }
  for (const GrammarKind kind : {GrammarKind::kRegex, GrammarKind::kEbnf}) {
    Patterns patterns(static_cast<uint64_t>(kind), /*counts=*/true);
    int taken = 0, left = 20;
    while (left > 0) {
      const Pattern pattern = patterns.Next(/*depth=*/1);
      const bool counts = pattern.text.find('1') != pattern.text.npos;
      if (!counts || !CheckSchemaPattern(pattern.text, "it").ok()) continue;
      --left;
      GrammarSpec spec{.kind = kind, .text = pattern.text};
      if (kind == GrammarKind::kEbnf) {
        spec.text = R"(root ::= "<" root ">" | p "")" + ("\np ::= " + PatternInEbnf(pattern.text));
      }
      const auto grammar = compile(spec);
      ASSERT_TRUE(grammar.ok()) << spec.text << ": " << grammar.status().message();
      for (const std::string& text : texts) {
        const bool whole = pattern.ends(text, {0}).contains(text.size());
        ASSERT_EQ(TakesBytes(**grammar, text), whole) << pattern.text << " and '" << text << "'";
        taken += static_cast<int>(whole);
      }
    }
    EXPECT_GT(taken, 300);
  }
}

// In an automaton both cases are one step; of a regular expression as rules it is said that they
// are not.
TEST(PatternAnswers, OfEitherCase) {
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const auto small = compile({.kind = GrammarKind::kRegex, .text = "(?i)ab"});
  ASSERT_TRUE(small.ok()) << small.status().message();
  EXPECT_TRUE(TakesBytes(**small, "aB"));
  const auto schema = compile({.kind = GrammarKind::kJsonSchema,
                               .text = R"({"type": "string", "pattern": "(?i)(b?){0,25}a"})"});
  ASSERT_TRUE(schema.ok()) << schema.status().message();
  EXPECT_TRUE(TakesBytes(**schema, "\"BA\""));
  const auto tag = compile(
      {.kind = GrammarKind::kStructuralTag,
       .text =
           R"({"type":"structural_tag","format":{"type":"regex","pattern":"(?i)a[\\W\\d]{2}"}})"});
  ASSERT_TRUE(tag.ok()) << tag.status().message();
  EXPECT_TRUE(TakesBytes(**tag, "A-1"));
  EXPECT_FALSE(TakesBytes(**tag, "Aéé"));
  const auto rules = compile({.kind = GrammarKind::kRegex, .text = "(?i)(b?){0,25}a"});
  ASSERT_FALSE(rules.ok());
  EXPECT_NE(rules.status().message().find("(?i) goes with small patterns alone"), std::string::npos)
      << rules.status().message();
}

TEST(PatternAnswers, OfAFractionThatMayBeLeftOut) {
  const auto grammar = MakeXgrammarCompile(ByteVocabulary())(
      {.kind = GrammarKind::kRegex, .text = R"(-?(0|[1-9][0-9]{0,2})(\.[0-9]+)?)"});
  ASSERT_TRUE(grammar.ok());
  for (const char* text : {"0", "-0", "7", "-123", "0.5", "12.34"}) {
    EXPECT_TRUE(TakesBytes(**grammar, text)) << text;
  }
  for (const char* text : {"", "00", "05", "1234", "1.", ".5"}) {
    EXPECT_FALSE(TakesBytes(**grammar, text)) << text;
  }
}

}  // namespace
}  // namespace fathom
