#include "grammar/plain_sentence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

std::string_view NameOf(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonObject:
    case GrammarKind::kJsonSchema: return "schema";
    case GrammarKind::kRegex: return "regular expression";
    case GrammarKind::kEbnf: return "grammar";
    case GrammarKind::kStructuralTag:
    case GrammarKind::kCalls: return "structural tag";
    case GrammarKind::kChoices: return "list of choices";
  }
  return "grammar";
}

void CutBefore(std::string& text, std::string_view what) {
  if (const size_t at = text.rfind(what); at != text.npos) text.erase(0, at + what.size());
}

// What to do about it, where it does not say so itself.
std::string_view HintFor(std::string_view text) {
  constexpr std::string_view kTwice = "; what is repeated twice stands in parentheses";
  constexpr std::pair<std::string_view, std::string_view> kHints[] = {
      {"is not defined", "; texts stand in double quotes"},
      {"The root rule with name", "; an answer begins with the rule root"},
      {"Unexpected character",
       "; rules are written name ::= ..., texts in double quotes, comments behind #"},
      {"Expect element, but got *", kTwice},
      {"Expect element, but got +", kTwice},
      {"Expect element, but got ?", kTwice},
      {"Expect element, but got {", kTwice},
      {"Expect element", "; an empty text is written \"\""},
      {"Invalid escape", "; a character is written \\x41, \\u00e9 or \\U0001f600"},
      {"Expect integer", "; counts are written {2}, {2,} or {2,5}"},
      {"class escape is not supported", "; write [0-9], [0-9A-Za-z_] or [ \\t\\n\\r]"}};
  for (const auto& [part, hint] : kHints) {
    if (text.find(part) != text.npos) return hint;
  }
  return "";
}

}  // namespace

std::string PlainSentence(GrammarKind kind, std::string_view message) {
  std::string text(message);
  CutBefore(text, "is false: ");  // of "Check failed: (...) is false: "
  CutBefore(text, "Invalid structural tag error: ");
  // Of a grammar that a schema or an expression became.
  const bool asked = kind == GrammarKind::kEbnf || kind == GrammarKind::kStructuralTag;
  for (const char* where : {"EBNF parser error at ", "EBNF lexer error at "}) {
    if (text.find(where) != text.npos) CutBefore(text, asked ? where : ": ");
  }
  std::ranges::replace(text, '\n', ' ');
  while (text.ends_with(' ') || text.ends_with('.')) text.pop_back();
  const bool own = text.find("heck failed") != text.npos || text.find(".cc:") != text.npos ||
                   text.find(".h:") != text.npos;
  if (own || text.empty()) text = "it says something that answers cannot be held to";
  return fmt::format("the {} cannot be compiled: {}{}", NameOf(kind), text, HintFor(text));
}

}  // namespace fathom
