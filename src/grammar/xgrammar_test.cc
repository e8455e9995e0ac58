#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "grammar/ebnf_pattern.h"
#include "grammar/grammar_limits.h"
#include "grammar/structural_tag.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

constexpr TokenId kEos{1};
constexpr TokenId kSpecial{0};
constexpr int32_t kFirstByte = 2;
constexpr int32_t kVocab = 300;  // a few more than there are tokens

// Two special tokens, each byte, and some longer ones.
GrammarVocabulary TestVocabulary() {
  GrammarVocabulary vocabulary{.tokens = {"", "<eos>"}, .eos = {kEos}, .size = kVocab};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const char* text : {"{\"", "\": ", "\"a\"", "tru", "123", "\xff<call>"}) {
    vocabulary.tokens.push_back(text);
  }
  return vocabulary;
}

const GrammarVocabulary& Vocabulary() {
  static const GrammarVocabulary vocabulary = TestVocabulary();
  return vocabulary;
}

GrammarCompiler::Made Compile(const GrammarSpec& spec) {
  static const GrammarCompiler::Compile compile = MakeXgrammarCompile(Vocabulary());
  TRY(CheckGrammar(spec));
  return compile(spec);
}

TokenId ByteToken(char c) {
  return TokenId{kFirstByte + static_cast<unsigned char>(c)};
}

// What may come next; each is told by Accept() too.
std::set<int32_t> Allowed(GrammarState& state) {
  std::vector<uint32_t> words(MaskWords(kVocab));
  const Status status = state.FillMask(words);
  EXPECT_TRUE(status.ok()) << status.message();
  std::set<int32_t> allowed;
  for (int32_t id = 0; id < static_cast<int32_t>(32 * words.size()); ++id) {
    if ((words[id / 32] >> (id % 32) & 1) != 0) allowed.insert(id);
  }
  return allowed;
}

// Whether `text` is a whole answer, byte by byte. The mask says the same as Accept() at each.
bool Matches(const Grammar& grammar, const std::string& text) {
  const auto state = *grammar.Start();
  for (const char c : text) {
    const bool may = Allowed(*state).contains(Raw(ByteToken(c)));
    EXPECT_EQ(*state->Accept(ByteToken(c)), may) << text << " at " << c;
    if (!may) return false;
  }
  const bool may = Allowed(*state).contains(Raw(kEos));
  EXPECT_EQ(*state->Accept(kEos), may);
  EXPECT_EQ(state->terminated(), may);
  return may;
}

// At each byte of a text: so many tokens on, and back, it is where it was.
TEST(XgrammarTest, GoesBack) {
  for (const GrammarSpec& spec :
       {GrammarSpec{.kind = GrammarKind::kJsonObject},
        GrammarSpec{.kind = GrammarKind::kRegex, .text = R"(\{"a": (123|[0-9]{2})\})"}}) {
    const auto grammar = Compile(spec);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    const std::string text = R"({"a": 123})";
    const auto state = *(*grammar)->Start();
    for (size_t at = 0; at < text.size(); ++at) {
      const std::set<int32_t> before = Allowed(*state);
      int32_t on = 0;
      for (; at + on < text.size(); ++on) ASSERT_TRUE(*state->Accept(ByteToken(text[at + on])));
      if (*state->Accept(kEos)) ++on;
      EXPECT_TRUE(state->terminated());
      ASSERT_TRUE(state->Rollback(on).ok());
      EXPECT_FALSE(state->terminated());
      EXPECT_EQ(Allowed(*state), before) << at;
      ASSERT_TRUE(*state->Accept(ByteToken(text[at])));
    }
  }
}

void ExpectMatches(const GrammarSpec& spec, const std::vector<std::string>& good,
                   const std::vector<std::string>& bad) {
  const auto grammar = Compile(spec);
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const std::string& text : good) EXPECT_TRUE(Matches(**grammar, text)) << text;
  for (const std::string& text : bad) EXPECT_FALSE(Matches(**grammar, text)) << text;
}

TEST(Xgrammar, AnyObject) {
  ExpectMatches({GrammarKind::kJsonObject},
                {"{}", R"({"a": 1})", R"({"a":{"b":[1,null,true]},"c":"é\n"})"},
                {"", "[]", "1", R"({"a"})", R"({"a": 1)", "{} "});
}

