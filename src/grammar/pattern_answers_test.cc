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
              if (times >= least) ends.insert(now.begin(), now.end());
            }
            return ends;
          }};
}

class Patterns {
 public:
  explicit Patterns(uint64_t seed) : rng_(seed) {}

  Pattern Next(int depth = 2) {
    Pattern pattern = Sequence(depth);
    for (uint32_t more = rng_.Below(3); more > 0; --more)
      pattern = Either(pattern, Sequence(depth));
    return pattern;
  }

 private:
  Pattern Sequence(int depth) {
    Pattern pattern = Element(depth);
    for (uint32_t more = rng_.Below(3); more > 0; --more) pattern = Then(pattern, Element(depth));
    return pattern;
  }
  Pattern Element(int depth) {
    struct Quantifier {
      const char* text;
      size_t least, most;
    };
    constexpr size_t kMany = 100;
    constexpr Quantifier kQuantifiers[] = {{"?", 0, 1},        {"*", 0, kMany}, {"+", 1, kMany},
                                           {"{2}", 2, 2},      {"{0,2}", 0, 2}, {"{1,3}", 1, 3},
                                           {"{2,}", 2, kMany}, {"{0,1}", 0, 1}, {"{0,}", 0, kMany}};
    const Pattern atom = Atom(depth);
    if (rng_.Below(2) == 0) return atom;
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
};

std::vector<std::string> ShortTexts() {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 5; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

// xgrammar's automata took more: what may be left out, repetitions without an end, and states that
// nothing follows, were joined with what has edges of its own (cmake/xgrammar.cmake).
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
