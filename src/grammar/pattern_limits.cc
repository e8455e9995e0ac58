#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

// Walks over a regular expression or EBNF and measures it; whether it is well-formed is the
// compiler's to say.
class PatternMeter {
 public:
  PatternMeter(std::string_view text, std::string_view where, bool ebnf)
      : text_(text), where_(where), ebnf_(ebnf) {}

  Status Measure() {
    for (at_ = 0; at_ < text_.size();) TRY(Step());
    return CheckSize(groups_.front().size + groups_.front().last);
  }

  // Repetitions whose number is open, each as often as the counted ones around it ask for.
  int64_t choices() const { return groups_.front().choices + groups_.front().last_choices; }
  // The most of those that a counted repetition multiplies.
  int64_t nested() const { return nested_; }

 private:
  static constexpr std::string_view kEbnfSpaces = " \t\r\n";

  // What stands between parentheses: its last atom may still be repeated.
  struct Group {
    int64_t size = 0;
    int64_t last = 0;
    int64_t choices = 0;  // choices() of them
    int64_t last_choices = 0;
  };

  Status Step() {
    const char c = text_[at_];
    if (c == '[') return Take(Class());
    if (ebnf_ && c == '"') return Take(Quoted());
    if (ebnf_ && c == '#') {
      at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
      return {};
    }
    if (c == '{') return Repeat();
    ++at_;
    if (c == '(') {
      groups_.emplace_back();
      if (groups_.size() <= kMaxPatternDepth) return {};
      return InvalidArgument("{} nests parentheses more than {} deep", where_, kMaxPatternDepth);
    }
    if (c == ')' && groups_.size() > 1) {
      const Group closed = groups_.back();
      groups_.pop_back();
      TRY(Take(closed.size + closed.last));
      groups_.back().last_choices = closed.choices + closed.last_choices;
      return {};
    }
    if (c == '\\' && at_ < text_.size()) ++at_;
    groups_.back().last_choices += c == '*' || c == '+' || c == '?';
    if (c == '*' || c == '+' || c == '?' || c == '|') return {};
    if (ebnf_ && kEbnfSpaces.find(c) != kEbnfSpaces.npos) return {};
    return Take(1);
  }

  Status Take(int64_t atom) {
    Group& group = groups_.back();
    group.size += group.last;
    group.last = std::max<int64_t>(atom, 1);
    group.choices += std::exchange(group.last_choices, 0);
    return CheckSize(group.size + group.last);
  }

  // Behind a class of characters, of which there is one however long it is written.
  int64_t Class() {
    for (++at_; at_ < text_.size() && text_[at_] != ']'; ++at_) at_ += text_[at_] == '\\';
    ++at_;
    return 1;
  }

  int64_t Quoted() {
    const size_t begin = at_;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\';
    ++at_;
    return static_cast<int64_t>(at_ - begin);
  }

  // {m}, {m,} or {m,n}; any other brace is a character, of which EBNF has none.
  Status Repeat() {
    const size_t end = std::min(text_.find('}', at_), text_.size());
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    const auto is_count = [this](char c) {
      return (c >= '0' && c <= '9') || c == ',' ||
             (ebnf_ ? kEbnfSpaces : " ").find(c) != kEbnfSpaces.npos;
    };
    const bool counts = !inside.empty() && std::ranges::all_of(inside, is_count);
    if (end == text_.size() || !counts) {
      if (ebnf_ && !inside.empty()) {
        return InvalidArgument("{} has a brace that is no count: {{2}}, {{2,}} or {{2,3}}", where_);
      }
      ++at_;
      return Take(1);
    }
    at_ = end + 1;
    int64_t most = 1;
    for (size_t i = 0; i < inside.size(); ++i) {
      if (inside[i] < '0') continue;
      int64_t count = 0;
      const char* last = inside.data() + inside.size();
      const auto [stop, error] = std::from_chars(inside.data() + i, last, count);
      if (error != std::errc() || count > kMaxExpandedPattern) {
        return InvalidArgument("{} repeats {{{}}}: at most {} times are possible", where_,
                               std::string(inside.substr(0, 32)), kMaxExpandedPattern);
      }
      most = std::max(most, count);
      i = static_cast<size_t>(stop - inside.data()) - 1;
    }
    Group& group = groups_.back();
    group.last *= most;
    const bool open = inside.find(',') != inside.npos;
    group.last_choices *= most;
    if (most > 1) nested_ = std::max(nested_, group.last_choices);
    if (open) group.last_choices += most;
    return CheckSize(group.size + group.last);
  }