TEST(Xgrammar, Schema) {
  const GrammarSpec spec = {GrammarKind::kJsonSchema,
                            R"({"type": "object", "properties": {"n": {"type": "integer"},
                                "s": {"enum": ["x", "y"]}}, "required": ["n"]})"};
  GrammarSpec strict = spec;
  strict.strict = true;
  ExpectMatches(spec, {R"({"n": 1})", R"({"n":-12,"s":"x"})", R"({"n": 1, "other": []})"},
                {"{}", R"({"n": "1"})", R"({"n": 1, "s": "z"})"});
  ExpectMatches(strict, {R"({"n": 1})", R"({"n":1,"s":"y"})"}, {R"({"n": 1, "other": []})"});
}

TEST(Xgrammar, RegexChoicesAndEbnf) {
  ExpectMatches({GrammarKind::kRegex, "[a-c]{2,3}(-\\d+)?"}, {"ab", "abc-7"}, {"a", "abca", "ab-"});
  ExpectMatches({GrammarKind::kRegex, "^(?:\\w+\\s\\.[^\\d\\n]?)*?x.$"},
                {"xx", "ab .cx\n", "a .b_\t.-x\u00e9"}, {"x", "ab c.x-", "a .1xx", "a.xx"});
  ExpectMatches({GrammarKind::kRegex, "a|b{0}c|\"\\\\|[\\\\\"\\]]{2}"},
                {"a", "c", "\"\\", "]\"", "\\\\"}, {"b", "ac", "]", "bc"});
  ExpectMatches({GrammarKind::kRegex, RegexOfChoices({"yes", "no.", "(a|b)*", "ü\n-/"})},
                {"yes", "no.", "(a|b)*", "ü\n-/"}, {"nox", "a", "", "yesno."});
  std::vector<std::string> many;
  for (int i = 1000; i < 2000; ++i) many.push_back(fmt::format("choice (number) {}", i));
  ExpectMatches({GrammarKind::kChoices, RegexOfChoices(many)}, {many[0], many[999]},
                {"choice (number) 2000", "choice (number) 100", ""});
  ExpectMatches({GrammarKind::kEbnf, "root ::= \"(\" root \")\" | \"x\""}, {"x", "((x))"},
                {"(x", "xx"});
}

// Patterns become one automaton where they can, grammars without recursion too: the same texts
// match as in a grammar of several rules, which a rule that is never used forces.
TEST(Xgrammar, OneAutomatonMatchesWhatRulesDo) {
  const std::vector<std::string> texts = {
      "",        "a",   "ab",  "abc",  "aab",  "abab",  "b",     "ba",  "a b",
      "ab cd e", "a-7", "-7",  "x\ny", "x.y",  "xzy",   "\"q\"", "[c]", "a\\b",
      "é",       "éé",  "aé",  "yes",  "no",   "a  b",  "AB",    "a1",  "1.5",
      "a/b",     "(a)", "{a}", "a|b",  "a\tb", "axxxb", "axb",   "^",   "$"};
  for (const char* rules :
       {"root ::= (word \" \")* word\nword ::= [a-z]+", "root ::= \"a\" | \"ab\" \"c\"?",
        "root ::= \"ab\"{1,2} # twice\n", "root ::= x | y\nx ::= \"yes\"\ny ::= [^a-z\\n]+ \"7\"",
        "root ::= \"a\" \"\" \"b\"", "root ::= (\"a\" | \"\") \"b\"",
        "root ::= \"a\\\\b\" | \"\\\"q\\\"\"",
        "root ::= \"(a)\" | \"{a}\" | \"a|b\" | \"x.y\" | \"^\" | \"$\" | \"a/b\" | \"[c]\"",
        "root ::= \"é\"+ | \"x\" [\\n.] \"y\" | \"a\\tb\"", "root ::= \"a\" [x-z]{2,} \"b\"",
        "root ::= [^\\]\\-]"}) {
    ASSERT_TRUE(PatternOfEbnf(rules).has_value()) << rules;
    const auto one = Compile({GrammarKind::kEbnf, rules});
    const auto several =
        Compile({GrammarKind::kEbnf, std::string(rules) + "\nunused ::= \"\\x41\""});
    ASSERT_TRUE(one.ok()) << rules << one.status().message();
    ASSERT_TRUE(several.ok()) << rules << several.status().message();
    for (const std::string& text : texts) {
      EXPECT_EQ(Matches(**one, text), Matches(**several, text)) << rules << " of " << text;
    }
  }
}

