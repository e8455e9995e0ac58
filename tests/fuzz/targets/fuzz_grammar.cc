// Grammars of requests, and answers under them. The first byte says what follows: a grammar up to a
// NUL and then an answer's way, or choices of which the grammar is drawn.
#include <algorithm>
#include <boost/json.hpp>

#include "drawn_grammar.h"
#include "fuzz.h"
#include "grammar/byte_vocabulary.h"
#include "grammar/compile_limit.h"
#include "grammar/grammar_limits.h"
#include "grammar/structural_tag.h"

namespace fathom {
namespace {

constexpr auto kTime = std::chrono::milliseconds(500);
constexpr size_t kBytes = size_t{256} << 20;
constexpr size_t kMostAnswer = 64;  // tokens, at each of which the mask is held against Accept()

const GrammarVocabulary& Vocabulary() {
  static const auto& vocabulary = *[] {
    auto* made = new GrammarVocabulary(ByteVocabulary());
    for (const char* token :
         {"ab", "aa", "ba", "\"a", "\":", "{}", "\xc3\xa9", "a\xc3", "aab", "\n "}) {
      made->tokens.emplace_back(token);
    }
    made->size = static_cast<int32_t>(made->tokens.size());
    return made;
  }();
  return vocabulary;
}

struct Case {
  GrammarSpec spec;
  std::string_view way;
};

Case Read(std::string_view input) {
  const char kind = input.empty() ? 'e' : input.front();
  if (!input.empty()) input.remove_prefix(1);
  if (kind == 'E' || kind == 'R' || kind == 'S') {
    DrawnGrammar drawn(input);
    GrammarSpec spec = kind == 'E'   ? GrammarSpec{GrammarKind::kEbnf, drawn.Ebnf()}
                       : kind == 'R' ? GrammarSpec{GrammarKind::kRegex, drawn.Pattern()}
                                     : GrammarSpec{GrammarKind::kJsonSchema, drawn.Schema()};
    return {std::move(spec), drawn.rest()};
  }
  const size_t end = std::min(input.find('\0'), input.size());
  const auto of = kind == 'r'   ? GrammarKind::kRegex
                  : kind == 's' ? GrammarKind::kJsonSchema
                  : kind == 't' ? GrammarKind::kStructuralTag
                                : GrammarKind::kEbnf;
  return {{of, std::string(input.substr(0, end))}, input.substr(std::min(end + 1, input.size()))};
}

bool IsJson(std::string_view text) {
  boost::json::error_code error;
  (void)boost::json::parse(text, error, {}, {.max_depth = 512});
  return !error || error == boost::json::error::exponent_overflow;  // a number all the same
}

// Whether the state takes the bytes one by one, of which none is left behind.
Result<bool> TakesAll(GrammarState& state, std::string_view bytes) {
  int32_t taken = 0;
  Result<bool> takes = true;
  for (const char byte : bytes) {
    takes = state.Accept(TokenId{static_cast<unsigned char>(byte)});
    if (!takes.ok() || !*takes) break;
    ++taken;
  }
  if (takes.ok() && taken > 0) CHECK(state.Rollback(taken).ok());
  return takes;
}

// The tokens that the mask has, each of which the state takes, and no other. None: the answer has
// failed.
std::vector<TokenId> Allowed(GrammarState& state) {
  std::vector<uint32_t> words(static_cast<size_t>(MaskWords(Vocabulary().size)));
  if (const Status filled = state.FillMask(words); !filled.ok()) {
    CHECK(!filled.message().empty());
    return {};
  }
  std::vector<TokenId> allowed;
  for (int32_t token = 0; token < Vocabulary().size; ++token) {
    const bool in_mask = (words[token / 32] >> (token % 32) & 1) != 0;
    if (in_mask) allowed.push_back(TokenId{token});
    if (TokenId{token} == kByteEos) continue;  // takes no bytes
    const auto takes = TakesAll(state, Vocabulary().tokens[token]);
    if (!takes.ok()) return {};
    CHECK(*takes == in_mask, "the mask has {} for token {}", in_mask, token);
  }
  return allowed;
}

// An answer, of which each byte of `way` says the next token: itself, or one of those that may
// come.
void Answer(const Grammar& grammar, GrammarKind kind, std::string_view way) {
  auto state = grammar.Start();
  if (!state.ok()) {
    CHECK(!state.status().message().empty());
    return;
  }
  std::string answer;
  for (size_t at = 0;; ++at) {
    const std::vector<TokenId> allowed = Allowed(**state);
    if (allowed.empty()) return;
    const bool may_end = std::ranges::find(allowed, kByteEos) != allowed.end();
    if (may_end && kind == GrammarKind::kJsonSchema) CHECK(IsJson(answer), "{} is no JSON", answer);
    if (at == std::min(way.size(), kMostAnswer)) return;
    const auto byte = static_cast<unsigned char>(way[at]);
    const bool itself = std::ranges::find(allowed, TokenId{byte}) != allowed.end();
    const TokenId next = itself ? TokenId{byte} : allowed[byte % allowed.size()];
    if (next == kByteEos) continue;
    answer += Vocabulary().tokens[static_cast<size_t>(next)];
    const auto takes = (*state)->Accept(next);
    if (!takes.ok()) return;
    CHECK(*takes, "token {} is forbidden, which its mask had", static_cast<int32_t>(next));
  }
}

}  // namespace
}  // namespace fathom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom;
  static const auto& compile = *new auto(MakeXgrammarCompile(Vocabulary()));
  Case input = Read(TextOf(data, size));
  const Status refused = [&]() -> Status {  // as requests are
    GrammarSpec& spec = input.spec;
    if (spec.kind == GrammarKind::kStructuralTag) spec.text = TRY(ReadStructuralTag(spec.text));
    return CheckGrammar(spec);
  }();
  if (!refused.ok()) {
    CHECK(!refused.message().empty());
    return 0;
  }
  const auto grammar = [&] {
    CompileLimit limit(kTime, kBytes, [] { return false; });
    return compile(input.spec);
  }();
  if (grammar.ok()) {
    Answer(**grammar, input.spec.kind, input.way);
  } else {
    CHECK(!grammar.status().message().empty());
  }
  return 0;
}