  Status CheckSize(int64_t size) const {
    const int64_t most = ebnf_ ? int64_t{kMaxEbnfBytes} : kMaxExpandedPattern;
    if (size <= most) return {};
    return InvalidArgument(
        "{} is too large: with its counted repetitions it has {} characters or "
        "more, and may have {}",
        where_, size, most);
  }

  const std::string_view text_, where_;
  const bool ebnf_;
  size_t at_ = 0;
  int64_t nested_ = 0;
  std::vector<Group> groups_ = std::vector<Group>(1);
};

// The character that an escape of EBNF names by its number, as x41, u0041 or U00000041: as many
// digits as there are behind an x.
Status CheckNumber(std::string_view escape) {
  const char kind = escape.empty() ? ' ' : escape[0];
  if (kind != 'x' && kind != 'u' && kind != 'U') return {};
  const auto digits = escape.substr(1, kind == 'x' ? escape.npos : kind == 'u' ? 4 : 8);
  uint32_t character = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), character, 16);
  const auto named = escape.substr(0, std::min<size_t>(1 + (end - digits.data()), 10));
  if (error == std::errc::result_out_of_range || character > 0x10ffff) {
    return InvalidArgument(
        "the grammar names \\{}: the last character is \\U0010ffff, and all "
        "digits behind an x count",
        named);
  }
  if (character < 0xd800 || character > 0xdfff) return {};
  return InvalidArgument("the grammar names half of a character, \\{}, which no answer has", named);
}

Status CheckBytes(std::string_view text, size_t most, std::string_view where) {
  if (text.empty()) return InvalidArgument("{} is empty", where);
  if (text.size() > most) {
    return InvalidArgument("{} has {} bytes: at most {} are possible", where, text.size(), most);
  }
  if (text.find('\0') != text.npos) return InvalidArgument("{} holds U+0000", where);
  return {};
}

}  // namespace

Status CheckPattern(std::string_view pattern, std::string_view where) {
  TRY(CheckBytes(pattern, kMaxPatternBytes, where));
  return PatternMeter(pattern, where, /*ebnf=*/false).Measure();
}

Status CheckSchemaPattern(std::string_view pattern, std::string_view where, PatternUse use) {
  constexpr int64_t kMostNested = 100;
  TRY(CheckPattern(pattern, where));
  PatternMeter meter(pattern, where, /*ebnf=*/false);
  TRY(meter.Measure());
  if (meter.nested() <= kMostNested) return CheckPatternSyntax(pattern, where, use);
  return InvalidArgument("{} repeats what is itself repeated: {} times in all, and {} are possible",
                         where, meter.nested(), kMostNested);
}

bool IsSmallAutomaton(std::string_view pattern, int64_t most_choices) {
  constexpr int64_t kMostCharacters = 2000;
  PatternMeter meter(pattern, "", /*ebnf=*/false);
  return meter.Measure().ok() && meter.choices() <= most_choices &&
         pattern.size() <= kMostCharacters;
}

Status CheckEbnf(std::string_view grammar) {
  TRY(CheckBytes(grammar, kMaxEbnfBytes, "the grammar"));
  TRY(PatternMeter(grammar, "the grammar", /*ebnf=*/true).Measure());
  char inside = ' ';  // of a text or a class, what ends it
  for (size_t at = 0; at < grammar.size(); ++at) {
    const char c = grammar[at];
    if (c == '\\') {
      TRY(CheckNumber(grammar.substr(++at)));
    } else if (inside == ' ' && c == '#') {
      at = std::min(grammar.find_first_of("\r\n", at), grammar.size());
    } else if (inside == ' ' && (c == '"' || c == '[')) {
      inside = c == '[' ? ']' : c;
    } else if (c == inside) {
      inside = ' ';
    }
  }
  return {};
}

Status CheckGrammar(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarKind::kJsonObject: return {};
    case GrammarKind::kJsonSchema:
      TRY(CheckBytes(spec.text, kMaxSchemaBytes, "the schema"));
      return CheckSchema(spec.text, spec.strict);
    case GrammarKind::kRegex:
      TRY(CheckPattern(spec.text, "the regular expression"));
      return CheckPatternSyntax(spec.text, "the regular expression", PatternUse::kText);
    case GrammarKind::kChoices: return CheckBytes(spec.text, 3 * kMaxChoiceBytes, "the choices");
    case GrammarKind::kEbnf: return CheckEbnf(spec.text);
    case GrammarKind::kStructuralTag: return CheckStructuralTag(spec.text);
    case GrammarKind::kCalls: return CheckStructuralTag(spec.text, /*own=*/true);
  }
  CHECK(false, "grammar kind {}", static_cast<int>(spec.kind));
}

}  // namespace fathom