TEST(Xgrammar, TokensOfSeveralBytesAndSpecialOnes) {
  const auto grammar = Compile(
      {GrammarKind::kJsonSchema,
       R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})", true});
  const auto state = *(*grammar)->Start();
  const auto id = [](const std::string& text) {
    const auto& tokens = Vocabulary().tokens;
    return static_cast<int32_t>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
  };
  std::set<int32_t> allowed = Allowed(*state);
  EXPECT_TRUE(allowed.contains(id("{\"")));
  EXPECT_FALSE(allowed.contains(id("tru")));
  EXPECT_FALSE(allowed.contains(Raw(kSpecial)));
  EXPECT_FALSE(allowed.contains(Raw(kEos)));
  EXPECT_LT(*allowed.rbegin(), static_cast<int32_t>(Vocabulary().tokens.size()));
  EXPECT_FALSE(*state->Accept(kSpecial));
  EXPECT_FALSE(*state->Accept(TokenId{kVocab - 1}));
  for (const char* text : {"{", "\"a\"", ":", "tru", "e", "}"}) {
    ASSERT_TRUE(Allowed(*state).contains(id(text))) << text;
    ASSERT_TRUE(*state->Accept(TokenId{id(text)})) << text;
  }
  EXPECT_EQ(Allowed(*state), std::set<int32_t>{Raw(kEos)});
}

// A text that no token can go on with is an error, not a mask without bits.
TEST(Xgrammar, NoTokenFits) {
  GrammarVocabulary few{.tokens = {"", "", "a"}, .eos = {kEos}, .size = 3};
  const auto compile = MakeXgrammarCompile(few);
  EXPECT_EQ(compile({GrammarKind::kRegex, "b"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(compile({GrammarKind::kRegex, "ab"}).status().code(), StatusCode::kInvalidArgument);
  const auto grammar = compile({GrammarKind::kRegex, "a{40}b"});  // further than it is tried
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const auto state = *(*grammar)->Start();
  EXPECT_FALSE(state->Accept(TokenId{0}).value());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(state->Accept(TokenId{2}).value());
  std::vector<uint32_t> words(1);
  EXPECT_EQ(state->FillMask(words).code(), StatusCode::kNotFound);
}

// A token with a byte that no text has is reached by its id alone.
TEST(Xgrammar, MarkersAreTokensAndNoText) {
  const auto marker = static_cast<int32_t>(Vocabulary().tokens.size()) - 1;
  for (const GrammarSpec& spec :
       {GrammarSpec{GrammarKind::kRegex, "a[^b]*.*"}, GrammarSpec{GrammarKind::kJsonObject},
        GrammarSpec{GrammarKind::kEbnf, "root ::= \"a\" [^x]*"}}) {
    const auto state = *(*Compile(spec))->Start();
    const std::string begin = spec.kind == GrammarKind::kJsonObject ? "{\"k" : "a";
    for (const char c : begin) ASSERT_TRUE(*state->Accept(ByteToken(c)));
    EXPECT_FALSE(Allowed(*state).contains(marker));
    EXPECT_TRUE(Allowed(*state).contains(Raw(ByteToken('z'))));
  }
  const std::string tag = fmt::format(
      R"({{"type": "structural_tag", "format": {{"type": "sequence", "elements": [
          {{"type": "token", "token": {0}}}, {{"type": "const_string", "value": "f"}},
          {{"type": "json_schema", "json_schema": {{"type": "boolean"}}}},
          {{"type": "token", "token": {0}}}]}}}})",
      marker);
  const auto grammar = Compile({GrammarKind::kCalls, tag});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const auto state = *(*grammar)->Start();
  EXPECT_EQ(Allowed(*state), std::set<int32_t>{marker});
  ASSERT_TRUE(*state->Accept(TokenId{marker}));
  for (const char c : std::string("ftrue")) ASSERT_TRUE(*state->Accept(ByteToken(c))) << c;
  EXPECT_TRUE(Allowed(*state).contains(marker));
  ASSERT_TRUE(*state->Accept(TokenId{marker}));
  EXPECT_EQ(Allowed(*state), std::set<int32_t>{Raw(kEos)});
  const size_t at = tag.find("boolean");
  const std::string bad = std::string(tag).replace(at - 9, 18, R"("not": {"type": 1}, "x": 1)");
  EXPECT_EQ(Compile({GrammarKind::kCalls, bad}).status().code(), StatusCode::kInvalidArgument);
}

// Free text, in which a marker begins what a schema holds; then the answer ends.
TEST(Xgrammar, AMarkerInFreeTextBeginsASchema) {
  const auto marker = static_cast<int32_t>(Vocabulary().tokens.size()) - 1;
  const auto grammar = Compile({GrammarKind::kCalls, fmt::format(R"({{"format":
      {{"type": "token_triggered_tags", "trigger_tokens": [{0}], "stop_after_first": true,
        "tags": [{{"type": "tag", "begin": {{"type": "token", "token": {0}}},
                   "content": {{"type": "json_schema", "json_schema": {{"type": "boolean"}}}},
                   "end": {{"type": "token", "token": {0}}}}}]}}}})",
                                                                 marker)});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const std::string text : {"", "free {1, \xc3\xa9"}) {
    const auto state = *(*grammar)->Start();
    for (const char c : text) ASSERT_TRUE(*state->Accept(ByteToken(c))) << c;
    const std::set<int32_t> allowed = Allowed(*state);
    EXPECT_TRUE(allowed.contains(Raw(kEos)) && allowed.contains(Raw(ByteToken('a'))));
    EXPECT_TRUE(allowed.contains(marker));
    EXPECT_FALSE(allowed.contains(Raw(kSpecial)));
    ASSERT_TRUE(*state->Accept(TokenId{marker}));
    EXPECT_EQ(Allowed(*state).contains(Raw(ByteToken('a'))), false);
    for (const char c : std::string("true")) ASSERT_TRUE(*state->Accept(ByteToken(c))) << c;
    ASSERT_TRUE(*state->Accept(TokenId{marker}));
    EXPECT_EQ(Allowed(*state), std::set<int32_t>{Raw(kEos)});
  }
}

// A request's own tag, in whose free text no marker is.
TEST(Xgrammar, StructuralTagsOfRequests) {
  const auto read = ReadStructuralTag(R"({"triggers": ["<f="], "structures": [
      {"begin": "<f=a>", "schema": {"type": "boolean"}, "end": "</f>"},
      {"begin": "<f=b>", "schema": {"enum": [1, 2]}, "end": "</f>"}]})");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const GrammarSpec spec = {GrammarKind::kStructuralTag, *read};
  ExpectMatches(spec, {"", "so: <f=a>true</f> and <f=b>2</f>.", "a < f"},
                {"<f=a>1</f>", "<f=c>1</f>", "<f=a>true"});
  const auto state = *(*Compile(spec))->Start();
  const auto marker = static_cast<int32_t>(Vocabulary().tokens.size()) - 1;
  EXPECT_FALSE(Allowed(*state).contains(marker));
  EXPECT_FALSE(Allowed(*state).contains(Raw(kSpecial)));
}

// What the compiler would leave out with a warning, and what it throws at, is refused.
TEST(Xgrammar, WhatItCannotHold) {
  for (const char* schema : {R"({"type": "number", "multipleOf": 0.1})",
                             R"({"type": "string", "pattern": "a+", "maxLength": 3})",
                             R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
                             R"({"type": "integer", "minimum": 3, "maximum": 2})",
                             R"({"type": "integer", "minimum": 1.5})", R"({"type": "nothing"})"}) {
    const auto grammar = Compile({GrammarKind::kJsonSchema, schema});
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument) << schema;
  }
  for (const char* pattern : {"a(?=b)", "(", "[z-a]", "a{3,1}"}) {
    EXPECT_FALSE(Compile({GrammarKind::kRegex, pattern}).ok()) << pattern;
  }
  for (const char* grammar :
       {"root ::= ", "other ::= \"a\"", "root ::= missing", "root = \"a\"", "root ::= root"}) {
    EXPECT_FALSE(Compile({GrammarKind::kEbnf, grammar}).ok()) << grammar;
  }
}

}  // namespace
}  // namespace fathom
